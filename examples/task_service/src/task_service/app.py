"""The ASGI application: its routes, its middleware, and its lifespan."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from importlib.metadata import version
from typing import Final, cast

from argon2 import Parameters
from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Scope

from msk_auth import AsyncKeyExpiry, Clock
from msk_auth.errors import Problem, StoreUnavailable
from msk_auth.integrations.fastapi import FastAPIAuth

from . import background
from .accounts.audit import Audit
from .accounts.passwords import OWASP
from .accounts.roles import RECENT_LOGIN
from .accounts.throttle import LEAK_REPORTS, REVOCATIONS, PublicThrottle
from .accounts.users import User
from .api import openapi
from .api.admin import admin_router
from .api.admin_keys import admin_keys_routers
from .api.auth import auth_router
from .api.health import health_router
from .api.json_route import allowed_methods
from .api.key_audit import key_audit_router
from .api.keys import keys_routers
from .api.leaks import GitHubKeys, leak_routers
from .api.runs import runs_router
from .api.service_accounts import service_accounts_router
from .api.tasks import tasks_router
from .compression import Compression
from .db.migrate import migrate
from .errors import MethodNotAllowed, PageNotFound
from .handlers.outbound import OutboundPolicy
from .login_cookie import LoginCookie
from .middleware import BodyLimit, HeadAsGet, RequestLimit, RequestLog, SecurityHeaders
from .server import is_loopback
from .services import Services
from .settings import Settings, load_settings
from .web.pages import PageLogins, Pages, wants_page

_log = logging.getLogger(__name__)

_UNROUTED: Final[Mapping[int, type[Problem]]] = {404: PageNotFound, 405: MethodNotAllowed}

_PURGE_SECONDS: Final = 3600.0
_ANNOUNCE_SECONDS: Final = 3600.0


def create_app(
    settings: Settings | None = None,
    *,
    clock: Clock | None = None,
    password_hashing: Parameters = OWASP,
) -> FastAPI:
    """The service as an ASGI application; its parts are at `app.state.services`.

    ::

        msk-auth routes --factory task_service.app:create_app
        uvicorn --factory task_service.app:create_app

    `task-service serve` is the recommended way to serve it: it bounds slow and endless requests, which uvicorn alone
    does not.

    The lifespan migrates the database, executes runs, and stops both in order. A server may set
    `app.state.services.stopping` first, so that streams end before it waits for their connections.

    Args:
        settings: What is fixed while the service runs; the environment's by default.
        clock: Where the time comes from; the machine's own by default.
        password_hashing: Argon2's cost; tests use less.

    Raises:
        ConfigurationError: As :func:`load_settings` and :meth:`Services.build`.
    """
    settings = load_settings() if settings is None else settings
    services = Services.build(settings, clock=clock, password_hashing=password_hashing)
    # FastAPI's documentation pages load scripts from other origins; `/docs` is a page of ours. A trailing slash is not
    # redirected: the client would send its credentials to the host that the request named.
    app = FastAPI(
        title=openapi.TITLE,
        description=openapi.DESCRIPTION,
        version=version("task-service"),
        openapi_tags=openapi.TAGS,
        servers=[{"url": settings.base_url}],
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        # FastAPI's own telemetry, where OpenTelemetry is set up for the process, would export whole URLs and the messages
        # of errors. Clients put keys there by mistake, so the service has spans of its own (`tracing.py`).
        telemetry={"tracing": False, "metrics": False, "logs": False},
        lifespan=_lifespan,
    )
    app.state.services = services
    auth = FastAPIAuth(services.authenticator)
    auth.install(app, errors="all")
    openapi.complete(app)
    pages = Pages(
        PageLogins(auth, services.login, services.sessions, services.oidc),
        key_limits=services.config.key_limits,
        oidc=services.oidc,
        passwords_on=settings.password_login == "on",
    )
    for router in _routers(services, auth, pages):
        _add_routes(app, router)
    _surround(app, services, pages)
    return app


def _add_routes(app: FastAPI, router: APIRouter) -> None:
    # `include_router` would search the router twice for each request, once to find it and once to find the route.
    for route in router.routes:
        if isinstance(route, APIRoute):
            route.unique_id = openapi.operation_id(route)
    app.router.routes.extend(router.routes)


def _routers(it: Services, auth: FastAPIAuth[User], pages: Pages) -> tuple[APIRouter, ...]:
    admin_keys = admin_keys_routers(auth, it.users, recent_login=RECENT_LOGIN)
    service_accounts = service_accounts_router(auth, it.service_accounts)
    # In this order a request is matched: what is asked for most often stands first.
    return (
        health_router(it.db, it.metrics, it.run_counts, it.tokens),
        auth_router(auth, it.login, it.sessions, it.invitations),
        *keys_routers(auth, it.keys, it.runs),
        key_audit_router(auth, it.audit),
        tasks_router(auth, it.tasks, it.runs, it.registry),
        runs_router(auth, it.tasks, it.runs, it.logs, stopping=it.stopping),
        *admin_keys,
        service_accounts,
        admin_router(
            auth,
            it.config,
            it.users,
            it.invitations,
            it.audit,
            it.sessions,
            it.status,
            others=(*admin_keys, service_accounts),
            base_url=it.settings.base_url,
        ),
        *_leak_routers(it, auth),
        pages.router(),
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


def _surround(app: FastAPI, it: Services, pages: Pages) -> None:
    routes = [route for route in app.router.routes if isinstance(route, Route)]
    templates: dict[object, str] = {route.endpoint: route.path for route in routes}

    def route_of(scope: Scope) -> str | None:
        return templates.get(scope.get("endpoint"))

    async def answer(request: Request, problem: Problem) -> Response:
        rendered = app.exception_handlers[Problem](request, problem)
        return await cast("Awaitable[Response]", rendered)

    render = app.exception_handlers[HTTPException]

    async def answer_unrouted(request: Request, error: Exception) -> Response:
        # Errors of the routing have no code; with one, clients can distinguish a wrong path from a missing task.
        kind = _UNROUTED.get(cast("HTTPException", error).status_code)
        if kind is None:
            return await cast("Awaitable[Response]", render(request, error))
        show = pages.problem_page if kind is PageNotFound and wants_page(request) else answer
        response = await show(request, kind())
        if kind is MethodNotAllowed:
            response.headers["allow"] = allowed_methods(routes, request.url.path)
        return response

    app.add_exception_handler(HTTPException, answer_unrouted)
    base_url = it.settings.base_url
    # The last one is the outermost.
    app.add_middleware(Compression)
    app.add_middleware(LoginCookie, base_url=base_url, loopback=is_loopback(it.settings.host))
    app.add_middleware(BodyLimit)
    app.add_middleware(HeadAsGet)
    app.add_middleware(RequestLimit)
    app.add_middleware(
        RequestLog,
        clock=it.clock,
        metrics=it.metrics,
        trusted_proxies=it.settings.trusted_proxies,
        untrusted_proxy=it.untrusted_proxies.notice,
        route_of=route_of,
        answer=answer,
        tracing=it.tracing,
    )
    app.add_middleware(SecurityHeaders, https=base_url.startswith("https://"))


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncGenerator[None]:
    services: Services = app.state.services
    await migrate(services.db)
    await services.join_deployment()
    await services.worker.check_commands()
    stop = asyncio.Event()
    async with AsyncExitStack() as open_while_serving:
        await open_while_serving.enter_async_context(services.sessions)
        await open_while_serving.enter_async_context(services.audit.backlog)
        if services.oidc is not None:
            await open_while_serving.enter_async_context(services.oidc)
        purging = background.begin(purge_periodically(services), name="purge")
        announcing = background.begin(announce_periodically(services), name="ends of keys")
        noting = background.begin(
            services.untrusted_proxies.write_queued(), name="untrusted proxies"
        )
        working = asyncio.create_task(services.worker.execute_runs(stop), name="runs")
        try:
            yield
        finally:
            services.stopping.set()
            stop.set()
            await background.end(noting)
            await background.end(announcing)
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


async def announce_periodically(services: Services) -> None:
    """Announce once an hour, until cancelled, which keys end soon; the audit log records each announcement.

    Every process that serves does this, and each announcement is made by one of them.
    """
    expiry = AsyncKeyExpiry(services.authenticator)
    while True:
        try:
            count = await expiry.announce()
        except StoreUnavailable:
            _log.warning(
                "the database did not answer, so no end of a key was announced; trying again later"
            )
        else:
            if count:
                _log.info("announced the end of %d keys", count)
        await asyncio.sleep(_ANNOUNCE_SECONDS)


async def _purge_audit(audit: Audit, clock: Clock, days: int) -> None:
    deleted = await audit.purge(before=clock.now() - timedelta(days=days))
    if deleted:
        _log.info("deleted %d entries of the audit log that are older than %d days", deleted, days)
