"""The rotation of owners with queued runs, and the index that finds an owner's next one.

Older processes work with this schema. They queue runs without adding the owners to the rotation; the workers of this version
add them, so this migration inserts no rows.

Revision ID: 0005
Revises: 0004
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "waiting_owners",
        sa.Column("owner_id", sa.String(length=32), nullable=False),
        sa.Column("lane", sa.Integer(), nullable=False),
        sa.Column("turn", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["owner_id"], ["users.id"], name="fk_waiting_owners_owner_id_users"
        ),
        sa.PrimaryKeyConstraint("owner_id", name="pk_waiting_owners"),
    )
    op.create_index(
        "ix_waiting_owners_lane_turn_owner_id", "waiting_owners", ["lane", "turn", "owner_id"]
    )
    if op.get_bind().dialect.name != "postgresql":
        # On PostgreSQL `task_service.db.migrate_postgresql` does this while other processes write.
        op.create_index(
            "ix_runs_state_owner_id_rank_created_at_id",
            "runs",
            ["state", "owner_id", "rank", "created_at", "id"],
        )
        op.drop_index("ix_runs_owner_id_state", "runs")
        op.drop_index("ix_runs_state_rank_created_at_id", "runs")
    works_with = sa.table("schema_works_with", sa.column("revision"), sa.column("code"))
    op.bulk_insert(
        works_with,
        [{"revision": "0005", "code": code} for code in ("0001", "0002", "0003", "0004")],
    )
