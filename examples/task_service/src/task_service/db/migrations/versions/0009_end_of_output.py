"""The end of a run's output is kept, and the size of the beginning that is missing.

Older processes work with this schema: the new columns have defaults. The output of runs that they execute ends at 256 KiB, as
does that of runs that are over.

Revision ID: 0009
Revises: 0008
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("log_missing_bytes", "log_missing_lines"):
        op.add_column(
            "runs", sa.Column(name, sa.BigInteger(), server_default=sa.text("0"), nullable=False)
        )
    works_with = sa.table("schema_works_with", sa.column("revision"), sa.column("code"))
    op.bulk_insert(
        works_with,
        [{"revision": "0009", "code": f"000{number}"} for number in range(1, 9)],
    )
