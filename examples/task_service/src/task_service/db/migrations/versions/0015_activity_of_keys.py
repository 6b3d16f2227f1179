"""What keys did: their requests of each day, and the last one.

Older processes work with this schema: they do not know the new tables, and count nothing.

Revision ID: 0015
Revises: 0014
"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def _key_id() -> sa.Column[str]:
    exact = sa.String(64).with_variant(sa.String(64, collation="C"), "postgresql")
    return sa.Column("key_id", exact, nullable=False)


def upgrade() -> None:
    op.create_table(
        "msk_auth_api_keys_activity",
        _key_id(),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("accepted", sa.BigInteger(), nullable=False),
        sa.Column("refused", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key_id", "day", name="pk_msk_auth_api_keys_activity"),
    )
    op.create_index("ix_msk_auth_api_keys_activity_day", "msk_auth_api_keys_activity", ["day"])
    op.create_table(
        "msk_auth_api_keys_last_requests",
        _key_id(),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("route", sa.Text()),
        sa.Column("address", sa.Text()),
        sa.Column("user_agent", sa.Text()),
        sa.PrimaryKeyConstraint("key_id", name="pk_msk_auth_api_keys_last_requests"),
    )
    op.create_index(
        "ix_msk_auth_api_keys_last_requests_at", "msk_auth_api_keys_last_requests", ["at"]
    )
    works_with = sa.table("schema_works_with", sa.column("revision"), sa.column("code"))
    op.bulk_insert(
        works_with,
        [{"revision": "0015", "code": f"{number:04}"} for number in (*range(1, 11), 13, 14)],
    )
