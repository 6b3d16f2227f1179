"""What the Starlette and FastAPI adapters share: both are Starlette applications underneath."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Generic, cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketState

from msk_auth.authenticator import AsyncAuthenticator, Authenticator
from msk_auth.core.errors import ConfigurationError, Problem
from msk_auth.core.model import Principal, UserT
from msk_auth.core.policy import Policy

from . import _asgi
from ._http import Answer, ContentTooLarge, Voice
from ._key_routes import (
    MANAGE,
    MAX_BODY,
    NO_CONTENT,
    READ,
    created_answer,
    key_answer,
    page_answer,
    parse_create,
    parse_list,
    parse_rotate,
)

_POLICY_VIOLATION: Final = 1008  # RFC 6455, section 7.4.1


@dataclass(frozen=True, slots=True)
class KeyRoute:
    """One of the ready-made key routes.

    Attributes:
        method: Its HTTP method.
        path: After the prefix.
        name: Its name in the framework's routing.
        status: Of its successful answer.
        policy: What its endpoint demands, before anything else.
        endpoint: Guards itself: there is no way to mount it without its guard.
    """

    method: str
    path: str
    name: str
    status: int
    policy: Policy
    endpoint: Callable[[Request], Awaitable[Response]]


class StarletteBase(Generic[UserT]):
    """Guards, error handlers and key routes on top of one `AsyncAuthenticator`."""

    def __init__(self, authenticator: AsyncAuthenticator[UserT]) -> None:
        given = cast("object", authenticator)
        if isinstance(given, Authenticator):
            raise ConfigurationError(
                f"{type(self).__name__} needs an AsyncAuthenticator; Authenticator would block the"
                " event loop. Write AsyncAuthenticator(…) with an async store and async find_owner."
            )
        if not isinstance(given, AsyncAuthenticator):
            raise ConfigurationError(
                f"{type(self).__name__} needs an AsyncAuthenticator, not {type(given).__name__}."
            )
        self.authenticator = authenticator
        self._voice = Voice(authenticator.realm, authenticator.problem_base)

    def install(self, app: Starlette) -> None:
        """Prepare the application: error handlers, and the authenticator's own lifespan.

        Every :class:`~msk_auth.Problem`, HTTP error and unexpected exception is answered with a
        problem document; handlers that the application has already are left alone. The authenticator
        is opened after the application's lifespan has begun and closed before it ends, so that
        what it collected is written while the store is still there.

        An application that is mounted in another one needs an `install` of its own.

        Raises:
            ConfigurationError: The application has another adapter already, or has started.
        """
        installed = getattr(app.state, "msk_auth", None)
        if installed is self:
            return
        if installed is not None:
            raise ConfigurationError(
                f"This application has a {type(installed).__name__} already. Use that one for all"
                " of its routes."
            )
        if app.middleware_stack is not None:
            raise ConfigurationError("Call install(app) before the application starts.")
        app.state.msk_auth = self
        self._add_handlers(app)
        self._add_lifespan(app)

    def _add_handlers(self, app: Starlette) -> None:
        handlers = cast("dict[object, object]", app.exception_handlers)
        handlers.setdefault(Problem, self._on_problem)
        handlers.setdefault(HTTPException, self._on_http_exception)
        if 500 not in handlers:
            handlers.setdefault(Exception, self._on_exception)

    def _add_lifespan(self, app: Starlette) -> None:
        outer = app.router.lifespan_context

        @asynccontextmanager
        async def lifespan(app: Any) -> AsyncGenerator[Any, None]:
            async with outer(app) as state, self.authenticator:
                yield state

        app.router.lifespan_context = lifespan

    async def admit(self, connection: HTTPConnection, policy: Policy) -> Principal[UserT]:
        """The principal of a request or websocket, if the policy lets it pass.

        Guards call it; so may code that decides on a policy as it runs.

        Raises:
            Problem: The credentials are missing or refused, or the policy is not met.
            ConfigurationError: :meth:`install` was not called on this application.
        """
        app = connection.scope.get("app")
        if getattr(getattr(app, "state", None), "msk_auth", None) is not self:
            # Not only when somebody is refused: this has to show the first time the route is tried.
            raise ConfigurationError(
                f"A guarded route is served by an application without its {type(self).__name__}."
                " Call auth.install(app) on the application that the route belongs to."
            )
        principal = await _asgi.authenticate(connection.scope, self.authenticator)
        self.authenticator.authorize(principal, policy)
        return principal

    async def _on_problem(self, connection: HTTPConnection, error: Problem) -> Response | None:
        return await _send(connection, self._voice.answer(error))

    async def _on_http_exception(
        self, connection: HTTPConnection, error: HTTPException
    ) -> Response | None:
        headers = dict(error.headers or {})
        if error.status_code < 400:
            # A redirect, say: no problem at all.
            return Response(status_code=error.status_code, headers=headers)
        answer = self._http_error(error)
        return await _send(connection, answer.with_headers(headers.items()))

    def _http_error(self, error: HTTPException) -> Answer:
        return self._voice.http_error(error.status_code, str(error.detail))

    async def _on_exception(self, connection: HTTPConnection, error: Exception) -> Response | None:
        # Starlette logs it through the server, after this. A problem comes here from a middleware.
        problem = error if isinstance(error, Problem) else Problem()
        return await _send(connection, self._voice.answer(problem))

    def _key_routes(self, prefix: str) -> list[KeyRoute]:
        if not prefix.startswith("/") or prefix.endswith("/"):
            raise ConfigurationError(
                f"The prefix {prefix!r} of the key routes does not work. Write it with a slash at"
                " its beginning and none at its end, such as '/api/keys'."
            )
        one = "/{key_id}"
        return [
            KeyRoute("GET", "", "list_keys", 200, READ, self._list_keys),
            KeyRoute("POST", "", "create_key", 201, MANAGE, self._create_key),
            KeyRoute("GET", one, "get_key", 200, READ, self._get_key),
            KeyRoute("POST", f"{one}/rotate", "rotate_key", 201, MANAGE, self._rotate_key),
            KeyRoute("POST", f"{one}/revoke", "revoke_key", 200, MANAGE, self._revoke_key),
            KeyRoute("DELETE", one, "delete_key", 204, MANAGE, self._delete_key),
        ]

    async def _list_keys(self, request: Request) -> Response:
        principal = await self.admit(request, READ)
        asked = parse_list(request.scope["query_string"])
        page = await self.authenticator.list_keys(
            principal, status=asked.status, cursor=asked.cursor, limit=asked.limit
        )
        return to_response(page_answer(page, **self._presentation()))

    async def _create_key(self, request: Request) -> Response:
        principal = await self.admit(request, MANAGE)
        asked = parse_create(await _read(request), request.headers.get("content-type"))
        created = await self.authenticator.create_key(
            principal, name=asked.name, scopes=asked.scopes, lifetime=asked.lifetime
        )
        collection = _path(request)
        return to_response(created_answer(created, collection=collection, **self._presentation()))

    async def _get_key(self, request: Request) -> Response:
        principal = await self.admit(request, READ)
        record = await self.authenticator.get_key(principal, request.path_params["key_id"])
        return to_response(key_answer(record, **self._presentation()))

    async def _rotate_key(self, request: Request) -> Response:
        principal = await self.admit(request, MANAGE)
        asked = parse_rotate(await _read(request), request.headers.get("content-type"))
        created = await self.authenticator.rotate_key(
            principal, request.path_params["key_id"], overlap=asked.overlap
        )
        collection = _path(request).rsplit("/", 2)[0]  # without /{key_id}/rotate
        return to_response(created_answer(created, collection=collection, **self._presentation()))

    async def _revoke_key(self, request: Request) -> Response:
        principal = await self.admit(request, MANAGE)
        record = await self.authenticator.revoke_key(principal, request.path_params["key_id"])
        return to_response(key_answer(record, **self._presentation()))

    async def _delete_key(self, request: Request) -> Response:
        principal = await self.admit(request, MANAGE)
        await self.authenticator.delete_key(principal, request.path_params["key_id"])
        return to_response(NO_CONTENT)

    def _presentation(self) -> Any:
        authenticator = self.authenticator
        return {
            "key_format": authenticator.rules.key_format,
            "now": authenticator.clock.now(),
        }


def to_response(answer: Answer) -> Response:
    """The answer as Starlette sends it."""
    return Response(answer.body or None, answer.status, dict(answer.headers))


async def _send(connection: HTTPConnection, answer: Answer) -> Response | None:
    if not isinstance(connection, WebSocket):
        return to_response(answer)
    if WebSocketState.DISCONNECTED in {connection.client_state, connection.application_state}:
        return None
    # Before the handshake a server that can sends the whole answer in its place, and one that
    # cannot sends a bare 403.
    can_deny = "websocket.http.response" in connection.scope.get("extensions", {})
    if can_deny and connection.application_state is WebSocketState.CONNECTING:
        await connection.send_denial_response(to_response(answer))
    else:
        await connection.close(_POLICY_VIOLATION)
    return None


async def _read(request: Request) -> bytes:
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY:
                raise ContentTooLarge(MAX_BODY)
    except ClientDisconnect:
        raise HTTPException(400) from None  # nobody is there to read it, and it is no error of ours
    return bytes(body)


def _path(request: Request) -> str:
    """The path as the client sees it. Some servers put the root path into `path`, others do not."""
    root: str = request.scope.get("root_path", "").rstrip("/")
    path: str = request.scope["path"]
    return path if path.startswith(f"{root}/") else root + path
