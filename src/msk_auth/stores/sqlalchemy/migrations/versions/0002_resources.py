"""Add the resources of keys.

Processes of the previous version ignore this column: for them a key reaches everything, and so does the successor of a key that
they rotate. So make keys with resources only after the last of these processes has stopped.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("msk_auth_api_keys", sa.Column("resources", sa.Text))
