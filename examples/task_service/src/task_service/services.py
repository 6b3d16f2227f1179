"""Builds everything that a process which serves consists of, and connects the parts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from argon2 import Parameters

from msk_auth import (
    AsyncAuthenticator,
    Clock,
    KeyHasher,
    SystemClock,
    TokenProfile,
)
from msk_auth.events import CredentialUsed, Event, KeyLeaked, Refusal
from msk_auth.stores.sqlalchemy import AsyncSQLAlchemyKeyStore

from .accounts.attempts import DatabaseAttempts, RedisAttempts
from .accounts.audit import Audit
from .accounts.config import MAX_SESSION_LIFETIME, ConfigStore
from .accounts.invitations import Invitations
from .accounts.key_audit import KeyAudit
from .accounts.key_list import KeyList
from .accounts.login import Login
from .accounts.login_methods import LoginMethods
from .accounts.oidc import OidcLogin, Provider
from .accounts.passwords import OWASP, Passwords
from .accounts.service_accounts import ServiceAccounts, may_act_for
from .accounts.sessions import Sessions
from .accounts.throttle import REFUSED_LOGINS, STRAY_ANSWERS, LoginThrottle, PublicThrottle
from .accounts.users import User, Users
from .claim_rule import ClaimRule
from .db import schema
from .db.engine import Database
from .deployment import agree_on_secrets, deployment_id
from .handlers import HandlerRegistry
from .ids import new_id
from .observability import Metrics
from .request_record import current_request
from .secrets_file import load_or_create_secrets
from .settings import Settings
from .tasks.run_log import LogReader
from .tasks.runs import Runs
from .tasks.status import RunCounts, StatusReport, WorkerStatus
from .tasks.tasks import Tasks
from .trusted_proxies import UntrustedProxies
from .worker import Worker, command_sandbox_of

if TYPE_CHECKING:
    from .tracing import Tracing

AUDIENCE: Final = "task-service"
"""The beginning of the `aud` of login tokens; the id of the deployment follows."""
ISSUER: Final = AUDIENCE
"""Not the origin: processes that share a data folder accept each other's logins, whatever port each one listens on."""


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of a process that serves, for its routes, its command line and its tests."""

    settings: Settings
    clock: Clock
    db: Database
    attempts: DatabaseAttempts
    redis: RedisAttempts | None
    untrusted_proxies: UntrustedProxies
    fingerprints: Mapping[str, str]
    tokens: TokenProfile
    metrics: Metrics
    tracing: Tracing | None
    audit: Audit
    config: ConfigStore
    passwords: Passwords
    users: Users
    service_accounts: ServiceAccounts
    invitations: Invitations
    sessions: Sessions
    login: Login
    oidc: OidcLogin | None
    key_store: AsyncSQLAlchemyKeyStore
    keys: KeyList
    authenticator: AsyncAuthenticator[User]
    registry: HandlerRegistry
    worker: Worker
    tasks: Tasks
    runs: Runs
    logs: LogReader
    run_counts: RunCounts
    status: StatusReport
    stopping: asyncio.Event

    @classmethod
    def build(
        cls,
        settings: Settings,
        *,
        clock: Clock | None = None,
        password_hashing: Parameters = OWASP,
    ) -> Services:
        """Build the parts. Makes the data folder and the secrets if they are missing, and connects to nothing.

        Args:
            settings: What is fixed while the service runs.
            clock: Where the time comes from; the machine's own by default.
            password_hashing: Argon2's cost; tests use less.

        Raises:
            ConfigurationError: A setting, the data folder or the secrets in it are invalid.
        """
        clock = SystemClock() if clock is None else clock
        settings.create_data_dir()
        secrets = load_or_create_secrets(settings.data_dir, clock.now())
        tokens = TokenProfile(
            issuer=ISSUER,
            # No deployment's audience: no login is accepted until `join_deployment` has read the id.
            audience=_audience_of(new_id("none")),
            keys=secrets.token_keys,
            max_lifetime=MAX_SESSION_LIFETIME,
        )
        db = Database.open(settings.database_url)

        async def await_lease_expiry() -> None:
            await authenticator.await_lease_expiry()

        attempts = DatabaseAttempts(db, clock)
        redis = None
        if settings.redis_url is not None:
            redis = RedisAttempts(settings.redis_url, clock, attempts)
        metrics = Metrics()
        audit = Audit(db, clock, left_out=metrics.audit_entry_left_out)
        metrics.watch_audit_backlog(audit.backlog.__len__)
        metrics.watch_connections(db.connections_in_use)
        passwords = Passwords(password_hashing, concurrency=settings.hash_concurrency)
        sandbox = command_sandbox_of(settings)
        config = ConfigStore(
            db,
            clock,
            audit=audit,
            await_lease_expiry=await_lease_expiry,
            # Other workers check the commands on their own machines.
            command_sandbox=None if settings.execute_runs == "never" else sandbox,
        )
        methods = LoginMethods(settings.password_login == "on", settings.oidc_issuer)
        users = Users(
            db,
            clock,
            audit=audit,
            passwords=passwords,
            await_lease_expiry=await_lease_expiry,
            methods=methods,
        )
        invitations = Invitations(
            db,
            clock,
            users=users,
            audit=audit,
            passwords=passwords,
            await_lease_expiry=await_lease_expiry,
            passwords_on=methods.passwords,
        )
        sessions = Sessions(
            db,
            clock,
            tokens=tokens,
            audit=audit,
            await_lease_expiry=await_lease_expiry,
            methods=methods,
        )
        login = Login(
            db,
            clock,
            users=users,
            sessions=sessions,
            passwords=passwords,
            config=config,
            audit=audit,
            throttle=LoginThrottle(clock, redis or attempts, key=secrets.throttle_key),
            await_lease_expiry=await_lease_expiry,
            passwords_on=methods.passwords,
        )
        provider = _provider_of(settings)
        oidc = None
        if provider is not None:
            oidc = OidcLogin(
                provider,
                base_url=settings.base_url,
                db=db,
                clock=clock,
                users=users,
                sessions=sessions,
                config=config,
                audit=audit,
                refusals=PublicThrottle(
                    "provider", REFUSED_LOGINS, clock=clock, storage=redis or attempts
                ),
                strays=PublicThrottle(
                    "stray", STRAY_ANSWERS, clock=clock, storage=redis or attempts
                ),
                await_lease_expiry=await_lease_expiry,
            )
        key_audit = KeyAudit(db, audit)
        key_store = AsyncSQLAlchemyKeyStore(
            db.engine,
            schema.api_keys,
            on_change=key_audit.on_change,
            # What the engine does at a checkout is the same for every request.
            shares_reads=True,
        )
        db.read_through(key_store)
        authenticator = AsyncAuthenticator(
            key_store,
            find_owner=users.find_owner,
            tokens=tokens,
            find_session=sessions.find_session,
            may_act_for=may_act_for,
            key_limits=config.key_limits,
            activity=config.activity_settings,
            hasher=KeyHasher(secrets.peppers),
            on_event=_Hook(seen=sessions.seen, refused=metrics.refused, leaked=key_audit.on_leak),
            realm=AUDIENCE,
            clock=clock,
            lease=timedelta(milliseconds=settings.lease_ms) if settings.lease_ms else None,
        )

        worker = Worker.on(
            db, config, settings, clock, sandbox, serving=True, observer=metrics.runs
        )
        runs = Runs(
            db,
            clock,
            config,
            worker.events,
            notifier=worker.queue.notifier,
            on_change=audit.record_changes,
        )
        return cls(
            settings=settings,
            clock=clock,
            db=db,
            attempts=attempts,
            redis=redis,
            untrusted_proxies=UntrustedProxies(db, clock),
            fingerprints=secrets.fingerprints,
            tokens=tokens,
            metrics=metrics,
            tracing=worker.tracing,
            audit=audit,
            config=config,
            passwords=passwords,
            users=users,
            service_accounts=ServiceAccounts(
                db, clock, audit=audit, await_lease_expiry=await_lease_expiry
            ),
            invitations=invitations,
            sessions=sessions,
            login=login,
            oidc=oidc,
            key_store=key_store,
            keys=KeyList(db, clock),
            authenticator=authenticator,
            registry=worker.registry,
            worker=worker,
            tasks=Tasks(db, clock, worker.registry, worker.events, on_change=audit.record_changes),
            runs=runs,
            logs=LogReader(db, worker.events, clock),
            run_counts=RunCounts(db, clock),
            status=StatusReport(
                db,
                clock,
                worker=WorkerStatus(id=worker.runner.worker_id, concurrency=settings.workers),
                verification_lease_ms=settings.lease_ms,
                count_live_workers=worker.queue.count_live_workers,
            ),
            stopping=asyncio.Event(),
        )

    async def close(self) -> None:
        """Close the connections and stop the threads."""
        self.passwords.close()
        if self.redis is not None:
            await self.redis.close()
        await self.db.close()
        if self.tracing is not None:
            await self.tracing.close()

    async def join_deployment(self) -> None:
        """Check the secrets against the other processes on the database, and name this deployment in login tokens.

        Raises:
            ConfigurationError: Other processes have other secrets.
            StoreUnavailable: The database does not answer.
        """
        await self.agree_on_secrets()
        self.tokens.audience = _audience_of(await deployment_id(self.db, self.clock.now()))

    async def agree_on_secrets(self) -> None:
        """See :func:`~task_service.deployment.agree_on_secrets`; does nothing on SQLite.

        Raises:
            ConfigurationError: Other processes have other secrets.
            StoreUnavailable: The database does not answer.
        """
        if not self.settings.on_sqlite:
            await agree_on_secrets(self.db, self.fingerprints)


def _provider_of(settings: Settings) -> Provider | None:
    """The identity provider of the settings, if there is one."""
    if settings.oidc_issuer is None:
        return None
    administrators = settings.oidc_administrators
    return Provider(
        issuer=settings.oidc_issuer,
        client_id=settings.oidc_client_id,
        client_secret=settings.oidc_client_secret,
        name=settings.oidc_name or urlsplit(settings.oidc_issuer).netloc,
        users=ClaimRule.parse(settings.oidc_users),
        administrators=ClaimRule.parse(administrators) if administrators else None,
    )


def _audience_of(deployment: str) -> str:
    return f"{AUDIENCE}:{deployment}"


class _Hook:
    """The authenticator's hook, called for every request; for a request it works in memory only.

    Changes of keys are recorded in their own transactions: see :mod:`task_service.accounts.key_audit`.

    Args:
        seen: Called with each used login session: `(session_id, at)`.
        refused: Called with the code of each refused credential.
        leaked: Called with each report of a leaked key.
    """

    def __init__(
        self,
        *,
        seen: Callable[[str, datetime], None],
        refused: Callable[[str], None],
        leaked: Callable[[KeyLeaked], Awaitable[None]],
    ) -> None:
        self._seen = seen
        self._refused = refused
        self._leaked = leaked

    def __call__(self, event: Event) -> Awaitable[None] | None:
        if isinstance(event, CredentialUsed):
            record = current_request.get()
            if record is not None:
                record.principal = event.principal
            if event.principal.session_id is not None:
                self._seen(event.principal.session_id, event.at)
        elif isinstance(event, Refusal):
            self._refused(event.code)
        elif isinstance(event, KeyLeaked):
            return self._leaked(event)
        return None
