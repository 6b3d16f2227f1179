"""Drop the tables of what keys did: an application counts that itself, from the events.

Processes of the version before cannot write their counts any more. They log that, and serve on.
"""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    # Those that 0004 made, as it was; a database that began later has none.
    op.execute("DROP TABLE IF EXISTS msk_auth_api_keys_last_requests")
    op.execute("DROP TABLE IF EXISTS msk_auth_api_keys_activity")
