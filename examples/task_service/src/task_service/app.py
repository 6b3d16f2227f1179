"""The whole service, put together: which part is given which, and what starts and ends with it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import version
from typing import Final, cast

from argon2 import Parameters
from fastapi import APIRouter, FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Scope

from msk_auth import (
    AsyncAuthenticator,
    Clock,
    CredentialRefused,
    CredentialsMissing,
    CredentialUsed,
    Event,
    InteractiveRequired,
    KeyHasher,
    Problem,
    StoreUnavailable,
    SystemClock,
    TokenProfile,
    require_interactive,
)
from msk_auth.integrations.fastapi import FastAPIAuth
from msk_auth.stores.sqlalchemy import AsyncSQLAlchemyKeyStore

from .accounts.audit import Audit, AuditEvents
from .accounts.config import MAX_SESSION_LIFETIME, ConfigStore
from .accounts.invitations import Invitations
from .accounts.login import Login
from .accounts.passwords import OWASP, Passwords
from .accounts.sessions import Sessions
from .accounts.throttle import LoginThrottle
from .accounts.users import User, Users
from .api.admin import admin_router
from .api.auth import auth_router
from .api.health import health_router
from .api.key_trail import key_trail_router
from .api.runs import RECHECK, runs_router
from .api.tasks import tasks_router
from .api.trail import Trail
from .db.engine import Database
from .db.migrate import migrate
from .db.schema import api_keys
from .errors import SessionNotFound
from .handlers import HandlerEnvironment, HandlerRegistry
from .middleware import BodyLimit, HeadAsGet, LoginCookie, Observed, SecurityHeaders
from .observability import Metrics
from .request_record import current_request, request_address
from .secrets_file import load_or_create_secrets
from .server import is_loopback
from .settings import Settings
from .tasks.census import RunCensus
from .tasks.follow import LogFollower
from .tasks.runner import Runner
from .tasks.runs import Runs
from .tasks.signals import Signals
from .tasks.status import StatusReport, WorkerStatus
from .tasks.tasks import Tasks
from .web.pages import LoginResult, PageUser, pages_router

_log = logging.getLogger(__name__)

AUDIENCE: Final = "task-service"
ISSUER: Final = AUDIENCE
"""Not the origin: processes that share a data folder take each other's logins, whichever port each one listens on."""

RUN_GRACE: Final = timedelta(seconds=5)
"""How long runs may go on when the service stops; then they go back into the queue."""

_PURGE_SECONDS: Final = 3600.0
_RUNNER_PAUSE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Services:
    """Everything that the service is made of, for its routes, its command line and its tests."""

    settings: Settings
    clock: Clock
    db: Database
    tokens: TokenProfile
    metrics: Metrics
    audit: Audit
    config: ConfigStore
    passwords: Passwords
    users: Users
    invitations: Invitations
    sessions: Sessions
    login: Login
    key_store: AsyncSQLAlchemyKeyStore
    authenticator: AsyncAuthenticator[User]
    registry: HandlerRegistry
    tasks: Tasks
    runs: Runs
    runner: Runner
    follower: LogFollower
    census: RunCensus
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
            audience=AUDIENCE,
            keys=secrets.token_keys,
            max_lifetime=MAX_SESSION_LIFETIME,
        )
        db = Database.open(settings.database_url)

        async def access_narrowed() -> None:
            await authenticator.wait_out_leases()

        metrics = Metrics()
        audit = Audit(db, clock)
        passwords = Passwords(password_hashing, concurrency=settings.hash_concurrency)
        config = ConfigStore(db, clock, audit=audit, access_narrowed=access_narrowed)
        users = Users(db, clock, audit=audit, passwords=passwords, access_narrowed=access_narrowed)
        invitations = Invitations(
            db,
            clock,
            users=users,
            audit=audit,
            passwords=passwords,
            access_narrowed=access_narrowed,
        )
        sessions = Sessions(db, clock, tokens=tokens, audit=audit, access_narrowed=access_narrowed)
        login = Login(
            db,
            clock,
            users=users,
            sessions=sessions,
            passwords=passwords,
            config=config,
            audit=audit,
            throttle=LoginThrottle(clock),
            access_narrowed=access_narrowed,
        )
        key_store = AsyncSQLAlchemyKeyStore(db.engine, api_keys)
        authenticator = AsyncAuthenticator(
            key_store,
            find_owner=users.find_owner,
            tokens=tokens,
            find_session=sessions.find_session,
            key_limits=config.key_limits,
            hasher=KeyHasher(secrets.peppers),
            on_event=_Hook(AuditEvents(audit, seen=sessions.seen, refused=metrics.refused)),
            realm=AUDIENCE,
            clock=clock,
            lease=timedelta(milliseconds=settings.lease_ms) if settings.lease_ms else None,
        )

        async def allowed_commands() -> tuple[str, ...]:
            return (await config.current()).allowed_commands

        registry = HandlerRegistry.load(
            HandlerEnvironment(allowed_commands, settings.http_allowed_networks)
        )
        signals = Signals()
        runner = Runner(db, clock, registry, config, signals, concurrency=settings.workers)
        runs = Runs(db, clock, config, signals)
        return cls(
            settings=settings,
            clock=clock,
            db=db,
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
            registry=registry,
            tasks=Tasks(db, clock, registry, signals),
            runs=runs,
            runner=runner,
            # As often as a stream asks whether it may go on.
            follower=LogFollower(runs, signals, clock, heartbeat=RECHECK),
            census=RunCensus(db, clock),
            status=StatusReport(
                db,
                clock,
                worker=WorkerStatus(id=runner.worker_id, concurrency=settings.workers),
                verification_lease_ms=settings.lease_ms,
            ),
            stopping=asyncio.Event(),
        )

    async def close(self) -> None:
        """Give back what :meth:`build` and the work since then have opened."""
        self.passwords.close()
        await self.key_store.aclose()
        await self.db.close()

    async def execute_runs(self, stop: asyncio.Event) -> None:
        """Be a worker until `stop` is set; runs then get :data:`RUN_GRACE`."""
        stopping = asyncio.create_task(stop.wait(), name="stop of the runner")
        try:
            while not stop.is_set():
                working = asyncio.create_task(self.runner.run(), name="runner")
                await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if working.done():
                    # Only a mistake ends it. Its runs are taken over like those of any worker that died.
                    _log.error("the runner failed; starting it again", exc_info=working.exception())
                    await asyncio.wait({stopping}, timeout=_RUNNER_PAUSE_SECONDS)
                else:
                    self.runner.stop(RUN_GRACE)
                    await working
        finally:
            stopping.cancel()


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
    auth.install(app)
    routers = _routers(services, auth)
    for router in routers:
        app.include_router(router)
    _surround(app, services, routers)
    return app


def _routers(it: Services, auth: FastAPIAuth[User]) -> tuple[APIRouter, ...]:
    trail = Trail(it.audit)
    return (
        auth_router(auth, it.login, it.sessions, it.invitations),
        auth.key_routes(prefix="/api/keys"),
        key_trail_router(auth, it.audit),
        tasks_router(auth, it.tasks, it.runs, it.registry, trail),
        runs_router(auth, it.runs, it.follower, trail, clock=it.clock, stopping=it.stopping),
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
        health_router(it.db, it.metrics, it.census, it.tokens),
        pages_router(_PageLogins(auth, it.login), key_limits=it.config.key_limits),
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

    base_url = it.settings.base_url
    # The last one is the outermost.
    app.add_middleware(LoginCookie, base_url=base_url, loopback=is_loopback(it.settings.host))
    app.add_middleware(BodyLimit)
    app.add_middleware(HeadAsGet)
    app.add_middleware(
        Observed,
        clock=it.clock,
        metrics=it.metrics,
        trusted_proxies=it.settings.trusted_proxies,
        route_of=route_of,
        answer=answer,
    )
    app.add_middleware(SecurityHeaders, https=base_url.startswith("https://"))


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncGenerator[None]:
    services: Services = app.state.services
    await migrate(services.db)
    stop = asyncio.Event()
    async with services.sessions:
        tidying = asyncio.create_task(_tidy_for_ever(services.sessions), name="tidy sessions")
        working = asyncio.create_task(services.execute_runs(stop), name="runs")
        try:
            yield
        finally:
            services.stopping.set()
            stop.set()
            tidying.cancel()
            with suppress(asyncio.CancelledError):
                await tidying
            await working
    await services.close()


async def _tidy_for_ever(sessions: Sessions) -> None:
    while True:
        try:
            await sessions.purge()
        except StoreUnavailable:
            _log.warning("could not delete old sessions; trying again later")
        await asyncio.sleep(_PURGE_SECONDS)


class _Hook:
    """The authenticator's hook: who is asking goes into the log line, and the rest where it belongs."""

    def __init__(self, audit_events: AuditEvents) -> None:
        self._audit_events = audit_events

    def __call__(self, event: Event) -> Awaitable[None] | None:
        record = current_request.get()
        if isinstance(event, CredentialUsed) and record is not None:
            record.principal = event.principal
        return self._audit_events(event)


class _PageLogins:
    """The logins of :mod:`task_service.accounts`, as the pages need them."""

    def __init__(self, auth: FastAPIAuth[User], login: Login) -> None:
        self._auth = auth
        self._login = login

    async def log_in(self, username: str, password: str, *, request: Request) -> LoginResult:
        logged_in = await self._login.log_in(
            username,
            password,
            address=request_address(),
            user_agent=request.headers.get("user-agent"),
        )
        return LoginResult(logged_in.token, logged_in.expires_in)

    async def log_out(self, request: Request) -> None:
        try:
            await self._login.log_out(await self._auth.admit(request, require_interactive()))
        except (CredentialsMissing, CredentialRefused, InteractiveRequired, SessionNotFound):
            return

    async def current_user(self, request: Request) -> PageUser | None:
        try:
            principal = await self._auth.admit(request, require_interactive())
        except (CredentialsMissing, CredentialRefused, InteractiveRequired):
            return None
        user = principal.user
        return PageUser(user.username, principal.permissions, user.roles)
