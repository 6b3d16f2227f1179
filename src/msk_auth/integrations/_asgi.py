"""The base of all ASGI adapters: reads credentials from a scope, and waits for a principal.

A request and a handshake are verified once. An open websocket is verified each time, since its handshake may be long past.

An `Authenticator` runs in threads. So a synchronous application on an asynchronous framework needs no second engine
and no second connection pool.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Coroutine, Sequence
from contextvars import ContextVar
from datetime import timedelta
from functools import partial
from inspect import iscoroutinefunction, unwrap
from typing import Any, Final, Generic, Protocol, Self, TypeAlias, TypeVar, cast

from anyio import to_thread

from msk_auth._async.administration import AsyncAdminKeys
from msk_auth._async.authenticator import AsyncAuthenticator
from msk_auth._async.primitives import is_beside_loop
from msk_auth._async.watch import LOOK_UPS_AT_ONCE, AsyncWatch, AsyncWatches
from msk_auth._fork import abandon, after_fork_in_child
from msk_auth._sync.administration import AdminKeys
from msk_auth._sync.authenticator import Authenticator
from msk_auth._sync.verification import Reads
from msk_auth.authenticator import BaseAuthenticator
from msk_auth.core.authentication import bearer_of_key
from msk_auth.core.errors import ConfigurationError, Problem
from msk_auth.core.logins import RequestLogins
from msk_auth.core.model import ApiKey, ExternalIdentity, Owner, Principal, Session, UserT
from msk_auth.core.policy import Policy
from msk_auth.http._async.admission import admit, load_user_once
from msk_auth.http._async.routes import AsyncExchange, leak_route, respond, revocation_route
from msk_auth.http.admission import (
    ADMITTED,
    AUTHENTICATED,
    Authorization,
    Memory,
    keep_session,
    loading_in,
    users_of,
)
from msk_auth.http.answers import Answer, ContentTooLarge, close_reason
from msk_auth.http.routes import Route, broken_body
from msk_auth.users import RequestSession

from ._adapter import Adapter, ConnectionT, GuardT

_SENT: Final = "msk_auth.sent"
"""The key of the types of the messages that the application has sent to a websocket; all copies of its scope share the set."""

_serving: Final[ContextVar[tuple[Any, ...]]] = ContextVar("msk_auth.serving", default=())
"""The adapters of the applications that serve the current request, from the innermost mounted application outwards."""

_POLICY_VIOLATION: Final = 1008  # RFC 6455, section 7.4.1
_DENIAL: Final = "websocket.http.response"

T = TypeVar("T")
R = TypeVar("R")
RequestT = TypeVar("RequestT", bound="Connection")

MountedT = TypeVar("MountedT")
"""The framework's class of routes."""

Throttle: TypeAlias = Callable[[RequestT], object]
"""Counts a request that needs no login, and raises :class:`~msk_auth.errors.TooManyAttempts` for one too many.

Either `async`, or blocking: then it runs in a thread."""


Receive: TypeAlias = Callable[[], Awaitable[Any]]
"""Receives a message of ASGI."""

Send: TypeAlias = Callable[[Any], Awaitable[None]]
"""Sends a message of ASGI."""

AsgiApp: TypeAlias = Callable[[Any, Receive, Send], Awaitable[None]]
"""An application, perhaps inside a middleware."""


class Connection(Protocol):
    """A request or a websocket of any ASGI framework."""

    @property
    def scope(self) -> Any: ...


def is_open(scope: Memory) -> bool:
    """True for a websocket whose handshake was accepted."""
    return "websocket.accept" in scope.get(_SENT, ())


def noting_messages(scope: Memory, send: Send) -> Send:
    """A `send` for a websocket that records when the application accepts and closes it.

    The framework's websocket object does not show this: a class-based endpoint and the handler of its exceptions have different
    objects.
    """
    sent: set[str] = scope.setdefault(_SENT, set())

    async def send_and_note(message: Any) -> None:
        sent.add(message["type"])
        await send(message)

    return send_and_note


async def refuse_websocket(scope: Memory, send: Send, answer: Answer) -> None:
    """Close an accepted websocket with the code of the answer, or refuse its handshake; nothing if it is closed or refused already.

    For a handshake, a server with the ASGI extension "Websocket Denial Response" sends the whole answer, and other servers a
    bare 403.
    """
    if not {"websocket.close", f"{_DENIAL}.start"}.isdisjoint(scope.get(_SENT, ())):
        return
    if is_open(scope) or _DENIAL not in (scope.get("extensions") or {}):
        reason = close_reason(answer)
        await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": reason})
        return
    await send_answer(send, answer, _DENIAL)


async def send_answer(send: Send, answer: Answer, kind: str = "http.response") -> None:
    """Send an answer as messages of ASGI.

    Args:
        send: The server's `send`.
        answer: The whole response.
        kind: The beginning of the messages' types.
    """
    headers = [*answer.headers, ("content-length", str(len(answer.body)))]
    encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    await send({"type": f"{kind}.start", "status": answer.status, "headers": encoded})
    await send({"type": f"{kind}.body", "body": answer.body})


class AsgiAuth(
    Adapter[AsyncAuthenticator[UserT] | Authenticator[UserT], GuardT, ConnectionT],
    Generic[UserT, GuardT, ConnectionT],
):
    """An adapter of a framework on an event loop. An `Authenticator` runs in threads.

    The arguments are those of :class:`Adapter`.
    """

    @property
    def authenticator(self) -> AsyncAuthenticator[UserT]:
        """The authenticator, whose methods must be awaited.

        If you gave an `Authenticator` to the adapter, this one has the same methods to await, which run in threads;
        :attr:`blocking` is the original. If each application has its own authenticator, this is the authenticator of the
        application that serves the current request.

        Raises:
            ConfigurationError: The adapter has no authenticator yet, or there is no current request.
        """
        return self._bound_here()._authenticator

    @property
    def blocking(self) -> Authenticator[UserT]:
        """The `Authenticator` that you gave to the adapter, for `def` routes: its methods are not awaited.

        Raises:
            ConfigurationError: The adapter has an `AsyncAuthenticator`, or there is no current request.
        """
        given = self._bound_here()._given
        if not isinstance(given, Authenticator):
            raise ConfigurationError(
                f"This {type(self).__name__} has an AsyncAuthenticator, which cannot block. Await a method of"
                " auth.authenticator in an `async def` function, or give the adapter an Authenticator."
            )
        return given

    def admit(
        self, connection: Connection, policy: Policy
    ) -> Coroutine[Any, Any, Principal[UserT]]:
        """The principal of a request or websocket, if it meets the policy. Must be awaited.

        Guards call this method; so may code that chooses a policy at run time. A request is verified once, an open websocket
        each time.

        Raises:
            Problem: The credentials are missing or refused, or the policy is not met.
            ConfigurationError: The adapter is not installed on the application that serves the route; or the call is in a
                `def` route, which cannot await it.
        """
        _refuse_beside_loop("admit")
        scope = connection.scope
        return self._bound_in(scope)._verify(scope, policy)

    def is_admitted(self, connection: Connection) -> bool:
        """True if a guard has admitted the request or websocket, so that it has a principal.

        For a decorator or dependency of the application that stays on its routes: on guarded routes it must not verify again.

        Raises:
            ConfigurationError: The adapter is not installed on the application that serves the route.
        """
        scope = connection.scope
        return scope.get(ADMITTED) is self._bound_in(scope)._authenticator

    def verify_again(
        self, connection: Connection, policy: Policy = AUTHENTICATED
    ) -> Coroutine[Any, Any, Principal[UserT]]:
        """The current principal of a request or websocket, if it meets the policy: verified again, or within a lease.

        For long requests; :meth:`admit` verifies only once during a request. Must be awaited.

        Args:
            connection: The request or websocket.
            policy: The policy to meet; by default any accepted credential without scopes passes.

        Raises:
            Problem: The credentials are refused now, or the policy is not met.
            ConfigurationError: As for :meth:`admit`.
        """
        _refuse_beside_loop("verify_again")
        scope = connection.scope
        return self._bound_in(scope)._verify(scope, policy, afresh=True)

    def watch(self, principal: Principal[UserT], policy: Policy | None = None) -> AsyncWatch[UserT]:
        """A watch that ends a websocket or an event stream within two seconds of a revocation.

        Put a websocket's work into `async with auth.watch(principal):`. The adapter then closes the websocket with 1008 and the
        code of the refusal. A response streams `auth.watch(principal).stream(events())`.

        Args:
            principal: The admitted principal.
            policy: The policy that it must keep meeting. None: it must keep all its permissions.
        """
        return self.authenticator.watch(principal, policy)

    def _serve(
        self, app: AsgiApp, note_messages: Callable[[Memory, Send], Send] = noting_messages
    ) -> AsgiApp:
        """A middleware around the application of this adapter.

        Args:
            app: The rest of the application.
            note_messages: Makes the `send` of a websocket.
        """

        async def serve(scope: Any, receive: Receive, send: Send) -> None:
            if scope["type"] == "websocket":
                send = note_messages(scope, send)
            serving = _serving.set((self, *_serving.get()))
            try:
                await app(scope, receive, send)
            finally:
                _serving.reset(serving)

        return serve

    def _bound_in(self, scope: Memory) -> Self:
        """The copy of this adapter for the application that serves a request.

        Raises:
            ConfigurationError: The application does not have this adapter.
        """
        return self._bound_here()

    def _bind(self, authenticator: AsyncAuthenticator[UserT] | Authenticator[UserT]) -> None:
        if isinstance(authenticator, Authenticator):
            self._authenticator: AsyncAuthenticator[UserT] = OffLoopAuthenticator(authenticator)
        else:
            self._authenticator = authenticator
        super()._bind(authenticator)

    def _serving_here(self) -> Self | None:
        return next((each for each in _serving.get() if self.shares_guards_with(each)), None)

    async def _verify(
        self, scope: Memory, policy: Policy, *, afresh: bool = False, in_session: bool = True
    ) -> Principal[UserT]:
        # Every header, as sent. Frameworks return the first of several headers, or join them, and decode leniently; the
        # choice of the credential must not depend on this.
        authorization: Authorization = tuple(
            value for name, value in scope["headers"] if name.lower() == b"authorization"
        )
        if self._key_header is not None:
            given = values(scope, self._key_header.lower().encode())
            authorization = bearer_of_key(
                given, authorization, self._authenticator.rules.key_format
            )
        elsewhere = self._ask_elsewhere(scope) if self._login_sources.functions else None
        reads_in_session = in_session and self._find_session is not None
        client = scope.get("client")
        return await admit(
            scope,
            self._authenticator,
            authorization,
            policy,
            # As the server states it. A Unix socket has none.
            address=None if client is None else client[0],
            path=scope.get("path_params") or {},
            afresh=afresh or (scope["type"] == "websocket" and is_open(scope)),
            elsewhere=elsewhere,
            session=self._session_to_read_in(scope) if reads_in_session else None,
        )

    def _session_to_read_in(self, scope: Memory) -> RequestSession | None:
        return self._request_session(scope)

    def _request_session(self, scope: Memory) -> RequestSession:
        """The session of a request, for an adapter with a function that finds it."""
        find = cast("Callable[[ConnectionT], object]", self._find_session)
        return keep_session(scope, self._authenticator, lambda: find(self._connection(scope)))

    async def _load_user(self, request: RequestSession, principal: Principal[UserT]) -> Any:
        """The application's user, read in the request's session when the request was verified."""
        users = users_of(self._authenticator)
        return await load_user_once(*loading_in(request, users, principal, call_awaited))

    def _ask_elsewhere(self, scope: Memory) -> RequestLogins:
        return self._login_sources.ask(
            self._connection(scope),
            # A websocket's scope has none.
            method=scope.get("method"),
            scheme=scope.get("scheme", "http"),
            headers=scope["headers"],
        )

    def _connection(self, scope: Memory) -> ConnectionT:
        """The framework's object for a request or websocket, the argument of the application's `logins`; by default the scope."""
        return cast("ConnectionT", scope)

    async def _respond(
        self,
        route: Route,
        request: RequestT,
        *,
        path: str,
        read_body: Callable[[int], Awaitable[bytes]],
        throttle: Throttle[RequestT] | None,
    ) -> Answer:
        """The answer of one of the library's routes."""
        scope = request.scope
        bound = self._bound_in(scope)

        def header(name: str) -> str | None:
            found = values(scope, name.encode())
            return found[0].decode("latin-1") if len(found) == 1 else None

        exchange = AsyncExchange(
            authenticator=bound._authenticator,
            query=scope["query_string"],
            path=path,
            key_id=scope["path_params"].get("key_id", ""),
            header=header,
            admit=lambda policy: bound._verify(scope, policy, in_session=False),
            read_body=read_body,
            call=call_awaited,
            throttle=None if throttle is None else partial(call_awaited, throttle, request),
        )
        return await respond(route, exchange)


async def call_awaited(function: Callable[..., Any], *args: object, **kwargs: object) -> Any:
    """Call an application's function: an async function here, a blocking function in a thread."""
    called = function if inspect.isroutine(function) else getattr(function, "__call__")  # noqa: B004, B009
    if inspect.iscoroutinefunction(called):
        result = function(*args, **kwargs)
    else:
        result = await to_thread.run_sync(partial(function, *args, **kwargs))
    return await result if inspect.isawaitable(result) else result


def _refuse_beside_loop(name: str) -> None:
    if is_beside_loop():
        raise ConfigurationError(
            f"{name} was called in a `def` route, which cannot await it, so nothing would be verified. Await it in"
            " an `async def` route."
        )


def values(scope: Memory, name: bytes) -> list[bytes]:
    """The values of every header of a name, as sent."""
    return [value for key, value in scope["headers"] if key.lower() == name]


def client_path(scope: Memory) -> str:
    """The path as the client sees it. Some servers put the root path into `path`, others do not."""
    root: str = scope.get("root_path", "").rstrip("/")
    path: str = scope["path"]
    return path if path.startswith(f"{root}/") else root + path


async def body_chunks(receive: Receive) -> AsyncGenerator[bytes]:
    """The chunks of a request's body.

    Raises:
        RequestMalformed: The client has disconnected.
    """
    more = True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise broken_body()
        yield message.get("body", b"")
        more = message.get("more_body", False)


async def read_stream(
    chunks: AsyncIterable[bytes], limit: int, *, passing: type[Exception]
) -> bytes:
    """The body of a request.

    Args:
        chunks: The chunks of the body.
        limit: The maximum size, in bytes.
        passing: The framework's errors with which a middleware of the application refuses a body.

    Raises:
        RequestMalformed: The body is incomplete.
        ContentTooLarge: The body is longer than `limit`.
        Problem, Exception: A middleware of the application refused the body.
    """
    body = bytearray()
    try:
        async for chunk in chunks:
            body += chunk
            if len(body) > limit:
                break
    except (Problem, passing):
        raise
    except Exception:  # noqa: BLE001 - whatever a server raises, and a client that left
        raise broken_body() from None
    if len(body) > limit:
        raise ContentTooLarge(limit)
    return bytes(body)


class PublicRoutes(ABC, Generic[MountedT, RequestT]):
    """The routes without a login, which an adapter mounts."""

    def revocation_route(
        self, *, path: str = "/api/revoke", throttle: Throttle[RequestT] | None
    ) -> MountedT:
        """A route that revokes the key in the body, without a login: `POST` with `token=…` as a form, or as JSON.

        The answer is the same for existing and unknown keys (RFC 7009, section 2.2). An incomplete key is refused, without a
        look-up.

        Args:
            path: The path of the route.
            throttle: Called first with each request; raises :class:`~msk_auth.errors.TooManyAttempts` over the limit.
                Either `async`, or blocking: then it runs in a thread. Pass None if a proxy already limits requests.
        """
        return self._mount(revocation_route(path), throttle)

    def leak_route(
        self,
        fetch_keys: Callable[[str], Awaitable[bytes]] | Callable[[str], bytes],
        *,
        path: str = "/api/leaks/github",
        throttle: Throttle[RequestT] | None,
    ) -> MountedT:
        """A public route that receives signed reports of GitHub's secret scanning, and revokes the reported keys.

        Args:
            fetch_keys: Called with the address of GitHub's keys. It must return the body of a 200 response in bounded time, and
                raise on any other response. It may stop reading after 262,144 bytes: a longer list is refused. Either
                `async`, or blocking: then it runs in a thread.
            path: The path of the route.
            throttle: As for :meth:`revocation_route`.
        """
        return self._mount(leak_route(path, fetch_keys), throttle)

    @abstractmethod
    def _mount(self, row: Route, throttle: Throttle[RequestT] | None) -> MountedT:
        """A row of the table as a route of the framework."""


# The attributes of both authenticators, and the methods that neither block nor await.
_SHARED: Final = tuple(
    name
    for name in (*BaseAuthenticator.__annotations__, *vars(BaseAuthenticator))
    if name[0] != "_"
)


class OffLoopAuthenticator(AsyncAuthenticator[UserT]):
    """Runs an `Authenticator` for an adapter on an event loop.

    Each operation is one call of the blocking authenticator in one thread, even if a subclass of the application overrides the
    method. Requests under a lease need no thread: they call `cached_principal` first.
    """

    # This class has no ports, so it does not call the initializer of the base class.
    def __init__(self, blocking: Authenticator[UserT]) -> None:
        vars(self).update((name, getattr(blocking, name)) for name in _SHARED)
        _run_in_threads(self, AsyncAuthenticator, blocking, "auth.blocking")
        self._blocking = blocking
        self._begin_closed()
        parts: Any = blocking
        reads, interval = parts._look_ups, parts._watch_interval
        self._watches: AsyncWatches[UserT] = AsyncWatches(
            self.rules, _OffLoopReads(reads), self.clock, interval
        )

    def admin_keys(
        self, permission: str, *, max_age: timedelta | None = None
    ) -> AsyncAdminKeys[UserT]:
        """See `Authenticator`. These operations run in threads, too."""
        return _OffLoopAdminKeys(self._blocking.admin_keys(permission, max_age=max_age))


class _OffLoopAdminKeys(AsyncAdminKeys[UserT]):
    """Runs each operation of `AdminKeys` in a thread."""

    # As above.
    def __init__(self, blocking: AdminKeys[UserT]) -> None:
        self.policy = blocking.policy
        _run_in_threads(self, AsyncAdminKeys, blocking, "auth.blocking.admin_keys(…)")


def _run_in_threads(awaited: object, kind: type[Any], blocking: object, place: str) -> None:
    """Let the methods of an object that must be awaited call those of a blocking object, each in a thread.

    Args:
        awaited: The object.
        kind: Its class, whose blocking twin has the same methods.
        blocking: An instance of the twin.
        place: Where a `def` route finds the instance, for an error.
    """

    def call(name: str, /, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        if is_beside_loop():
            raise ConfigurationError(
                f"{name} of an adapter's authenticator must be awaited, and was called in a `def` route. There, call"
                f" {place}.{name}(…) of the Authenticator that you gave to the adapter."
            )
        return to_thread.run_sync(partial(getattr(blocking, name), *args, **kwargs))

    for name, method in vars(kind).items():
        if name[0] != "_" and iscoroutinefunction(unwrap(method)):
            vars(awaited)[name] = partial(call, name)


class _OffLoopReads:
    """The look-ups of a round of watches, in separate threads: hanging look-ups must not use the threads of requests.

    Attributes:
        keys_at_once: The maximum number of keys in a call of :meth:`find_keys`.
    """

    keys_at_once: int = 1

    def __init__(self, reads: Reads) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self._reads = reads
        # The pool starts threads on first use, and serves every event loop.
        self._make_threads = partial(ThreadPoolExecutor, LOOK_UPS_AT_ONCE, "msk_auth watch")
        self._threads = self._make_threads()
        after_fork_in_child(self._renew)

    async def find_keys(self, key_ids: Sequence[str]) -> Sequence[ApiKey | None]:
        return [await self._call(self._reads.find_key, key_id) for key_id in key_ids]

    def find_session(self, session_id: str) -> Awaitable[Session | None]:
        return self._call(self._reads.find_session, session_id)

    def find_owner(self, owner_id: str) -> Awaitable[Owner[Any] | None]:
        return self._call(self._reads.find_owner, owner_id)

    def find_external_owner(self, identity: ExternalIdentity) -> Awaitable[Owner[Any] | None]:
        return self._call(self._reads.find_external_owner, identity)

    def _call(self, look_up: Callable[[T], R], name: T) -> Awaitable[R]:
        import asyncio

        return asyncio.get_running_loop().run_in_executor(self._threads, look_up, name)

    def _renew(self) -> None:
        abandon(self._threads)
        self._threads = self._make_threads()
