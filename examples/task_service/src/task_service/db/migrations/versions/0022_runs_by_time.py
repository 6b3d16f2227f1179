"""Indexes for lists of runs over all tasks, newest first.

Older processes work with this schema. On PostgreSQL with many runs, create both indexes concurrently before the upgrade: it then
finds them and stops no writer.

Revision ID: 0022
Revises: 0021
"""

from alembic import op

revision = "0022"
down_revision = "0021"
works_with = ("0019", "0020", "0021")


def upgrade() -> None:
    op.create_index("ix_runs_created_at_id", "runs", ["created_at", "id"], if_not_exists=True)
    op.create_index(
        "ix_runs_owner_id_created_at_id",
        "runs",
        ["owner_id", "created_at", "id"],
        if_not_exists=True,
    )
