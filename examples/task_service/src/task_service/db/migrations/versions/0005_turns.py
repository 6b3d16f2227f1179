"""Owners take turns: who waits for a run, and the index that finds an owner's next one.

Older processes go on beside this schema. They queue runs without giving their owners a place in the line, which the workers
of this version do for them; so nothing is filled in here.

Revision ID: 0005
Revises: 0004
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "waiting_owners",
        sa.Column("owner_id", sa.String(length=32), nullable=False),
        sa.Column("lane", sa.Integer(), nullable=False),
        sa.Column("turn", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["owner_id"], ["users.id"], name="fk_waiting_owners_owner_id_users"
        ),
        sa.PrimaryKeyConstraint("owner_id", name="pk_waiting_owners"),
    )
    op.create_index(
        "ix_waiting_owners_lane_turn_owner_id", "waiting_owners", ["lane", "turn", "owner_id"]
    )
    if op.get_bind().dialect.name != "postgresql":
        # There it is built, and the old ones are dropped, while the others go on: `task_service.db.migrate_online`.
        op.create_index(
            "ix_runs_state_owner_id_rank_created_at_id",
            "runs",
            ["state", "owner_id", "rank", "created_at", "id"],
        )
        op.drop_index("ix_runs_owner_id_state", "runs")
        op.drop_index("ix_runs_state_rank_created_at_id", "runs")
    works_with = sa.table("schema_works_with", sa.column("revision"), sa.column("code"))
    op.bulk_insert(
        works_with,
        [{"revision": "0005", "code": code} for code in ("0001", "0002", "0003", "0004")],
    )
