"""The latest turn of each owner, by which owners take turns.

Older processes work with this schema. Their workers keep the table `waiting_owners` for themselves, and add the owners of runs
that newer processes have queued.

Revision ID: 0020
Revises: 0019
"""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
works_with = ("0019",)


def upgrade() -> None:
    op.create_table(
        "owner_turns",
        sa.Column("owner_id", sa.String(length=32), nullable=False),
        sa.Column("turn", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["owner_id"], ["users.id"], name="fk_owner_turns_owner_id_users"),
        sa.PrimaryKeyConstraint("owner_id", name="pk_owner_turns"),
    )
    op.create_index("ix_owner_turns_turn", "owner_turns", ["turn"])
