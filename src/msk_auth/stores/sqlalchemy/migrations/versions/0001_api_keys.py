"""Create the table of keys and its registers."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_MYSQL: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mariadb_engine": "InnoDB",
    "mariadb_charset": "utf8mb4",
}


def _exact_text(length: int) -> sa.String:
    return (
        sa.String(length)
        .with_variant(sa.String(length, collation="C"), "postgresql")
        .with_variant(sa.String(length, collation="utf8mb4_bin"), "mysql")
        .with_variant(sa.String(length, collation="utf8mb4_bin"), "mariadb")
    )


def upgrade() -> None:
    op.create_table(
        "msk_auth_api_keys",
        sa.Column("id", _exact_text(64), primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("owner_id", _exact_text(255), nullable=False),
        sa.Column("digest", _exact_text(255), nullable=False),
        sa.Column("scopes", sa.Text),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger),
        sa.Column("last_used_at", sa.BigInteger),
        sa.Column("revoked_at", sa.BigInteger),
        sa.Column("replaced_by", _exact_text(64)),
        sa.Column("deleted_at", sa.BigInteger),
        sa.Column("description", sa.Text),
        sa.Column("labels", sa.Text),
        sa.Column("networks", sa.Text),
        sa.Column("announced_days", sa.Integer),
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
    op.create_index(
        "ix_msk_auth_api_keys_expiring",
        "msk_auth_api_keys",
        ["announced_days", "revoked_at", "expires_at", "id"],
    )
    op.create_table(
        "msk_auth_api_keys_registers",
        sa.Column("name", _exact_text(319), primary_key=True),
        sa.Column("value", sa.BigInteger, nullable=False),
        **_MYSQL,
    )
