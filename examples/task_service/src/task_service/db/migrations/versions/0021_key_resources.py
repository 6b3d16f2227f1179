"""What a key reaches.

Older processes work with this schema, and do not know the column: to them a key reaches everything of its owner, as does the
successor of a key that they rotate. So bind keys to tasks after the last of them has stopped.

Revision ID: 0021
Revises: 0020
"""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
works_with = ("0019", "0020")


def upgrade() -> None:
    op.add_column("msk_auth_api_keys", sa.Column("resources", sa.Text()))
