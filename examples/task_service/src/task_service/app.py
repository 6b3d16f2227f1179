"""The whole service, put together: which part is given which, and what starts and ends with it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib.metadata import version
from typing import Final, cast

from argon2 import Parameters
from fastapi import APIRouter, FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Scope

from msk_auth import (
    AsyncAuthenticator,
    Clock,
    ConfigurationError,
    CredentialUsed,
    Event,
    KeyHasher,
    NotFound,
    Problem,
    Refusal,
    StoreUnavailable,
    SystemClock,
    TokenProfile,
)
from msk_auth.integrations.fastapi import FastAPIAuth

from . import background
from .accounts.attempts import DatabaseAttempts, RedisAttempts
from .accounts.audit import Audit
from .accounts.config import MAX_SESSION_LIFETIME, ConfigStore
from .accounts.invitations import Invitations
from .accounts.login import Login
from .accounts.passwords import OWASP, Passwords
from .accounts.sessions import Sessions
from .accounts.throttle import LEAK_REPORTS, REVOCATIONS, LoginThrottle, PublicThrottle
from .accounts.users import User, Users
from .accounts.witnessed_keys import WitnessedAuthenticator, WitnessedKeyStore
from .api.admin import admin_router
from .api.auth import auth_router
from .api.health import health_router
from .api.key_trail import key_trail_router
from .api.leaks import GitHubKeys, leak_routers
from .api.runs import runs_router
from .api.tasks import tasks_router
from .db.engine import Database
from .db.migrate import migrate
from .deployment import deployment_id
from .errors import MethodNotAllowed
from .forwarders import Forwarders
from .handlers import HandlerEnvironment, HandlerRegistry
from .handlers.command import refuse_unconfined
from .handlers.outbound import OutboundPolicy
from .handlers.sandbox import CommandSandbox
from .ids import new_id
from .machines import Queue, listen_to_queue, queue_of
from .middleware import BodyLimit, HeadAsGet, LoginCookie, Observed, RequestLimit, SecurityHeaders
from .observability import Metrics
from .request_record import current_request
from .secrets_file import load_or_create_secrets
from .server import is_loopback
from .settings import Settings
from .shared_secrets import agree_on_secrets
from .tasks.notifications import LocalEvents
from .tasks.run_log import LogReader
from .tasks.runner import Runner
from .tasks.runs import Runs
from .tasks.status import RunCounts, StatusReport, WorkerStatus
from .tasks.tasks import Tasks
from .web.page_logins import PageLogins
from .web.pages import pages_router

_log = logging.getLogger(__name__)

AUDIENCE: Final = "task-service"
"""What the `aud` of login tokens begins with; the id of the deployment follows."""
ISSUER: Final = AUDIENCE
"""Not the origin: processes that share a data folder take each other's logins, whichever port each one listens on."""

_UNROUTED: Final[Mapping[int, type[Problem]]] = {404: NotFound, 405: MethodNotAllowed}

RUN_GRACE: Final = timedelta(seconds=5)
"""How long runs may go on when the service stops; then they go back into the queue."""

_RUNNER_PAUSE_SECONDS: Final = 5.0
_PURGE_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Worker:
    """What executes runs: the whole of a `task-service worker`, and a part of a process that serves.

    It is given no secret: neither the pepper of the keys nor the signing keys of logins are in a worker's memory.
    """

    settings: Settings
    db: Database
    registry: HandlerRegistry
    events: LocalEvents
    queue: Queue
    runner: Runner
    config: ConfigStore
    command_sandbox: CommandSandbox
    serving: bool

    @classmethod
    def build(cls, settings: Settings, *, clock: Clock | None = None) -> Worker:
        """A worker beside processes that serve. Reads and makes nothing in the data folder, and connects to nothing.

        Args:
            settings: What is fixed while it runs.
            clock: Where the time comes from; the machine's own by default.

        Raises:
            ConfigurationError: Something in the settings cannot be used.
        """
        clock = SystemClock() if clock is None else clock
        db = Database.open(settings.database_url)
        config = ConfigStore(db, clock, audit=Audit(db, clock))
        return cls.on(db, config, settings, clock, _command_sandbox(settings), serving=False)

    @classmethod
    def on(
        cls,
        db: Database,
        config: ConfigStore,
        settings: Settings,
        clock: Clock,
        command_sandbox: CommandSandbox,
        *,
        serving: bool,
    ) -> Worker:
        """A worker on a database that is open already.

        Args:
            db: Where the runs are.
            config: The administrator's configuration.
            settings: As :meth:`build`.
            clock: As :meth:`build`.
            command_sandbox: What its commands run in.
            serving: Whether this process serves the API. One that does leaves runs to workers where there are any,
                unless its settings say otherwise.

        Raises:
            ConfigurationError: As :meth:`build`.
        """

        async def allowed_commands() -> tuple[str, ...]:
            return (await config.current()).allowed_commands

        registry = HandlerRegistry.load(
            HandlerEnvironment(allowed_commands, settings.http_allowed_networks, command_sandbox)
        )
        events = LocalEvents()
        queue = queue_of(settings, db, serving=serving)
        runner = Runner(
            db,
            clock,
            registry,
            config,
            events,
            concurrency=settings.workers,
            notifier=queue.notifier,
            should_acquire=queue.should_acquire,
        )
        return cls(settings, db, registry, events, queue, runner, config, command_sandbox, serving)

    async def check_commands(self) -> None:
        """Refuse to execute commands that this machine cannot keep from the service's secrets.

        Raises:
            ConfigurationError: The administrator allows one; the message says which, and what to do.
            StoreUnavailable: The database cannot answer.
        """
        if self.serving and self.settings.execute_runs == "never":
            return
        allowed = (await self.config.current()).allowed_commands
        refusal = refuse_unconfined(allowed, self.command_sandbox)
        if refusal is not None:
            raise ConfigurationError(refusal)

    async def execute_runs(self, stop: asyncio.Event, grace: timedelta | None = None) -> None:
        """Be a worker until `stop` is set; runs then get `grace`, which is :data:`RUN_GRACE` by default.

        A process that serves and shall execute nothing only waits.
        """
        if self.serving and self.settings.execute_runs == "never":
            await stop.wait()
            return
        stopping = asyncio.create_task(stop.wait(), name="stop of the runner")
        listening = listen_to_queue(self.settings, self.runner, stop, serving=self.serving)
        try:
            while not stop.is_set():
                working = asyncio.create_task(self.runner.run(), name="runner")
                await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if working.done():
                    # Only a mistake ends it. Its runs are taken over like those of any worker that died.
                    _log.error("the runner failed; starting it again", exc_info=working.exception())
                    await asyncio.wait({stopping}, timeout=_RUNNER_PAUSE_SECONDS)
                else:
                    self.runner.stop(RUN_GRACE if grace is None else grace)
                    await working
        finally:
            stopping.cancel()
            if listening is not None:
                await listening


@dataclass(frozen=True, slots=True)
class Services:
    """Everything that a process which serves is made of, for its routes, its command line and its tests."""

    settings: Settings
    clock: Clock
    db: Database
    attempts: DatabaseAttempts
    redis: RedisAttempts | None
    forwarders: Forwarders
    fingerprints: Mapping[str, str]
    tokens: TokenProfile
    metrics: Metrics
    audit: Audit
    config: ConfigStore
    passwords: Passwords
    users: Users
    invitations: Invitations
    sessions: Sessions
    login: Login
    key_store: WitnessedKeyStore
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
        """Put the parts together. Makes the data folder and the secrets if they are missing, and connects to nothing.

        Args:
            settings: What is fixed while the service runs.
            clock: Where the time comes from; the machine's own by default.
            password_hashing: Argon2's cost; tests take less.

        Raises:
            ConfigurationError: Something in the settings or the data folder cannot be used.
        """
        clock = SystemClock() if clock is None else clock
        settings.create_data_dir()
        secrets = load_or_create_secrets(settings.data_dir, clock.now())
        tokens = TokenProfile(
            issuer=ISSUER,
            # Of no deployment: until `join_deployment` has read which one this is, no login is accepted.
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
        passwords = Passwords(password_hashing, concurrency=settings.hash_concurrency)
        sandbox = _command_sandbox(settings)
        config = ConfigStore(
            db,
            clock,
            audit=audit,
            await_lease_expiry=await_lease_expiry,
            # Workers elsewhere judge by their own machine.
            command_sandbox=None if settings.execute_runs == "never" else sandbox,
        )
        users = Users(
            db, clock, audit=audit, passwords=passwords, await_lease_expiry=await_lease_expiry
        )
        invitations = Invitations(
            db,
            clock,
            users=users,
            audit=audit,
            passwords=passwords,
            await_lease_expiry=await_lease_expiry,
        )
        sessions = Sessions(
            db, clock, tokens=tokens, audit=audit, await_lease_expiry=await_lease_expiry
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
        )
        key_store = WitnessedKeyStore(db.engine, audit)
        authenticator = WitnessedAuthenticator(
            key_store,
            find_owner=users.find_owner,
            tokens=tokens,
            find_session=sessions.find_session,
            key_limits=config.key_limits,
            hasher=KeyHasher(secrets.peppers),
            on_event=_Hook(seen=sessions.seen, refused=metrics.refused),
            realm=AUDIENCE,
            clock=clock,
            lease=timedelta(milliseconds=settings.lease_ms) if settings.lease_ms else None,
        )

        worker = Worker.on(db, config, settings, clock, sandbox, serving=True)
        runs = Runs(
            db,
            clock,
            config,
            worker.events,
            notifier=worker.queue.notifier,
            on_change=audit.witness,
        )
        return cls(
            settings=settings,
            clock=clock,
            db=db,
            attempts=attempts,
            redis=redis,
            forwarders=Forwarders(db, clock),
            fingerprints=secrets.fingerprints,
            tokens=tokens,
            metrics=metrics,
            audit=audit,
            config=config,
            passwords=passwords,
            users=users,
            invitations=invitations,
            sessions=sessions,
            login=login,
            key_store=key_store,
            authenticator=authenticator,
            registry=worker.registry,
            worker=worker,
            tasks=Tasks(db, clock, worker.registry, worker.events, on_change=audit.witness),
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
        """Give back what :meth:`build` and the work since then have opened."""
        self.passwords.close()
        if self.redis is not None:
            await self.redis.close()
        await self.key_store.aclose()
        await self.db.close()

    async def join_deployment(self) -> None:
        """Agree on the secrets with the other processes on the database, and name this deployment in login tokens.

        Raises:
            ConfigurationError: Other processes have other secrets.
            StoreUnavailable: The database cannot answer.
        """
        await self.agree_on_secrets()
        self.tokens.audience = _audience_of(await deployment_id(self.db, self.clock.now()))

    async def agree_on_secrets(self) -> None:
        """See :func:`~task_service.shared_secrets.agree_on_secrets`; on SQLite there is one data folder and no question.

        Raises:
            ConfigurationError: Other processes have other secrets.
        """
        if not self.settings.on_sqlite:
            await agree_on_secrets(self.db, self.fingerprints)


def _command_sandbox(settings: Settings) -> CommandSandbox:
    required = settings.command_sandbox == "required"
    return CommandSandbox.hiding(settings.private_paths, required=required)


def _audience_of(deployment: str) -> str:
    return f"{AUDIENCE}:{deployment}"


def create_app(
    settings: Settings, *, clock: Clock | None = None, password_hashing: Parameters = OWASP
) -> FastAPI:
    """The service as an ASGI application; its parts are at `app.state.services`.

    Its lifespan brings the database to this version, executes runs, and ends all of that in order. Whoever serves it
    may set `app.state.services.stopping` first, so that streams end before their connections are waited for.

    Args:
        settings: What is fixed while the service runs.
        clock: Where the time comes from; the machine's own by default.
        password_hashing: Argon2's cost; tests take less.

    Raises:
        ConfigurationError: As :meth:`Services.build`.
    """
    services = Services.build(settings, clock=clock, password_hashing=password_hashing)
    # The documentation pages of FastAPI load scripts from elsewhere. A path with a slash too many is a wrong path:
    # redirecting it would send credentials after whatever name the request gave.
    app = FastAPI(
        title="Task service",
        version=version("task-service"),
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_lifespan,
    )
    app.state.services = services
    auth = FastAPIAuth(services.authenticator)
    auth.install(app, errors="all")
    routers = _routers(services, auth)
    for router in routers:
        app.include_router(router)
    _surround(app, services, routers)
    return app


def _routers(it: Services, auth: FastAPIAuth[User]) -> tuple[APIRouter, ...]:
    return (
        auth_router(auth, it.login, it.sessions, it.invitations),
        auth.key_routes(prefix="/api/keys"),
        key_trail_router(auth, it.audit),
        tasks_router(auth, it.tasks, it.runs, it.registry),
        runs_router(auth, it.runs, it.logs, stopping=it.stopping),
        admin_router(
            auth,
            it.config,
            it.users,
            it.invitations,
            it.audit,
            it.sessions,
            it.status,
            base_url=it.settings.base_url,
        ),
        *_leak_routers(it, auth),
        health_router(it.db, it.metrics, it.run_counts, it.tokens),
        pages_router(PageLogins(auth, it.login), key_limits=it.config.key_limits),
    )


def _leak_routers(it: Services, auth: FastAPIAuth[User]) -> tuple[APIRouter, ...]:
    storage = it.attempts if it.redis is None else it.redis
    outbound = OutboundPolicy(it.settings.http_allowed_networks)
    return leak_routers(
        auth,
        GitHubKeys(it.settings.github_keys_url, outbound),
        revocations=PublicThrottle("revoke", REVOCATIONS, clock=it.clock, storage=storage),
        reports=PublicThrottle("leaks", LEAK_REPORTS, clock=it.clock, storage=storage),
    )


def _surround(app: FastAPI, it: Services, routers: Sequence[APIRouter]) -> None:
    templates: dict[object, str] = {
        route.endpoint: route.path
        for router in routers
        for route in router.routes
        if isinstance(route, Route)
    }

    def route_of(scope: Scope) -> str | None:
        return templates.get(scope.get("endpoint"))

    async def answer(request: Request, problem: Problem) -> Response:
        rendered = app.exception_handlers[Problem](request, problem)
        return await cast("Awaitable[Response]", rendered)

    render = app.exception_handlers[HTTPException]

    async def answer_unrouted(request: Request, error: Exception) -> Response:
        # What the routing raises has no code of its own; clients tell a wrong path from a task that is not there.
        kind = _UNROUTED.get(cast("HTTPException", error).status_code)
        if kind is None:
            return await cast("Awaitable[Response]", render(request, error))
        response = await answer(request, kind())
        response.headers.update(cast("HTTPException", error).headers or {})
        return response

    app.add_exception_handler(HTTPException, answer_unrouted)
    base_url = it.settings.base_url
    # The last one is the outermost.
    app.add_middleware(LoginCookie, base_url=base_url, loopback=is_loopback(it.settings.host))
    app.add_middleware(BodyLimit)
    app.add_middleware(HeadAsGet)
    app.add_middleware(RequestLimit)
    app.add_middleware(
        Observed,
        clock=it.clock,
        metrics=it.metrics,
        trusted_proxies=it.settings.trusted_proxies,
        untrusted_forwarder=it.forwarders.notice,
        route_of=route_of,
        answer=answer,
    )
    app.add_middleware(SecurityHeaders, https=base_url.startswith("https://"))


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncGenerator[None]:
    services: Services = app.state.services
    await migrate(services.db)
    await services.join_deployment()
    await services.worker.check_commands()
    stop = asyncio.Event()
    async with services.sessions, services.audit.backlog:
        purging = background.begin(purge_periodically(services), name="purge")
        noting = background.begin(services.forwarders.write_for_ever(), name="forwarders")
        working = asyncio.create_task(services.worker.execute_runs(stop), name="runs")
        try:
            yield
        finally:
            services.stopping.set()
            stop.set()
            await background.end(noting)
            await background.end(purging)
            await working
    await services.close()


async def purge_periodically(services: Services) -> None:
    """Delete expired sessions, links and throttle windows, and old audit entries, once an hour until cancelled."""
    days = services.settings.audit_retention_days
    while True:
        try:
            await services.sessions.purge()
            await services.attempts.purge()
            if days is not None:
                await _purge_audit(services.audit, services.clock, days)
        except StoreUnavailable:
            _log.warning("the database did not answer, so nothing was purged; trying again later")
        await asyncio.sleep(_PURGE_SECONDS)


async def _purge_audit(audit: Audit, clock: Clock, days: int) -> None:
    deleted = await audit.purge(before=clock.now() - timedelta(days=days))
    if deleted:
        _log.info("deleted %d entries of the audit log that are older than %d days", deleted, days)


class _Hook:
    """The authenticator's hook, called for every request: it notes and counts, and never waits or writes.

    What happens to keys is written down where it happens: see :mod:`task_service.accounts.witnessed_keys`.

    Args:
        seen: Told that a login session was used: `(session_id, at)`.
        refused: Told the code of each refused credential.
    """

    def __init__(
        self, *, seen: Callable[[str, datetime], None], refused: Callable[[str], None]
    ) -> None:
        self._seen = seen
        self._refused = refused

    def __call__(self, event: Event) -> None:
        if isinstance(event, CredentialUsed):
            record = current_request.get()
            if record is not None:
                record.principal = event.principal
            if event.principal.session_id is not None:
                self._seen(event.principal.session_id, event.at)
        elif isinstance(event, Refusal):
            self._refused(event.code)
