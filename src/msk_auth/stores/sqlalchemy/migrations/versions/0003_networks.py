"""Add where a key works from.

Processes of the version before do not know this column: they accept the key from everywhere, and the successor of a key that they
rotate works from everywhere. So give keys networks after the last of them has stopped.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("msk_auth_api_keys", sa.Column("networks", sa.Text))
