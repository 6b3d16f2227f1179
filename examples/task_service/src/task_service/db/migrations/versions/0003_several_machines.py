"""For several machines: priorities of runs, login attempts, fingerprints of secrets, and compatible versions.

It changes nothing that older processes read or write, so they work with this schema.

Revision ID: 0003
Revises: 0002
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "runs", sa.Column("rank", sa.Integer(), server_default=sa.text("0"), nullable=False)
    )
    if op.get_bind().dialect.name != "postgresql":
        # On PostgreSQL `task_service.db.migrate_postgresql` builds the index afterwards, while other processes write.
        op.create_index(
            "ix_runs_state_rank_created_at_id", "runs", ["state", "rank", "created_at", "id"]
        )
    op.create_table(
        "login_attempts",
        sa.Column("key", sa.String(length=128), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_login_attempts"),
    )
    op.create_index("ix_login_attempts_expires_at", "login_attempts", ["expires_at"])
    op.create_table(
        "secret_checks",
        sa.Column("pepper_id", sa.String(length=255), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("pepper_id", name="pk_secret_checks"),
    )
    works_with = op.create_table(
        "schema_works_with",
        sa.Column("revision", sa.String(length=32), nullable=False),
        sa.Column("code", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("revision", "code", name="pk_schema_works_with"),
    )
    op.bulk_insert(
        works_with,
        [{"revision": "0003", "code": "0001"}, {"revision": "0003", "code": "0002"}],
    )
    op.create_table(
        "queue_migrations",
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_queue_migrations"),
    )
