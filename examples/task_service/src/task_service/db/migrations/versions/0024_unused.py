"""Removes what only the workers of revision 0019 use: the order in which their owners wait, and whether a log was cut off.

Revision ID: 0024
Revises: 0023
"""

from alembic import op

revision = "0024"
down_revision = "0023"
works_with = ()


def upgrade() -> None:
    op.drop_table("waiting_owners")
    op.drop_column("runs", "log_truncated")
