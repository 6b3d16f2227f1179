"""The indexes of the audit log by actor, target, action and credential have its entries in the order of their times.

Older processes work with this schema: they list the entries of a filter by their ids, for which the database sorts them.

Revision ID: 0017
Revises: 0016
"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

FILTERS = ("actor_id", "target", "action", "credential_id")


def upgrade() -> None:
    if op.get_bind().dialect.name != "postgresql":
        # On PostgreSQL `task_service.db.migrate_postgresql` does this while other processes write.
        for column in FILTERS:
            op.create_index(f"ix_audit_{column}_at_id", "audit", [column, "at", "id"])
            op.drop_index(f"ix_audit_{column}_id", "audit")
    works_with = sa.table("schema_works_with", sa.column("revision"), sa.column("code"))
    op.bulk_insert(
        works_with,
        [
            {"revision": "0017", "code": f"{number:04}"}
            for number in (*range(1, 11), *range(13, 17))
        ],
    )
