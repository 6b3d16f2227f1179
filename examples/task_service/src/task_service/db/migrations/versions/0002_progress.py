"""The progress of a run, as its handler reports it.

Older processes write neither column; both are nullable, so old and new processes work side by side.

Revision ID: 0002
Revises: 0001
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("progress", sa.Float()))
    op.add_column("runs", sa.Column("progress_text", sa.String(length=200)))
