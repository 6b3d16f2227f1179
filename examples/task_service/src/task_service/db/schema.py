"""Every table of the service. The migrations in `migrations/` make them; a test holds the two together.

Times are microseconds since the Unix epoch (`UtcMicroseconds`), JSON is text-backed on SQLite. The table of API
keys comes from the library and lives in the same metadata, so one database holds everything.
"""

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    text,
)

from msk_auth.stores.sqlalchemy import api_key_table

from .types import UtcMicroseconds

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    }
)

api_keys = api_key_table(metadata)

users = Table(
    "users",
    metadata,
    Column("id", String(32), primary_key=True),
    # Lower-cased and NFKC-normalised, so that two users cannot look alike by case.
    Column("username", String(64), nullable=False, unique=True),
    Column("roles", JSON, nullable=False),
    # An Argon2id hash; NULL until the first password is set through a link.
    Column("password_hash", String(255)),
    Column("disabled_at", UtcMicroseconds),
    Column("created_at", UtcMicroseconds, nullable=False),
    Column("last_login_at", UtcMicroseconds),
)

password_links = Table(
    "password_links",
    metadata,
    # SHA-256 of the token; the token itself exists only in the link.
    Column("token_digest", String(64), primary_key=True),
    Column("user_id", String(32), ForeignKey("users.id"), nullable=False, index=True),
    Column("created_at", UtcMicroseconds, nullable=False),
    Column("expires_at", UtcMicroseconds, nullable=False),
    Column("used_at", UtcMicroseconds),
)

sessions = Table(
    "sessions",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("user_id", String(32), ForeignKey("users.id"), nullable=False, index=True),
    Column("authenticated_at", UtcMicroseconds, nullable=False),
    # Monotonic, written in batches: idle time is judged to the minute.
    Column("last_seen_at", UtcMicroseconds, nullable=False),
    Column("expires_at", UtcMicroseconds, nullable=False),
    Column("ended_at", UtcMicroseconds),
    Column("address", String(64)),
    Column("user_agent", String(256)),
)

settings = Table(
    "settings",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("value", JSON, nullable=False),
    Column("updated_at", UtcMicroseconds, nullable=False),
    Column("updated_by", String(32)),
)

audit = Table(
    "audit",
    metadata,
    Column(
        "id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True
    ),
    Column("at", UtcMicroseconds, nullable=False, index=True),
    # What happened, such as "key.created"; never a secret in any column.
    Column("action", String(64), nullable=False),
    Column("actor_id", String(32)),
    # "interactive", "api_key", "system" or "none".
    Column("credential_kind", String(16), nullable=False),
    # The key's id or the session's id.
    Column("credential_id", String(32)),
    Column("target", String(64)),
    Column("address", String(64)),
    Column("details", JSON, nullable=False),
    Index("ix_audit_actor_id_id", "actor_id", "id"),
    Index("ix_audit_target_id", "target", "id"),
)

tasks = Table(
    "tasks",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("owner_id", String(32), ForeignKey("users.id"), nullable=False),
    Column("name", String(100), nullable=False),
    Column("handler", String(64), nullable=False),
    Column("params", JSON, nullable=False),
    Column("timeout_seconds", Integer),
    Column("created_at", UtcMicroseconds, nullable=False),
    Column("updated_at", UtcMicroseconds, nullable=False),
    Column("deleted_at", UtcMicroseconds),
    Index("ix_tasks_owner_id_created_at_id", "owner_id", "created_at", "id"),
    Index("ix_tasks_created_at_id", "created_at", "id"),
)

runs = Table(
    "runs",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("task_id", String(32), ForeignKey("tasks.id"), nullable=False),
    # Denormalised from the task: limits per user and visibility need no join.
    Column("owner_id", String(32), ForeignKey("users.id"), nullable=False),
    Column("state", String(16), nullable=False),
    Column("attempt", Integer, nullable=False, server_default=text("0")),
    # {"user_id", "username", "credential": {"kind", "key_id"}} of whoever asked for it.
    Column("requested_by", JSON, nullable=False),
    # Handler, params and timeout as they were when the run was asked for.
    Column("handler", String(64), nullable=False),
    Column("params", JSON, nullable=False),
    Column("timeout_seconds", Integer, nullable=False),
    Column("created_at", UtcMicroseconds, nullable=False),
    Column("started_at", UtcMicroseconds),
    Column("finished_at", UtcMicroseconds),
    Column("exit_code", Integer),
    Column("error", Text),
    Column("cancel_requested_at", UtcMicroseconds),
    # Which worker holds it, and until when: a dead worker's run is taken over after that.
    Column("claimed_by", String(64)),
    Column("lease_expires_at", UtcMicroseconds),
    Column("log_bytes", Integer, nullable=False, server_default=text("0")),
    Column("log_truncated", Boolean, nullable=False, server_default=text("false")),
    # Of an owner's own runs the lowest is acquired first, then the oldest.
    Column("rank", Integer, nullable=False, server_default=text("0")),
    # The fraction that is done, from 0 to 1, and a few words, if the present attempt's handler has reported them.
    Column("progress", Float),
    Column("progress_text", String(200)),
    Index("ix_runs_task_id_created_at_id", "task_id", "created_at", "id"),
    Index("ix_runs_state_created_at", "state", "created_at"),
    Index(
        "ix_runs_state_owner_id_rank_created_at_id", "state", "owner_id", "rank", "created_at", "id"
    ),
)

waiting_owners = Table(
    "waiting_owners",
    metadata,
    # Who has a queued run. What a worker does with it is in `task_service.tasks.owner_rotation`.
    Column("owner_id", String(32), ForeignKey("users.id"), primary_key=True),
    # Urgent runs have a line of their own: 0, before 1.
    Column("lane", Integer, nullable=False),
    # The lower, the sooner.
    Column("turn", BigInteger, nullable=False),
    Index("ix_waiting_owners_lane_turn_owner_id", "lane", "turn", "owner_id"),
)

run_log = Table(
    "run_log",
    metadata,
    Column("run_id", String(32), ForeignKey("runs.id"), primary_key=True),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("at", UtcMicroseconds, nullable=False),
    # "stdout", "stderr" or "system".
    Column("stream", String(8), nullable=False),
    Column("text", Text, nullable=False),
)

idempotency = Table(
    "idempotency",
    metadata,
    Column("owner_id", String(32), ForeignKey("users.id"), primary_key=True),
    Column("key", String(255), primary_key=True),
    # What the key was used for: the same key on another task is a conflict.
    Column("task_id", String(32), nullable=False),
    Column("run_id", String(32), nullable=False),
    Column("created_at", UtcMicroseconds, nullable=False, index=True),
)

login_attempts = Table(
    "login_attempts",
    metadata,
    # A keyed digest of account and address: people type their password where the name belongs.
    Column("key", String(128), primary_key=True),
    Column("attempts", Integer, nullable=False),
    Column("expires_at", UtcMicroseconds, nullable=False, index=True),
)

secret_checks = Table(
    "secret_checks",
    metadata,
    # The name of a pepper or a token key in `secrets.json`, and what tells whether another process has the same one.
    Column("pepper_id", String(255), primary_key=True),
    Column("fingerprint", String(64), nullable=False),
)

deployment = Table(
    "deployment",
    metadata,
    # What is known, such as "id": one row for each.
    Column("name", String(64), primary_key=True),
    Column("value", String(255), nullable=False),
    Column("noted_at", UtcMicroseconds, nullable=False),
)

schema_works_with = Table(
    "schema_works_with",
    metadata,
    # A revision of this schema, and the newest revision known to older code that may go on beside it.
    Column("revision", String(32), primary_key=True),
    Column("code", String(32), primary_key=True),
)

queue_migrations = Table(
    "queue_migrations",
    metadata,
    # The migrations of procrastinate's own tables that this database has; empty on SQLite.
    Column("name", String(255), primary_key=True),
)
