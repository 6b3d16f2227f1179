"""Which end of a key was announced, and the index that finds those that are to be.

Older processes work with this schema: the new column may be NULL. The keys that they make are announced also where they are
made for a few days.

Revision ID: 0016
Revises: 0015
"""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("msk_auth_api_keys", sa.Column("announced_days", sa.Integer()))
    if op.get_bind().dialect.name != "postgresql":
        # On PostgreSQL `task_service.db.migrate_postgresql` does this while other processes write.
        op.create_index(
            "ix_msk_auth_api_keys_expiring",
            "msk_auth_api_keys",
            ["announced_days", "revoked_at", "expires_at", "id"],
        )
    works_with = sa.table("schema_works_with", sa.column("revision"), sa.column("code"))
    op.bulk_insert(
        works_with,
        [{"revision": "0016", "code": f"{number:04}"} for number in (*range(1, 11), 13, 14, 15)],
    )
