"""Where a key works from.

Older processes start with this schema, and accept keys from everywhere: give keys networks after the last of them has stopped.
The successor of a key that they rotate works from everywhere.

Revision ID: 0014
Revises: 0013
"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("msk_auth_api_keys", sa.Column("networks", sa.Text()))
    works_with = sa.table("schema_works_with", sa.column("revision"), sa.column("code"))
    op.bulk_insert(
        works_with,
        [{"revision": "0014", "code": f"{number:04}"} for number in (*range(1, 11), 13)],
    )
