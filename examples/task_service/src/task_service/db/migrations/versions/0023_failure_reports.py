"""When the report of a failed run is due.

Older processes work with this schema: the runs that they end are not reported.

Revision ID: 0023
Revises: 0022
"""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
works_with = ("0019", "0020", "0021", "0022")


def upgrade() -> None:
    op.add_column("runs", sa.Column("report_due_at", sa.BigInteger()))
    due = sa.text("report_due_at IS NOT NULL")
    op.create_index(
        "ix_runs_report_due_at",
        "runs",
        ["report_due_at"],
        sqlite_where=due,
        postgresql_where=due,
    )
