"""All tables of the service. An empty database gets them from here, an older database from `migrations/`; a test compares both.

Times are microseconds since the Unix epoch (`UtcMicroseconds`), JSON is text on SQLite. The table of API
keys is the library's, in the same metadata and database.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Date,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    false,
    text,
)
from sqlalchemy.types import TypeDecorator, TypeEngine

from msk_auth.stores.sqlalchemy import api_key_table

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def to_microseconds(at: datetime) -> int:
    """An aware time as whole microseconds since the Unix epoch, for the database."""
    return (at - _EPOCH) // _MICROSECOND


class UtcMicroseconds(TypeDecorator[datetime]):
    """An aware `datetime`, stored as whole microseconds since the Unix epoch and read in UTC.

    A number compares, sorts and indexes alike on SQLite and PostgreSQL. The library stores the times of keys alike.

    Raises:
        ValueError: The value has no time zone (SQLAlchemy wraps it in a `StatementError`).
    """

    impl: TypeEngine[Any] | type[TypeEngine[Any]] = BigInteger
    cache_ok: bool | None = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:
        """Convert a `datetime` to microseconds."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("A time without a time zone cannot be stored. Use datetime.now(UTC).")
        return to_microseconds(value)

    def process_result_value(self, value: int | None, dialect: Dialect) -> datetime | None:
        """Convert microseconds to a `datetime`."""
        return None if value is None else _EPOCH + timedelta(0, 0, value)


metadata = MetaData(
    # Constraints and indexes get their names from this.
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    }
)

api_keys = api_key_table(metadata)

# People, and service accounts: see `task_service.accounts.service_accounts`.
users = Table(
    "users",
    metadata,
    Column("id", String(32), primary_key=True),
    # Lower-cased and NFKC-normalised, so that two users cannot look alike by case.
    Column("username", String(64), nullable=False, unique=True),
    Column("roles", JSON, nullable=False),
    # An Argon2id hash; NULL until the first password is set through a link.
    Column("password_hash", String(255)),
    # Whether the user logs in at the identity provider; see `identities`.
    Column("external_login", Boolean, nullable=False, server_default=false()),
    Column("disabled_at", UtcMicroseconds),
    Column("created_at", UtcMicroseconds, nullable=False),
    Column("last_login_at", UtcMicroseconds),
    # A service account never logs in: the table refuses a password and a login at the provider.
    Column(
        "service_account",
        Boolean,
        CheckConstraint(
            "NOT service_account OR (password_hash IS NULL AND NOT external_login)",
            name="ck_users_service_account_login",
        ),
        nullable=False,
        server_default=false(),
    ),
    # Both of service accounts only. A deleted one stays for what refers to it, such as its tasks.
    Column("description", Text),
    Column("deleted_at", UtcMicroseconds),
)

# Who the users of the identity provider are here. A subject is unique within its issuer only.
identities = Table(
    "identities",
    metadata,
    Column("issuer", String(255), primary_key=True),
    Column("subject", String(255), primary_key=True),
    Column("user_id", String(32), ForeignKey("users.id"), nullable=False, index=True),
    Column("created_at", UtcMicroseconds, nullable=False),
)

logout_tokens = Table(
    "logout_tokens",
    metadata,
    # The logout tokens of the identity provider that were used, until they expire.
    Column("issuer", String(255), primary_key=True),
    Column("jti", String(255), primary_key=True),
    Column("expires_at", UtcMicroseconds, nullable=False, index=True),
    # Whom it named, as a person, a session there, or both; NULL too in tokens of the first eighteen revisions.
    Column("subject", String(255)),
    Column("provider_sid", String(255)),
    # Later than that of each token before it, whatever the clocks of the processes show.
    Column("received_at", UtcMicroseconds),
)

password_links = Table(
    "password_links",
    metadata,
    # SHA-256 of the token, which exists only in the link.
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
    # When it began; NULL in sessions of versions where that was always the same.
    Column("started_at", UtcMicroseconds),
    # The ID token of a login at the identity provider, which its logout asks for.
    Column("id_token", Text),
    # Its session there (`sid`), if the ID token names one; when that ends, so does this one.
    Column("provider_sid", String(255)),
    # Monotonic, written in batches: idle time is measured to the minute.
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
    # Such as "key.created". No column holds a secret.
    Column("action", String(64), nullable=False),
    Column("actor_id", String(32)),
    # "interactive", "api_key", "system" or "none".
    Column("credential_kind", String(16), nullable=False),
    # The key's id or the session's id.
    Column("credential_id", String(32)),
    Column("target", String(64)),
    Column("address", String(64)),
    Column("details", JSON, nullable=False),
    # The log is listed by time: for each filter an index has its entries in that order.
    Index(None, "actor_id", "at", "id"),
    Index(None, "target", "at", "id"),
    Index(None, "action", "at", "id"),
    Index(None, "credential_id", "at", "id"),
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
    # The number of its newest run; NULL until the first run that has one.
    Column("last_run_number", BigInteger),
    Index(None, "owner_id", "created_at", "id"),
    Index(None, "created_at", "id"),
)

runs = Table(
    "runs",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("task_id", String(32), ForeignKey("tasks.id"), nullable=False),
    # 1, 2, 3 … for each task; NULL in runs of the first nine revisions.
    Column("number", BigInteger),
    # A copy of the task's: limits per user and visibility need no join.
    Column("owner_id", String(32), ForeignKey("users.id"), nullable=False),
    Column("state", String(16), nullable=False),
    Column("attempt", Integer, nullable=False, server_default=text("0")),
    # {"user_id", "username", "credential": {"kind", "key_id", "key_name"}} of the requester.
    Column("requested_by", JSON, nullable=False),
    # The task's handler, params and timeout at the time of the request.
    Column("handler", String(64), nullable=False),
    Column("params", JSON, nullable=False),
    Column("timeout_seconds", Integer, nullable=False),
    Column("created_at", UtcMicroseconds, nullable=False),
    Column("started_at", UtcMicroseconds),
    Column("finished_at", UtcMicroseconds),
    Column("exit_code", Integer),
    Column("error", Text),
    Column("cancel_requested_at", UtcMicroseconds),
    # The worker that holds it, and until when; other workers reclaim a dead worker's run.
    Column("claimed_by", String(64)),
    Column("lease_expires_at", UtcMicroseconds),
    # The size of what is in `run_log`.
    Column("log_bytes", Integer, nullable=False, server_default=text("0")),
    # The beginning of the output, which is not kept.
    Column("log_missing_bytes", BigInteger, nullable=False, server_default=text("0")),
    Column("log_missing_lines", BigInteger, nullable=False, server_default=text("0")),
    # Of an owner's own runs the lowest is acquired first, then the oldest.
    Column("rank", Integer, nullable=False, server_default=text("0")),
    # The present attempt's latest progress report: a fraction from 0 to 1, and a few words.
    Column("progress", Float),
    Column("progress_text", String(200)),
    # When the next report of its failure is due; NULL if none is. See `task_service.failure_webhook`.
    Column("report_due_at", UtcMicroseconds),
    Index(
        None,
        "report_due_at",
        sqlite_where=text("report_due_at IS NOT NULL"),
        postgresql_where=text("report_due_at IS NOT NULL"),
    ),
    Index(None, "created_at", "id"),
    Index(None, "owner_id", "created_at", "id"),
    Index(None, "task_id", "created_at", "id"),
    Index(None, "task_id", "state", "created_at", "id"),
    Index(None, "state", "created_at"),
    Index(None, "state", "owner_id", "rank", "created_at", "id"),
)

owner_turns = Table(
    "owner_turns",
    metadata,
    # The number of the latest turn of an owner to have a run started; see `task_service.tasks.next_run`.
    Column("owner_id", String(32), ForeignKey("users.id"), primary_key=True),
    Column("turn", BigInteger, nullable=False, index=True),
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
    # As sent; of a limited API key its id, a space, and the value's SHA-256.
    Column("key", String(255), primary_key=True),
    # The same key for another task is a conflict.
    Column("task_id", String(32), nullable=False),
    Column("run_id", String(32), nullable=False),
    Column("created_at", UtcMicroseconds, nullable=False, index=True),
)


def _key_id() -> Column[str]:
    # Compared by code point everywhere, as the library does.
    exact = String(64).with_variant(String(64, collation="C"), "postgresql")
    return Column("key_id", exact, primary_key=True)


# What keys did, named when the library counted it. The keys may be deleted.
key_activity = Table(
    "msk_auth_api_keys_activity",
    metadata,
    _key_id(),
    # In UTC.
    Column("day", Date, primary_key=True, index=True),
    Column("accepted", BigInteger, nullable=False),
    Column("refused", BigInteger, nullable=False),
)

key_last_requests = Table(
    "msk_auth_api_keys_last_requests",
    metadata,
    _key_id(),
    Column("at", UtcMicroseconds, nullable=False, index=True),
    Column("route", Text),
    Column("address", Text),
    Column("user_agent", Text),
)

login_attempts = Table(
    "login_attempts",
    metadata,
    # A keyed digest of account and address: users mistakenly type their password as the name.
    Column("key", String(128), primary_key=True),
    Column("attempts", Integer, nullable=False),
    Column("expires_at", UtcMicroseconds, nullable=False, index=True),
)

secret_checks = Table(
    "secret_checks",
    metadata,
    # The id of a pepper or a token key in `secrets.json`, and a fingerprint to compare it between processes.
    Column("pepper_id", String(255), primary_key=True),
    Column("fingerprint", String(64), nullable=False),
)

deployment = Table(
    "deployment",
    metadata,
    # A property of the deployment, such as "id".
    Column("name", String(64), primary_key=True),
    Column("value", String(255), nullable=False),
    Column("noted_at", UtcMicroseconds, nullable=False),
)

schema_works_with = Table(
    "schema_works_with",
    metadata,
    # A revision of this schema, and the newest revision known to older code that also works with it.
    Column("revision", String(32), primary_key=True),
    Column("code", String(32), primary_key=True),
)

queue_migrations = Table(
    "queue_migrations",
    metadata,
    # The migrations of procrastinate's own tables that this database has; empty on SQLite.
    Column("name", String(255), primary_key=True),
)
