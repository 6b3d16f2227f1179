"""Add the tables of what keys did: their requests of each day, and the last one.

Processes of the version before do not know these tables, and count nothing.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_MYSQL: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mariadb_engine": "InnoDB",
    "mariadb_charset": "utf8mb4",
}


def _key_id() -> sa.Column[str]:
    exact_text = (
        sa.String(64)
        .with_variant(sa.String(64, collation="C"), "postgresql")
        .with_variant(sa.String(64, collation="utf8mb4_bin"), "mysql", "mariadb")
    )
    return sa.Column("key_id", exact_text, primary_key=True)


def upgrade() -> None:
    op.create_table(
        "msk_auth_api_keys_activity",
        _key_id(),
        sa.Column("day", sa.Date, primary_key=True),
        sa.Column("accepted", sa.BigInteger, nullable=False),
        sa.Column("refused", sa.BigInteger, nullable=False),
        **_MYSQL,
    )
    op.create_index("ix_msk_auth_api_keys_activity_day", "msk_auth_api_keys_activity", ["day"])
    op.create_table(
        "msk_auth_api_keys_last_requests",
        _key_id(),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("route", sa.Text),
        sa.Column("address", sa.Text),
        sa.Column("user_agent", sa.Text),
        **_MYSQL,
    )
    op.create_index(
        "ix_msk_auth_api_keys_last_requests_at", "msk_auth_api_keys_last_requests", ["at"]
    )
