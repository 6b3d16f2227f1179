"""Logouts that the identity provider asks for: which session there a session belongs to, and the tokens that were used.

Older processes work with this schema: the new column is nullable. The sessions that they start name no session of the provider,
and neither do those that are open now.

Revision ID: 0008
Revises: 0007
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sessions", sa.Column("provider_sid", sa.String(length=255)))
    op.create_table(
        "logout_tokens",
        sa.Column("issuer", sa.String(length=255), nullable=False),
        sa.Column("jti", sa.String(length=255), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("issuer", "jti", name="pk_logout_tokens"),
    )
    op.create_index("ix_logout_tokens_expires_at", "logout_tokens", ["expires_at"])
    works_with = sa.table("schema_works_with", sa.column("revision"), sa.column("code"))
    op.bulk_insert(
        works_with,
        [
            {"revision": "0008", "code": code}
            for code in ("0001", "0002", "0003", "0004", "0005", "0006", "0007")
        ],
    )
