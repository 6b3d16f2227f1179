"""Add what people edit about a key besides its name: a description and labels.

Processes of the version before work with these columns: both may be NULL.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("msk_auth_api_keys", sa.Column("description", sa.Text))
    op.add_column("msk_auth_api_keys", sa.Column("labels", sa.Text))
