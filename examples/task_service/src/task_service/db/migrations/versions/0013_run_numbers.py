"""The runs of each task are numbered.

Older processes work with this schema: the new columns are nullable. Runs that are in the table already, and those that older
processes queue, have no number. The first run with a number counts them, so that its number tells how many there were.

Revision ID: 0013
Revises: 0010
"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tasks", sa.Column("last_run_number", sa.BigInteger()))
    op.add_column("runs", sa.Column("number", sa.BigInteger()))
    works_with = sa.table("schema_works_with", sa.column("revision"), sa.column("code"))
    op.bulk_insert(
        works_with,
        [{"revision": "0013", "code": f"{number:04}"} for number in range(1, 11)],
    )
