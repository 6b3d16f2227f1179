"""Add which end of a key was announced, and the index that finds those that are to be.

Processes of the version before work with this schema. The keys that they make are announced also where they are made for a
few days.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("msk_auth_api_keys", sa.Column("announced_days", sa.Integer))
    op.create_index(
        "ix_msk_auth_api_keys_expiring",
        "msk_auth_api_keys",
        ["announced_days", "revoked_at", "expires_at", "id"],
    )
