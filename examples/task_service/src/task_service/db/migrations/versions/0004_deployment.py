"""The id of the deployment, which its login tokens name.

Older processes work with this schema. Their logins are not valid in processes of this version, nor the other way round,
because the tokens of older processes name no deployment.

Revision ID: 0004
Revises: 0003
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "deployment",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("value", sa.String(length=255), nullable=False),
        sa.Column("noted_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_deployment"),
    )
    works_with = sa.table("schema_works_with", sa.column("revision"), sa.column("code"))
    op.bulk_insert(
        works_with, [{"revision": "0004", "code": code} for code in ("0001", "0002", "0003")]
    )
