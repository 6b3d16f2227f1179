"""Whom the logout tokens of the identity provider named, and in which order they came: a login compares itself with them.

Older processes work with this schema: the new columns are nullable. What they write is compared with no login.

Revision ID: 0019
Revises: 0018
"""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("logout_tokens", sa.Column("subject", sa.String(length=255)))
    op.add_column("logout_tokens", sa.Column("provider_sid", sa.String(length=255)))
    op.add_column("logout_tokens", sa.Column("received_at", sa.BigInteger()))
    works_with = sa.table("schema_works_with", sa.column("revision"), sa.column("code"))
    op.bulk_insert(
        works_with,
        [
            {"revision": "0019", "code": f"{number:04}"}
            for number in (*range(1, 11), *range(13, 19))
        ],
    )
