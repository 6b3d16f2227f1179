"""What the Starlette and FastAPI adapters share: both are Starlette applications underneath."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any, Final, Generic, TypeVar, cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketState

from msk_auth.authenticator import AsyncAuthenticator, Authenticator
from msk_auth.core.errors import ConfigurationError, Problem
from msk_auth.core.model import Principal, UserT
from msk_auth.core.policy import Policy
from msk_auth.http.answers import Answer, Errors, ProblemRenderer, answers_all, close_reason
from msk_auth.watch import AsyncWatch

from . import _asgi

POLICY_ATTRIBUTE: Final = "msk_auth_policy"
"""Where a guarded endpoint carries its policy."""

_PUBLIC_ATTRIBUTE: Final = "msk_auth_public"

# A router that is served by itself has no application, which is None in its scope.
_NOWHERE: Final = object()

_NO_HANDLERS: Final[tuple[Mapping[object, object], object]] = ({}, {})

AppT = TypeVar("AppT", bound=Starlette)
EndpointT = TypeVar("EndpointT", bound=Callable[..., object])

_POLICY_VIOLATION: Final = 1008  # RFC 6455, section 7.4.1
_AUTHENTICATED: Final = Policy()


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
        self._renderer = ProblemRenderer(authenticator.realm, authenticator.problem_base)
        self._installed_on: object = _NOWHERE

    def install(self, app: AppT, *, errors: Errors = "problems") -> AppT:
        """Prepare an application, and hand it back: a handler for problems, and the authenticator's lifespan.

        Every :class:`~msk_auth.Problem` is answered with a problem document, unless the application has a handler for
        it. The authenticator is opened after the application's lifespan has begun and closed before it ends, so that
        what it collected is written while the store is still there.

        An application that is mounted in another one needs an `install` of its own.

        Args:
            app: The application.
            errors: Which errors are answered. By default problems alone: what the framework and the application raise is
                left as it is. `all` answers HTTP errors and unexpected exceptions with problem documents too,
                except where the application has a handler of its own.

        Raises:
            ConfigurationError: The application has another adapter already, or has started.
        """
        installed = getattr(app.state, "msk_auth", None)
        if installed is self:
            return app
        if installed is not None:
            raise ConfigurationError(
                f"This application has a {type(installed).__name__} already. Use that one for all"
                " of its routes."
            )
        if app.middleware_stack is not None:
            raise ConfigurationError("Call install(app) before the application starts.")
        self._prepare(app, all_errors=answers_all(errors))
        app.state.msk_auth = self
        return app

    def _prepare(self, app: Starlette, *, all_errors: bool) -> None:
        app.add_middleware(_Handshakes)
        handlers = cast("dict[object, object]", app.exception_handlers)
        handlers.setdefault(Problem, self._on_problem)
        if all_errors:
            self._add_handlers(app)
        self._add_lifespan(app)

    def _add_handlers(self, app: Starlette) -> None:
        handlers = cast("dict[object, object]", app.exception_handlers)
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

    def _check_installed(self, app: object) -> None:
        if getattr(getattr(app, "state", None), "msk_auth", None) is not self:
            raise ConfigurationError(
                f"A guarded route is served by an application without its {type(self).__name__}."
                " Call auth.install(app) on the application that the route belongs to."
            )
        # An adapter is installed once and for all, so the next request need not ask again.
        self._installed_on = app

    def _answer_at_once(
        self, connection: HTTPConnection, endpoint: object, problem: Problem
    ) -> Response | None:
        """The answer to a request that a guard refuses, if nobody between here and the router has a say in it.

        Raised, the problem would come to the same answer through the framework's handlers, at twice the cost: what
        refuses a flood should be cheap.

        Args:
            connection: The request.
            endpoint: The guarded one. If it is not what the route calls, something stands around it.
            problem: Why it is refused.
        """
        scope = connection.scope
        if scope["type"] != "http" or scope.get("endpoint") is not endpoint:
            return None
        handlers: Mapping[object, object]
        handlers, _ = scope.get("starlette.exception_handlers", _NO_HANDLERS)
        for kind in type(problem).__mro__:
            handler = handlers.get(kind)
            if handler is not None:
                # The application may have a handler of its own.
                return self._to_response(problem) if handler == self._on_problem else None
        return None

    def _to_response(self, problem: Problem) -> Response:
        problem.__traceback__ = None  # as in `_on_problem`
        return to_response(self._renderer.answer(problem))

    async def admit(self, connection: HTTPConnection, policy: Policy) -> Principal[UserT]:
        """The principal of a request or websocket, if the policy lets it pass.

        Guards call it; so may code that decides on a policy as it runs. A request is verified once, a websocket that is
        open each time.

        Raises:
            Problem: The credentials are missing or refused, or the policy is not met.
            ConfigurationError: :meth:`install` was not called on this application.
        """
        admitted = self.admission(connection, policy)
        return admitted if isinstance(admitted, Principal) else await admitted

    def admission(self, connection: HTTPConnection, policy: Policy) -> _asgi.Admission[UserT]:
        """As :meth:`admit`, without awaiting what need not be awaited: a principal, or something to await that gives it.

        Raises:
            Problem, ConfigurationError: As :meth:`admit`.
        """
        scope = connection.scope
        # Not only when somebody is refused: this has to show the first time the route is tried.
        if scope.get("app") is not self._installed_on:
            self._check_installed(scope.get("app"))
        return _asgi.admission(scope, self.authenticator, policy)

    async def verify_again(
        self, connection: HTTPConnection, policy: Policy = _AUTHENTICATED
    ) -> Principal[UserT]:
        """The principal of a request or websocket as it is now, if the policy lets it pass: verified afresh, or within a lease.

        For what goes on after a request was admitted. :meth:`admit` remembers for the length of a request what it found.

        Args:
            connection: The request or websocket.
            policy: What it has to meet; the default is to be authenticated.

        Raises:
            Problem: The credentials are refused now, or the policy is not met.
            ConfigurationError: :meth:`install` was not called on this application.
        """
        self._check_installed(connection.scope.get("app"))
        return await _asgi.verify_again(connection.scope, self.authenticator, policy)

    def watch(self, principal: Principal[UserT], policy: Policy | None = None) -> AsyncWatch[UserT]:
        """A watch that ends what a websocket or an event stream does within two seconds of a revocation.

        `async with auth.watch(principal):` stands around what a websocket does, which is then closed with 1008 and the
        code of the refusal; a response streams `auth.watch(principal).stream(events())`.

        Args:
            principal: As it was admitted.
            policy: What it has to meet all the time. None: to keep every permission that it was admitted with.
        """
        return self.authenticator.watch(principal, policy)

    def public(self, endpoint: EndpointT) -> EndpointT:
        """Declare that an endpoint is for everybody, or a mounted application such as static files.

        It changes nothing for requests: the route audit reads it.

        Raises:
            ConfigurationError: It has a guard.
        """
        if declared_policies(endpoint):
            raise ConfigurationError(
                f"{endpoint!r} is declared public and guarded as well. Take off auth.public or the guard."
            )
        # A method has no room for a mark of its own.
        setattr(getattr(endpoint, "__func__", endpoint), _PUBLIC_ATTRIBUTE, True)
        return endpoint

    def declare(self, endpoint: EndpointT, policy: Policy) -> EndpointT:
        """Declare what an endpoint demands that calls :meth:`admit` itself, for the route audit.

        It guards nothing: that is what the call is for.
        """
        return declare(endpoint, policy)

    async def _on_problem(self, connection: HTTPConnection, error: Problem) -> Response | None:
        # Its frames refer to each other and to the credentials: without this, all of them would stay until the garbage
        # collector comes, and it would come more often.
        error.__traceback__ = None
        return await _send(connection, self._renderer.answer(error))

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
        return self._renderer.http_error(error.status_code, str(error.detail))

    async def _on_exception(self, connection: HTTPConnection, error: Exception) -> Response | None:
        # Starlette logs it through the server, after this. A problem comes here from a middleware.
        if isinstance(error, Problem):
            return await _send(connection, self._renderer.answer(error))
        return await _send(connection, self._renderer.http_error(500))


def declare(endpoint: EndpointT, policy: Policy) -> EndpointT:
    """Write down on an endpoint what it demands, for whoever lists the routes."""
    setattr(endpoint, POLICY_ATTRIBUTE, policy)
    return endpoint


def declared_policies(endpoint: object) -> tuple[Policy, ...] | None:
    """What an endpoint says it demands; empty if it is public, None if it says nothing."""
    policies = dict.fromkeys(
        policy
        for layer in _layers(endpoint)
        if (policy := getattr(layer, POLICY_ATTRIBUTE, None)) is not None
    )
    return tuple(policies) or (() if is_public(endpoint) else None)


def is_public(endpoint: object) -> bool:
    """True if an endpoint, or what a guard stands around, is declared public."""
    return any(getattr(layer, _PUBLIC_ATTRIBUTE, False) is True for layer in _layers(endpoint))


def _layers(endpoint: object) -> Iterator[object]:
    """The endpoint and what it wraps: there may be several guards, one around the other."""
    layer: object | None = endpoint
    while layer is not None:
        yield layer
        layer = getattr(layer, "__wrapped__", None)


def to_response(answer: Answer) -> Response:
    """The answer as Starlette sends it."""
    return _Written(answer)


class _Written(Response):
    """A response that is ready: the headers of what refuses a flood are encoded once."""

    def __init__(self, answer: Answer) -> None:
        # All that a `Response` consists of, without the work of making it.
        self.status_code = answer.status
        self.background = None
        self.body = answer.body
        self.raw_headers = list(_raw_headers(answer.status, answer.headers, len(answer.body)))


@lru_cache(maxsize=256)
def _raw_headers(
    status: int, headers: tuple[tuple[str, str], ...], length: int
) -> tuple[tuple[bytes, bytes], ...]:
    """As Starlette writes them for a body of this length."""
    written = Response(bytes(length), status, dict(headers))
    return tuple(written.raw_headers)


async def _send(connection: HTTPConnection, answer: Answer) -> Response | None:
    if not isinstance(connection, WebSocket):
        return to_response(answer)
    if WebSocketState.DISCONNECTED in {connection.client_state, connection.application_state}:
        return None
    # Before the handshake a server that can sends the whole answer in its place, and one that
    # cannot sends a bare 403.
    can_deny = "websocket.http.response" in connection.scope.get("extensions", {})
    if can_deny and not _is_open(connection):
        await connection.send_denial_response(to_response(answer))
    else:
        await connection.close(_POLICY_VIOLATION, close_reason(answer))
    return None


def _is_open(websocket: WebSocket) -> bool:
    if _asgi.is_open(websocket.scope):
        return True
    return websocket.application_state is not WebSocketState.CONNECTING


class _Handshakes:
    """Notes which websockets are open.

    A class-based endpoint has a `WebSocket` of its own, and whoever handles what it raises gets another one, which
    knows nothing of its handshake.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    # Not a coroutine: a request that is no websocket passes through at the cost of a call.
    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "websocket":
            return self._app(scope, receive, send)
        handshake = scope[_asgi.HANDSHAKE] = _asgi.Handshake()

        async def send_and_note(message: Message) -> None:
            if message["type"] == "websocket.accept":
                handshake.accepted = True
            await send(message)

        return self._app(scope, receive, send_and_note)
