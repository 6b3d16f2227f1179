"""Indexes for lists of runs over all tasks, newest first.

Older processes work with this schema. On PostgreSQL with many runs, create both indexes concurrently before the upgrade: it then
finds them and stops no writer.

Revision ID: 0022
Revises: 0021
"""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_runs_created_at_id", "runs", ["created_at", "id"], if_not_exists=True)
    op.create_index(
        "ix_runs_owner_id_created_at_id",
        "runs",
        ["owner_id", "created_at", "id"],
        if_not_exists=True,
    )
    works_with = sa.table("schema_works_with", sa.column("revision"), sa.column("code"))
    op.bulk_insert(
        works_with, [{"revision": "0022", "code": code} for code in ("0019", "0020", "0021")]
    )
