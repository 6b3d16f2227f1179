"""Logins at an identity provider: who its users are here, and what their sessions remember.

Older processes work with this schema: new columns are nullable or have a default.

Revision ID: 0007
Revises: 0006
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "identities",
        sa.Column("issuer", sa.String(length=255), nullable=False),
        sa.Column("subject", sa.String(length=255), nullable=False),
        sa.Column("user_id", sa.String(length=32), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_identities_user_id_users"),
        sa.PrimaryKeyConstraint("issuer", "subject", name="pk_identities"),
    )
    op.create_index("ix_identities_user_id", "identities", ["user_id"])
    op.add_column(
        "users",
        sa.Column("external_login", sa.Boolean(), server_default=sa.false(), nullable=False),
    )
    op.add_column("sessions", sa.Column("started_at", sa.BigInteger()))
    op.add_column("sessions", sa.Column("id_token", sa.Text()))
    works_with = sa.table("schema_works_with", sa.column("revision"), sa.column("code"))
    op.bulk_insert(
        works_with,
        [
            {"revision": "0007", "code": code}
            for code in ("0001", "0002", "0003", "0004", "0005", "0006")
        ],
    )
