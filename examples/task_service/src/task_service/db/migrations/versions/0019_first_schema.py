"""The whole schema, as the last version before the first release had it.

A migration never changes, so it imports nothing from the application, whose schema does.

Revision ID: 0019
Revises:
"""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = None
branch_labels = None
depends_on = None

# Microseconds since the Unix epoch.
_MOMENT = sa.BigInteger()


def _exact(length: int) -> sa.types.TypeEngine[str]:
    """Text that sorts by code point; the library's ids."""
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("at", _MOMENT, nullable=False),
        sa.Column("action", sa.String(length=64), nullable=False),
        sa.Column("actor_id", sa.String(length=32)),
        sa.Column("credential_kind", sa.String(length=16), nullable=False),
        sa.Column("credential_id", sa.String(length=32)),
        sa.Column("target", sa.String(length=64)),
        sa.Column("address", sa.String(length=64)),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
    )
    op.create_index("ix_audit_action_at_id", "audit", ["action", "at", "id"])
    op.create_index("ix_audit_actor_id_at_id", "audit", ["actor_id", "at", "id"])
    op.create_index("ix_audit_at", "audit", ["at"])
    op.create_index("ix_audit_credential_id_at_id", "audit", ["credential_id", "at", "id"])
    op.create_index("ix_audit_target_at_id", "audit", ["target", "at", "id"])
    op.create_table(
        "deployment",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("value", sa.String(length=255), nullable=False),
        sa.Column("noted_at", _MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_deployment"),
    )
    op.create_table(
        "login_attempts",
        sa.Column("key", sa.String(length=128), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("expires_at", _MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_login_attempts"),
    )
    op.create_index("ix_login_attempts_expires_at", "login_attempts", ["expires_at"])
    op.create_table(
        "logout_tokens",
        sa.Column("issuer", sa.String(length=255), nullable=False),
        sa.Column("jti", sa.String(length=255), nullable=False),
        sa.Column("expires_at", _MOMENT, nullable=False),
        sa.Column("subject", sa.String(length=255)),
        sa.Column("provider_sid", sa.String(length=255)),
        sa.Column("received_at", _MOMENT),
        sa.PrimaryKeyConstraint("issuer", "jti", name="pk_logout_tokens"),
    )
    op.create_index("ix_logout_tokens_expires_at", "logout_tokens", ["expires_at"])
    op.create_table(
        "msk_auth_api_keys",
        sa.Column("id", _exact(64), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("owner_id", _exact(255), nullable=False),
        sa.Column("digest", _exact(255), nullable=False),
        sa.Column("scopes", sa.Text()),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("expires_at", _MOMENT),
        sa.Column("last_used_at", _MOMENT),
        sa.Column("revoked_at", _MOMENT),
        sa.Column("replaced_by", _exact(64)),
        sa.Column("deleted_at", _MOMENT),
        sa.Column("description", sa.Text()),
        sa.Column("labels", sa.Text()),
        sa.Column("networks", sa.Text()),
        sa.Column("announced_days", sa.Integer()),
        sa.PrimaryKeyConstraint("id", name="pk_msk_auth_api_keys"),
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
    op.create_index(
        "ix_msk_auth_api_keys_listed",
        "msk_auth_api_keys",
        ["owner_id", "deleted_at", "created_at", "id"],
    )
    op.create_table(
        "msk_auth_api_keys_activity",
        sa.Column("key_id", _exact(64), nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("accepted", sa.BigInteger(), nullable=False),
        sa.Column("refused", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key_id", "day", name="pk_msk_auth_api_keys_activity"),
    )
    op.create_index("ix_msk_auth_api_keys_activity_day", "msk_auth_api_keys_activity", ["day"])
    op.create_table(
        "msk_auth_api_keys_last_requests",
        sa.Column("key_id", _exact(64), nullable=False),
        sa.Column("at", _MOMENT, nullable=False),
        sa.Column("route", sa.Text()),
        sa.Column("address", sa.Text()),
        sa.Column("user_agent", sa.Text()),
        sa.PrimaryKeyConstraint("key_id", name="pk_msk_auth_api_keys_last_requests"),
    )
    op.create_index(
        "ix_msk_auth_api_keys_last_requests_at", "msk_auth_api_keys_last_requests", ["at"]
    )
    op.create_table(
        "msk_auth_api_keys_registers",
        sa.Column("name", _exact(319), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_msk_auth_api_keys_registers"),
    )
    op.create_table(
        "queue_migrations",
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_queue_migrations"),
    )
    op.create_table(
        "schema_works_with",
        sa.Column("revision", sa.String(length=32), nullable=False),
        sa.Column("code", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("revision", "code", name="pk_schema_works_with"),
    )
    op.create_table(
        "secret_checks",
        sa.Column("pepper_id", sa.String(length=255), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("pepper_id", name="pk_secret_checks"),
    )
    op.create_table(
        "settings",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("value", sa.JSON(), nullable=False),
        sa.Column("updated_at", _MOMENT, nullable=False),
        sa.Column("updated_by", sa.String(length=32)),
        sa.PrimaryKeyConstraint("name", name="pk_settings"),
    )
    op.create_table(
        "users",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("username", sa.String(length=64), nullable=False),
        sa.Column("roles", sa.JSON(), nullable=False),
        sa.Column("password_hash", sa.String(length=255)),
        sa.Column("external_login", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("disabled_at", _MOMENT),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("last_login_at", _MOMENT),
        sa.Column("service_account", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.CheckConstraint(
            "NOT service_account OR (password_hash IS NULL AND NOT external_login)",
            name="ck_users_service_account_login",
        ),
        sa.Column("description", sa.Text()),
        sa.Column("deleted_at", _MOMENT),
        sa.PrimaryKeyConstraint("id", name="pk_users"),
        sa.UniqueConstraint("username", name="uq_users_username"),
    )
    op.create_table(
        "idempotency",
        sa.Column("owner_id", sa.String(length=32), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("task_id", sa.String(length=32), nullable=False),
        sa.Column("run_id", sa.String(length=32), nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.ForeignKeyConstraint(["owner_id"], ["users.id"], name="fk_idempotency_owner_id_users"),
        sa.PrimaryKeyConstraint("owner_id", "key", name="pk_idempotency"),
    )
    op.create_index("ix_idempotency_created_at", "idempotency", ["created_at"])
    op.create_table(
        "identities",
        sa.Column("issuer", sa.String(length=255), nullable=False),
        sa.Column("subject", sa.String(length=255), nullable=False),
        sa.Column("user_id", sa.String(length=32), nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_identities_user_id_users"),
        sa.PrimaryKeyConstraint("issuer", "subject", name="pk_identities"),
    )
    op.create_index("ix_identities_user_id", "identities", ["user_id"])
    op.create_table(
        "password_links",
        sa.Column("token_digest", sa.String(length=64), nullable=False),
        sa.Column("user_id", sa.String(length=32), nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("expires_at", _MOMENT, nullable=False),
        sa.Column("used_at", _MOMENT),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_password_links_user_id_users"),
        sa.PrimaryKeyConstraint("token_digest", name="pk_password_links"),
    )
    op.create_index("ix_password_links_user_id", "password_links", ["user_id"])
    op.create_table(
        "sessions",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("user_id", sa.String(length=32), nullable=False),
        sa.Column("authenticated_at", _MOMENT, nullable=False),
        sa.Column("started_at", _MOMENT),
        sa.Column("id_token", sa.Text()),
        sa.Column("provider_sid", sa.String(length=255)),
        sa.Column("last_seen_at", _MOMENT, nullable=False),
        sa.Column("expires_at", _MOMENT, nullable=False),
        sa.Column("ended_at", _MOMENT),
        sa.Column("address", sa.String(length=64)),
        sa.Column("user_agent", sa.String(length=256)),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_sessions_user_id_users"),
        sa.PrimaryKeyConstraint("id", name="pk_sessions"),
    )
    op.create_index("ix_sessions_user_id", "sessions", ["user_id"])
    op.create_table(
        "tasks",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("owner_id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("handler", sa.String(length=64), nullable=False),
        sa.Column("params", sa.JSON(), nullable=False),
        sa.Column("timeout_seconds", sa.Integer()),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("updated_at", _MOMENT, nullable=False),
        sa.Column("deleted_at", _MOMENT),
        sa.Column("last_run_number", _MOMENT),
        sa.ForeignKeyConstraint(["owner_id"], ["users.id"], name="fk_tasks_owner_id_users"),
        sa.PrimaryKeyConstraint("id", name="pk_tasks"),
    )
    op.create_index("ix_tasks_created_at_id", "tasks", ["created_at", "id"])
    op.create_index("ix_tasks_owner_id_created_at_id", "tasks", ["owner_id", "created_at", "id"])
    op.create_table(
        "waiting_owners",
        sa.Column("owner_id", sa.String(length=32), nullable=False),
        sa.Column("lane", sa.Integer(), nullable=False),
        sa.Column("turn", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["owner_id"], ["users.id"], name="fk_waiting_owners_owner_id_users"
        ),
        sa.PrimaryKeyConstraint("owner_id", name="pk_waiting_owners"),
    )
    op.create_index(
        "ix_waiting_owners_lane_turn_owner_id", "waiting_owners", ["lane", "turn", "owner_id"]
    )
    op.create_table(
        "runs",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("task_id", sa.String(length=32), nullable=False),
        sa.Column("number", _MOMENT),
        sa.Column("owner_id", sa.String(length=32), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("attempt", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("requested_by", sa.JSON(), nullable=False),
        sa.Column("handler", sa.String(length=64), nullable=False),
        sa.Column("params", sa.JSON(), nullable=False),
        sa.Column("timeout_seconds", sa.Integer(), nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("started_at", _MOMENT),
        sa.Column("finished_at", _MOMENT),
        sa.Column("exit_code", sa.Integer()),
        sa.Column("error", sa.Text()),
        sa.Column("cancel_requested_at", _MOMENT),
        sa.Column("claimed_by", sa.String(length=64)),
        sa.Column("lease_expires_at", _MOMENT),
        sa.Column("log_bytes", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column(
            "log_missing_bytes", sa.BigInteger(), server_default=sa.text("0"), nullable=False
        ),
        sa.Column(
            "log_missing_lines", sa.BigInteger(), server_default=sa.text("0"), nullable=False
        ),
        sa.Column("log_truncated", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("rank", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("progress", sa.Float()),
        sa.Column("progress_text", sa.String(length=200)),
        sa.ForeignKeyConstraint(["owner_id"], ["users.id"], name="fk_runs_owner_id_users"),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name="fk_runs_task_id_tasks"),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
    )
    op.create_index("ix_runs_state_created_at", "runs", ["state", "created_at"])
    op.create_index(
        "ix_runs_state_owner_id_rank_created_at_id",
        "runs",
        ["state", "owner_id", "rank", "created_at", "id"],
    )
    op.create_index("ix_runs_task_id_created_at_id", "runs", ["task_id", "created_at", "id"])
    op.create_index(
        "ix_runs_task_id_state_created_at_id", "runs", ["task_id", "state", "created_at", "id"]
    )
    op.create_table(
        "run_log",
        sa.Column("run_id", sa.String(length=32), nullable=False),
        sa.Column("seq", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at", _MOMENT, nullable=False),
        sa.Column("stream", sa.String(length=8), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_run_log_run_id_runs"),
        sa.PrimaryKeyConstraint("run_id", "seq", name="pk_run_log"),
    )
