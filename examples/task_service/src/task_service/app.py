"""The ASGI application: its routes, its error responses, its middleware, and its lifespan."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from typing import cast

from argon2 import Parameters
from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from msk_auth import Clock
from msk_auth.errors import InputInvalid, NotFound, Problem
from msk_auth.integrations.fastapi import FastAPIAuth

from . import background
from .accounts.passwords import OWASP
from .accounts.throttle import LEAK_REPORTS, REVOCATIONS
from .accounts.users import User
from .api import openapi
from .api.admin import admin_router, closing_router
from .api.admin_keys import admin_keys_routers
from .api.auth import auth_router
from .api.health import health_router
from .api.keys import keys_routers
from .api.leaks import leak_routers
from .api.runs import runs_router
from .api.service_accounts import service_accounts_router
from .api.tasks import tasks_router
from .compression import Compression
from .db.migrate import migrate
from .errors import MethodNotAllowed, PageNotFound
from .housekeeping import keep_house
from .login_cookie import PENDING, LoginCookie
from .middleware import BodyLimit, HeadAsGet, RequestLog, SecurityHeaders
from .provider_login import PENDING_SECONDS
from .server import is_loopback
from .services import Services
from .settings import Settings, load_settings
from .trusted_proxies import TrustedProxies
from .validation import in_plain_words
from .web.pages import Pages, wants_page


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

    Serve it with `task-service serve`, which ends streams and answers every connected client before it stops.

    The lifespan migrates the database, executes runs, and stops both in order. A server may set
    `app.state.services.stopping` first, so that streams end before it waits for their connections.

    Args:
        settings: The settings; by default from the environment.
        clock: The clock; the machine's own by default.
        password_hashing: Argon2's cost; tests use less.

    Raises:
        ConfigurationError: As for :func:`load_settings` and :class:`Services`.
    """
    settings = load_settings() if settings is None else settings
    services = Services(settings, clock=clock, password_hashing=password_hashing)
    # FastAPI's documentation pages load scripts from other origins; `/docs` is the service's own page. A trailing slash is not
    # redirected: the client would send its credentials to the host that the request named.
    app = FastAPI(
        title=openapi.TITLE,
        description=openapi.DESCRIPTION,
        version=version("task-service"),
        openapi_tags=openapi.TAGS,
        servers=[{"url": settings.base_url}],
        responses=openapi.ANYWHERE,
        generate_unique_id_function=openapi.operation_id,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        # FastAPI's own telemetry would export whole URLs and the messages of errors to OpenTelemetry. Clients put keys there
        # by mistake, so the service makes its own spans (`tracing.py`).
        telemetry={"tracing": False, "metrics": False, "logs": False},
        lifespan=_lifespan,
    )
    app.state.services = services
    auth = FastAPIAuth(services.authenticator)
    auth.install(app, errors="all")
    pages = Pages(
        auth,
        services.login,
        services.sessions,
        key_limits=services.config.key_limits,
        oidc=services.oidc,
    )
    routers = _routers(services, auth, pages)
    for router in routers:
        app.include_router(router)
    _answer_errors(app, [app.router, *routers], pages)
    _add_middleware(app, services, routers)
    return app


def _routers(it: Services, auth: FastAPIAuth[User], pages: Pages) -> tuple[APIRouter, ...]:
    # Requests are matched in this order, so the most frequent come first.
    return (
        health_router(it.db, it.metrics, it.tokens),
        auth_router(auth, it.login, it.sessions, it.invitations),
        *keys_routers(auth, it.keys, it.key_activity, it.audit, it.runs),
        tasks_router(auth, it.tasks, it.runs, it.registry),
        runs_router(auth, it.runs, it.logs, stopping=it.stopping),
        *admin_keys_routers(auth, it.users, it.keys, it.key_activity),
        service_accounts_router(auth, it.service_accounts),
        admin_router(
            auth,
            it.config,
            it.users,
            it.departures,
            it.invitations,
            it.audit,
            it.sessions,
            it.status,
        ),
        closing_router(auth),
        *leak_routers(
            auth,
            it.settings.github_keys_url,
            revocations=it.throttle("revoke", REVOCATIONS),
            reports=it.throttle("leaks", LEAK_REPORTS),
        ),
        pages.router(),
    )


def _answer_errors(app: FastAPI, routers: Sequence[APIRouter], pages: Pages) -> None:
    """Give the framework's errors the service's words; the library renders them all."""
    render_invalid = app.exception_handlers[RequestValidationError]
    render_http_error = app.exception_handlers[HTTPException]

    async def answer_invalid(request: Request, error: Exception) -> Response:
        invalid = cast("RequestValidationError", error)
        if isinstance(invalid.body, bytes):
            # FastAPI parses no other content type; a form of another site cannot send this one without a CORS preflight.
            detail = "Send JSON with the header 'Content-Type: application/json'."
            return await _answer(request, InputInvalid.of("", detail))
        worded = RequestValidationError(in_plain_words(invalid.errors()))
        return await cast("Awaitable[Response]", render_invalid(request, worded))

    async def answer_unrouted(request: Request, error: Exception) -> Response:
        # Errors of the routing have no code. With a code, clients can distinguish a wrong path from a missing task.
        if cast("HTTPException", error).status_code not in {404, 405}:
            return await cast("Awaitable[Response]", render_http_error(request, error))
        methods = _allowed_methods(routers, request.url.path)
        if methods and request.method not in methods:
            response = await _answer(request, MethodNotAllowed())
            response.headers["allow"] = ", ".join(sorted(methods))
            return response
        if wants_page(request):
            return await pages.problem_page(request, PageNotFound())
        return await _answer(request, NotFound())

    app.add_exception_handler(RequestValidationError, answer_invalid)
    app.add_exception_handler(HTTPException, answer_unrouted)


async def _answer(request: Request, problem: Problem) -> Response:
    app: FastAPI = request.app
    return await cast("Awaitable[Response]", app.exception_handlers[Problem](request, problem))


def _routes(routers: Sequence[APIRouter]) -> list[Route]:
    return [route for router in routers for route in router.routes if isinstance(route, Route)]


def _allowed_methods(routers: Sequence[APIRouter], path: str) -> set[str]:
    """The methods of a path (RFC 9110, section 10.2.1). Starlette names only the methods of the first matching route."""
    routes = _routes(routers)
    # A route with exactly this path goes before routes with placeholders, which would find no such id.
    found = [route for route in routes if route.path == path]
    found = found or [route for route in routes if route.path_regex.match(path)]
    methods = {method for route in found for method in route.methods or ()}
    return methods | {"HEAD"} if "GET" in methods else methods


def _add_middleware(app: FastAPI, it: Services, routers: Sequence[APIRouter]) -> None:
    base_url = it.settings.base_url
    # The last middleware is the outermost.
    app.add_middleware(Compression)
    if it.oidc is not None:
        app.add_middleware(
            SessionMiddleware,
            secret_key=it.pending_login_key,
            session_cookie=PENDING,
            max_age=PENDING_SECONDS,
            https_only=True,
        )
    app.add_middleware(LoginCookie, base_url=base_url, loopback=is_loopback(it.settings.host))
    app.add_middleware(BodyLimit)
    app.add_middleware(HeadAsGet)
    app.add_middleware(
        RequestLog,
        clock=it.clock,
        metrics=it.metrics,
        templates={route.endpoint: route.path for route in _routes(routers)},
        answer=_answer,
        key_activity=it.key_activity,
        tracing=it.tracing,
    )
    app.add_middleware(SecurityHeaders, https=base_url.startswith("https://"))
    app.add_middleware(TrustedProxies, networks=it.settings.trusted_proxies)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncGenerator[None]:
    services: Services = app.state.services
    stop = asyncio.Event()
    async with AsyncExitStack() as open_while_serving:
        open_while_serving.push_async_callback(services.close)
        await migrate(services.db)
        await services.join_deployment()
        await open_while_serving.enter_async_context(services.sessions)
        await open_while_serving.enter_async_context(services.key_activity)
        if services.oidc is not None:
            await open_while_serving.enter_async_context(services.oidc.logout_tokens)
        tasks = [background.begin(keep_house(services), name="housekeeping")]
        if services.failure_webhook is not None:
            sending = services.failure_webhook.send_periodically(services.stopping)
            tasks.append(background.begin(sending, name="failure webhook"))
        working = asyncio.create_task(services.worker.execute_runs(stop), name="runs")
        try:
            yield
        finally:
            services.stopping.set()
            stop.set()
            await background.end(*tasks, grace=1.0)
            await working
