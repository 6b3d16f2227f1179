"""Builds the parts of a process that serves, and connects them, from the database upwards."""

from __future__ import annotations

import asyncio
import hmac
from datetime import timedelta

from argon2 import Parameters

from msk_auth import Clock, SystemClock

from .accounts.audit import Audit
from .accounts.changes import Accounts
from .accounts.config import ConfigStore
from .accounts.departures import Departures
from .accounts.invitations import Invitations
from .accounts.key_activity import KeyActivity
from .accounts.key_audit import KeyAudit
from .accounts.key_list import KeyList
from .accounts.login import Login
from .accounts.login_methods import LoginMethods
from .accounts.passwords import OWASP, Passwords
from .accounts.service_accounts import ServiceAccounts
from .accounts.sessions import Sessions
from .accounts.throttle import (
    REFUSED_LOGINS,
    STRAY_ANSWERS,
    Attempts,
    LoginThrottle,
    PublicThrottle,
)
from .accounts.users import Users
from .authentication import audience_of, build_authenticator, key_store, token_profile
from .db.engine import Database
from .deployment import agree_on_secrets, deployment_id
from .failure_webhook import FailureWebhook
from .observability import Metrics, free_bytes
from .provider_login import OidcLogin
from .secrets_file import load_or_create_secrets
from .settings import Settings
from .tasks.run_log import LogReader
from .tasks.runs import Runs
from .tasks.status import StatusReport, WorkerStatus
from .tasks.tasks import Tasks
from .worker import Worker


class Services:
    """The parts of a process that serves, for its routes, its command line and its tests.

    The constructor makes the data folder and the secrets if they are missing, and opens no connection.

    Args:
        settings: The settings.
        clock: The clock; the machine's own by default.
        password_hashing: Argon2's cost; tests use less.

    Raises:
        ConfigurationError: A setting, the data folder or the secrets in it are invalid.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock | None = None,
        password_hashing: Parameters = OWASP,
    ) -> None:
        self.settings = settings
        self.clock = clock = SystemClock() if clock is None else clock
        self.stopping = asyncio.Event()
        settings.create_data_dir()
        secrets = load_or_create_secrets(settings.data_dir, clock.now())
        self._secrets = secrets

        # The database, its keys, and the records of requests.
        self.db = db = Database.open(settings.database_url)
        self.metrics = Metrics()
        self.audit = Audit(db, clock, left_out=self.metrics.audit_left_out.inc)
        key_audit = KeyAudit(db, self.audit)
        self.key_store = key_store(db, key_audit)
        self.metrics.connections.set_function(db.connections_in_use)
        self.metrics.data_folder_free.set_function(lambda: free_bytes(settings.data_dir))

        # Accounts: users, sessions, and the configuration that administrators change.
        accounts = Accounts(db, clock, self.audit, self._await_lease_expiry)
        methods = LoginMethods(settings.password_login == "on", settings.oidc_issuer)
        self.passwords = Passwords(password_hashing, concurrency=settings.hash_concurrency)
        self.tokens = token_profile(secrets.token_keys)
        permits = settings.commands == "listed" or settings.leaves_runs
        self.config = ConfigStore(accounts, permits_listed_commands=permits)
        self.users = Users(accounts, passwords=self.passwords, methods=methods)
        self.service_accounts = ServiceAccounts(accounts=accounts)
        self.invitations = Invitations(
            accounts=accounts,
            users=self.users,
            passwords=self.passwords,
            base_url=settings.base_url,
            passwords_on=methods.passwords,
        )
        self.sessions = Sessions(accounts, tokens=self.tokens, methods=methods)

        # API keys, and the authenticator of all requests.
        self.keys = KeyList(db, clock)
        self.key_activity = KeyActivity(db, clock, self.config)
        self.authenticator = build_authenticator(
            self.key_store,
            self.tokens,
            secrets,
            clock,
            lease=timedelta(milliseconds=settings.lease_ms) if settings.lease_ms else None,
            users=self.users,
            sessions=self.sessions,
            config=self.config,
            metrics=self.metrics,
            audit=key_audit,
        )

        self.departures = Departures(accounts, self.users, self.authenticator)

        # Logins, by password and at an identity provider.
        self.attempts = Attempts(db, clock)
        self.login = Login(
            accounts=accounts,
            users=self.users,
            sessions=self.sessions,
            passwords=self.passwords,
            config=self.config,
            throttle=LoginThrottle(self.attempts, key=secrets.throttle_key),
            passwords_on=methods.passwords,
        )
        self.pending_login_key = hmac.digest(secrets.throttle_key, b"pending", "sha256").hex()
        self.oidc = None
        if settings.oidc_issuer is not None:
            self.oidc = OidcLogin(
                settings.oidc_issuer,
                settings,
                accounts=accounts,
                users=self.users,
                sessions=self.sessions,
                config=self.config,
                refusals=self.throttle("provider", REFUSED_LOGINS),
                strays=self.throttle("stray", STRAY_ANSWERS),
            )

        # Tasks and their runs, which this process may execute.
        self.worker = worker = Worker(
            db,
            self.config,
            settings,
            clock,
            secrets.parameter_keys,
            serving=True,
            observer=self.metrics.runs,
        )
        self.tracing = worker.tracing
        self.parameters = parameters = worker.parameters
        self.registry = parameters.registry
        self.tasks = Tasks(accounts, parameters)
        self.runs = Runs(accounts, self.config, worker.notifications, parameters)
        self.logs = LogReader(db, worker.notifications, clock)
        self.failure_webhook = None
        if settings.failure_webhook_url is not None and settings.failure_webhook_secret is not None:
            self.failure_webhook = FailureWebhook(
                db,
                clock,
                url=settings.failure_webhook_url,
                secret=settings.failure_webhook_secret,
                base_url=settings.base_url,
            )
        self.status = StatusReport(
            db,
            WorkerStatus(id=worker.runner.worker_runs.worker_id, concurrency=settings.workers),
            started_at=clock.now(),
            verification_lease_ms=settings.lease_ms,
        )

    def throttle(self, purpose: str, most: int) -> PublicThrottle:
        """A limit for the requests of each client address: see :class:`PublicThrottle`."""
        return PublicThrottle(purpose, most, self.attempts)

    async def _await_lease_expiry(self) -> None:
        await self.authenticator.await_lease_expiry()

    async def close(self) -> None:
        """Close the connections and stop the threads."""
        self.passwords.close()
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
        self.tokens.audience = audience_of(await deployment_id(self.db, self.clock.now()))

    async def agree_on_secrets(self) -> None:
        """See :func:`~task_service.deployment.agree_on_secrets`; does nothing on SQLite.

        Raises:
            ConfigurationError: Other processes have other secrets.
            StoreUnavailable: The database does not answer.
        """
        if not self.settings.on_sqlite:
            await agree_on_secrets(self.db, self._secrets.fingerprints, self._secrets.in_use)
