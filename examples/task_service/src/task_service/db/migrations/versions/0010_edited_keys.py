"""What people edit about a key besides its name: a description and labels.

Older processes work with this schema: the new columns may be NULL. The successor of a key that they rotate has neither.

Revision ID: 0010
Revises: 0009
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("msk_auth_api_keys", sa.Column("description", sa.Text()))
    op.add_column("msk_auth_api_keys", sa.Column("labels", sa.Text()))
    works_with = sa.table("schema_works_with", sa.column("revision"), sa.column("code"))
    op.bulk_insert(
        works_with,
        [{"revision": "0010", "code": f"{number:04}"} for number in range(1, 10)],
    )
