"""Add what a key reaches.

Processes of the version before do not know this column: to them the key reaches everything, as does the successor of a key that
they rotate. So make keys with resources after the last of them has stopped.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("msk_auth_api_keys", sa.Column("resources", sa.Text))
