"""Make the table of keys and the registers beside it."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from msk_auth.stores.sqlalchemy._types import ExactText

revision = "0001"
down_revision = None

_MYSQL: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mariadb_engine": "InnoDB",
    "mariadb_charset": "utf8mb4",
}


def upgrade() -> None:
    op.create_table(
        "msk_auth_api_keys",
        sa.Column("id", ExactText(64), primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("owner_id", ExactText(255), nullable=False),
        sa.Column("digest", ExactText(255), nullable=False),
        sa.Column("scopes", sa.Text),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger),
        sa.Column("last_used_at", sa.BigInteger),
        sa.Column("revoked_at", sa.BigInteger),
        sa.Column("replaced_by", ExactText(64)),
        sa.Column("deleted_at", sa.BigInteger),
        **_MYSQL,
    )
    op.create_index(
        "ix_msk_auth_api_keys_listed",
        "msk_auth_api_keys",
        ["owner_id", "deleted_at", "created_at", "id"],
    )
    op.create_index(
        "ix_msk_auth_api_keys_active",
        "msk_auth_api_keys",
        ["owner_id", "revoked_at", "expires_at", "created_at", "id"],
    )
    op.create_table(
        "msk_auth_api_keys_registers",
        sa.Column("name", ExactText(319), primary_key=True),
        sa.Column("value", sa.BigInteger, nullable=False),
        **_MYSQL,
    )
