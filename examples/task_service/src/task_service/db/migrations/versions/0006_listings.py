"""The indexes of filtered listings: runs by state, and the audit log by action and by credential.

Older processes work with this schema.

Revision ID: 0006
Revises: 0005
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    if op.get_bind().dialect.name != "postgresql":
        # On PostgreSQL `task_service.db.migrate_postgresql` does this while other processes write.
        op.create_index(
            "ix_runs_task_id_state_created_at_id", "runs", ["task_id", "state", "created_at", "id"]
        )
        op.create_index("ix_audit_action_id", "audit", ["action", "id"])
        op.create_index("ix_audit_credential_id_id", "audit", ["credential_id", "id"])
    works_with = sa.table("schema_works_with", sa.column("revision"), sa.column("code"))
    op.bulk_insert(
        works_with,
        [{"revision": "0006", "code": code} for code in ("0001", "0002", "0003", "0004", "0005")],
    )
