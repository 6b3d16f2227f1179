"""What every ASGI adapter shares: the credentials in a scope, and the methods that wait for a principal.

A request and a handshake are verified once. A websocket that is open is verified each time: what its handshake found may
be long past.

What an `Authenticator` does runs in threads. So a synchronous application on an asynchronous framework needs no second engine,
and no second pool of connections.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Coroutine, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from inspect import iscoroutinefunction, unwrap
from typing import Any, Final, Generic, Protocol, Self, TypeAlias, TypeVar, cast

from anyio import to_thread

from msk_auth._async.authenticator import AsyncAuthenticator
from msk_auth._async.primitives import is_beside_loop
from msk_auth._async.watch import LOOK_UPS_AT_ONCE, AsyncWatch, AsyncWatches
from msk_auth._fork import abandon, after_fork_in_child
from msk_auth._sync.authenticator import Authenticator
from msk_auth._sync.verification import Reads
from msk_auth.core.authentication import bearer_of_key
from msk_auth.core.errors import ConfigurationError, Problem
from msk_auth.core.logins import RequestLogins
from msk_auth.core.model import ApiKey, ExternalIdentity, Login, Owner, Principal, Session, UserT
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
from msk_auth.leaks import AsyncGitHubLeakReceiver, GitHubLeakReceiver
from msk_auth.users import RequestSession

from ._adapter import Adapter, GuardT

_HANDSHAKE: Final = "msk_auth.handshake"
"""Where the scope of a websocket keeps its :class:`_Handshake`."""

_POLICY_VIOLATION: Final = 1008  # RFC 6455, section 7.4.1
_DENIAL: Final = "websocket.http.response"

T = TypeVar("T")
R = TypeVar("R")
ConnectionT = TypeVar("ConnectionT")
RequestT = TypeVar("RequestT", bound="Connection")

MountedT = TypeVar("MountedT")
"""What an application of the framework takes as a route."""

LoginOf: TypeAlias = Callable[[ConnectionT], Login | Awaitable[Login | None] | None]
"""Finds a login in a request, such as in its session; None if there is none."""

Throttle: TypeAlias = Callable[[RequestT], object]
"""Counts a request that needs no login, and raises :class:`~msk_auth.errors.TooManyAttempts` for one too many.

Either `async`, or blocking: then it runs in a thread."""


Receive: TypeAlias = Callable[[], Awaitable[Any]]
"""Receives a message of ASGI."""

Send: TypeAlias = Callable[[Any], Awaitable[None]]
"""Sends a message of ASGI."""

AsgiApp: TypeAlias = Callable[[Any, Receive, Send], Awaitable[None]]
"""An application, or what a middleware makes of one."""


class Connection(Protocol):
    """A request or a websocket of any ASGI framework."""

    @property
    def scope(self) -> Any: ...


@dataclass(slots=True)
class _Handshake:
    """How far a websocket is; every copy of its scope has the same one.

    Attributes:
        accepted: The application has accepted it, so it is open.
    """

    accepted: bool = False


def is_open(scope: Memory) -> bool:
    """True for a websocket whose handshake was accepted."""
    handshake: _Handshake | None = scope.get(_HANDSHAKE)
    return handshake is not None and handshake.accepted


def noting_handshake(scope: Memory, send: Send) -> Send:
    """A `send` for a websocket that notes when the application accepts it.

    The framework's object for it does not show that: a class-based endpoint has another one than the handler of what it
    raises.
    """
    handshake = scope[_HANDSHAKE] = _Handshake()

    async def send_and_note(message: Any) -> None:
        if message["type"] == "websocket.accept":
            handshake.accepted = True
        await send(message)

    return send_and_note


async def refuse_websocket(scope: Memory, send: Send, answer: Answer, *, is_accepted: bool) -> None:
    """Close a websocket, with the code of the answer once it is accepted.

    Before that a server that can (ASGI, "Websocket Denial Response") sends the whole answer in place of the handshake, and
    one that cannot sends a bare 403.
    """
    if is_accepted or _DENIAL not in (scope.get("extensions") or {}):
        reason = close_reason(answer)
        await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": reason})
        return
    await send_answer(send, answer, _DENIAL)


def watch_verified(
    authenticator: AsyncAuthenticator[UserT], principal: Principal[UserT]
) -> AsyncWatch[UserT]:
    """A watch of a principal that was verified just now. A block that ends before the next round costs no look-up."""
    parts: Any = authenticator
    watch: AsyncWatch[UserT] = parts._watches.watch(principal, None, is_fresh=True)
    return watch


async def send_answer(send: Send, answer: Answer, kind: str = "http.response") -> None:
    """Send an answer as messages of ASGI.

    Args:
        send: The server's.
        answer: The whole response.
        kind: What the types of the messages begin with.
    """
    headers = [*answer.headers, ("content-length", str(len(answer.body)))]
    encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    await send({"type": f"{kind}.start", "status": answer.status, "headers": encoded})
    await send({"type": f"{kind}.body", "body": answer.body})


class AsgiAuth(
    Adapter[AsyncAuthenticator[UserT] | Authenticator[UserT], GuardT],
    Generic[UserT, GuardT, ConnectionT],
):
    """An adapter of a framework on an event loop. What an `Authenticator` does runs in threads.

    The arguments are those of :class:`Adapter`.
    """

    def __init__(
        self,
        authenticator: AsyncAuthenticator[UserT] | Authenticator[UserT] | None = None,
        *,
        logins: Sequence[LoginOf[ConnectionT]] = (),
        own_csrf_protection: bool = False,
        header: str | None = None,
        session: Callable[[ConnectionT], object] | None = None,
    ) -> None:
        # While an application is served: this adapter, as it is bound in that application.
        self._serving: ContextVar[Any] = ContextVar("msk_auth.serving", default=None)
        super().__init__(
            authenticator,
            logins=logins,
            own_csrf_protection=own_csrf_protection,
            header=header,
            find_session=session,
        )

    @property
    def authenticator(self) -> AsyncAuthenticator[UserT]:
        """The authenticator, to be awaited.

        It is the one that you gave to the adapter. In place of an `Authenticator` it is one whose methods have to be awaited,
        and which run in threads; :attr:`blocking` is the original. Where each application has an authenticator of its own, it
        is the one of the application that serves the current request.

        Raises:
            ConfigurationError: There is none yet, or none here.
        """
        return self._bound_here()._authenticator

    @property
    def blocking(self) -> Authenticator[UserT]:
        """The `Authenticator` that you gave to the adapter, for `def` routes: its methods are not awaited.

        Raises:
            ConfigurationError: The adapter has an `AsyncAuthenticator`, or none here.
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
        """The principal of a request or websocket, if the policy lets it pass. Has to be awaited.

        Guards call it; so may code that decides on a policy as it runs. A request is verified once, a websocket that is
        open each time.

        Raises:
            Problem: The credentials are missing or refused, or the policy is not met.
            ConfigurationError: The adapter is not installed on the application that serves the route; or the call is in a
                `def` route, where nothing awaits it.
        """
        _refuse_beside_loop("admit")
        scope = connection.scope
        return self._bound_in(scope)._verify(scope, policy)

    def is_admitted(self, connection: Connection) -> bool:
        """True on a route whose guards have let the request or websocket pass, so that it has a principal.

        For a decorator or dependency of the application that stays on its routes: it has nothing to verify where a guard stands,
        and knows no keys elsewhere.

        Raises:
            ConfigurationError: The adapter is not installed on the application that serves the route.
        """
        scope = connection.scope
        return scope.get(ADMITTED) is self._bound_in(scope)._authenticator

    def verify_again(
        self, connection: Connection, policy: Policy = AUTHENTICATED
    ) -> Coroutine[Any, Any, Principal[UserT]]:
        """The principal of a request or websocket as it is now, if the policy lets it pass: verified afresh, or within a lease.

        For what goes on after a request was admitted. :meth:`admit` verifies once for the length of a request. Has to be
        awaited.

        Args:
            connection: The request or websocket.
            policy: What it has to meet; the default is to be authenticated.

        Raises:
            Problem: The credentials are refused now, or the policy is not met.
            ConfigurationError: As :meth:`admit`.
        """
        _refuse_beside_loop("verify_again")
        scope = connection.scope
        return self._bound_in(scope)._verify(scope, policy, afresh=True)

    def watch(self, principal: Principal[UserT], policy: Policy | None = None) -> AsyncWatch[UserT]:
        """A watch that ends a websocket or an event stream within two seconds of a revocation.

        `async with auth.watch(principal):` stands around what a websocket does, which is then closed with 1008 and the
        code of the refusal; a response streams `auth.watch(principal).stream(events())`.

        Args:
            principal: As it was admitted.
            policy: What it has to meet all the time. None: to keep every permission that it was admitted with.
        """
        return self.authenticator.watch(principal, policy)

    def _serve(
        self, app: AsgiApp, watch_handshake: Callable[[Memory, Send], Send] = noting_handshake
    ) -> AsgiApp:
        """A middleware around the application that this adapter is bound to.

        Args:
            app: The rest of the application.
            watch_handshake: Makes the `send` of a websocket.
        """

        async def serve(scope: Any, receive: Receive, send: Send) -> None:
            if scope["type"] == "websocket":
                send = watch_handshake(scope, send)
            serving = self._serving.set(self)
            try:
                await app(scope, receive, send)
            finally:
                self._serving.reset(serving)

        return serve

    def _bound_in(self, scope: Memory) -> Self:
        """This adapter, bound as it is in the application that serves a request.

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
        serving: Self | None = self._serving.get()
        return serving

    async def _verify(
        self, scope: Memory, policy: Policy, *, afresh: bool = False, in_session: bool = True
    ) -> Principal[UserT]:
        # Every header, as sent. Frameworks hand out the first of several, or join them, and decode leniently; which
        # credentials count must not depend on that.
        authorization: Authorization = tuple(values(scope, b"authorization"))
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
            # As the server states it. There is none on a Unix socket.
            address=None if client is None else client[0],
            path=scope.get("path_params") or {},
            afresh=afresh or (scope["type"] == "websocket" and is_open(scope)),
            elsewhere=elsewhere,
            session=self._session_to_read_in(scope) if reads_in_session else None,
        )

    def _session_to_read_in(self, scope: Memory) -> RequestSession | None:
        return self._request_session(scope)

    def _request_session(self, scope: Memory) -> RequestSession:
        """The session of a request, for an adapter that has a function which finds it."""
        find = cast("Callable[[ConnectionT], object]", self._find_session)
        return keep_session(scope, self._authenticator, lambda: find(self._connection(scope)))

    async def _load_user(self, request: RequestSession, principal: Principal[UserT]) -> Any:
        """The application's user of a request, in its session; the one that was read to verify the request."""
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
        """The framework's object for a request or websocket, which the application's `logins` take; without one the scope."""
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
        """The answer of one of the library's own routes."""
        scope = request.scope
        bound = self._bound_in(scope)
        exchange = AsyncExchange(
            authenticator=bound._authenticator,
            query=scope["query_string"],
            path=path,
            key_id=scope["path_params"].get("key_id", ""),
            content_type=next(iter(_texts(scope, b"content-type")), None),
            header=lambda name: _only(_texts(scope, name.encode())),
            admit=lambda policy: bound._verify(scope, policy, in_session=False),
            read_body=read_body,
            call=call_awaited,
            throttle=None if throttle is None else partial(call_awaited, throttle, request),
        )
        return await respond(route, exchange)


async def call_awaited(function: Callable[..., Any], *args: object, **kwargs: object) -> Any:
    """Call an application's function: an async one here, and a blocking one in a thread."""
    called = function if inspect.isroutine(function) else getattr(function, "__call__")  # noqa: B004, B009
    if inspect.iscoroutinefunction(called):
        result = function(*args, **kwargs)
    else:
        result = await to_thread.run_sync(partial(function, *args, **kwargs))
    return await result if inspect.isawaitable(result) else result


def _refuse_beside_loop(name: str) -> None:
    if is_beside_loop():
        raise ConfigurationError(
            f"{name} was called in a `def` route, where nothing awaits it, so nothing would be verified. Await it in"
            " an `async def` route."
        )


def values(scope: Memory, name: bytes) -> list[bytes]:
    """The values of every header of a name, as sent."""
    return [value for key, value in scope["headers"] if key.lower() == name]


def client_path(scope: Memory) -> str:
    """The path as the client has it. Some servers put the root path into `path`, others do not."""
    root: str = scope.get("root_path", "").rstrip("/")
    path: str = scope["path"]
    return path if path.startswith(f"{root}/") else root + path


def _texts(scope: Memory, name: bytes) -> list[str]:
    return [value.decode("latin-1") for value in values(scope, name)]


def _only(found: list[str]) -> str | None:
    return found[0] if len(found) == 1 else None


async def body_chunks(receive: Receive) -> AsyncGenerator[bytes]:
    """The body of a request, as it arrives.

    Raises:
        RequestMalformed: The client has left.
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
        chunks: The body, as it arrives.
        limit: In bytes.
        passing: The framework's errors that a middleware of the application refuses a body with.

    Raises:
        RequestMalformed: It ended before its end.
        ContentTooLarge: It is longer than `limit`.
        Problem, Exception: A middleware of the application refused it.
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
    """The routes that need no login. An adapter mounts them."""

    def revocation_route(
        self, *, path: str = "/api/revoke", throttle: Throttle[RequestT] | None
    ) -> MountedT:
        """A route that revokes the key in the body, without a login: `POST` with `token=…` as a form, or as JSON.

        The answer is the same whether the key exists or not (RFC 7009, section 2.2). What is no complete key is refused:
        that needs no look-up.

        Args:
            path: Where to serve it.
            throttle: Called with each request first; it raises :class:`~msk_auth.errors.TooManyAttempts` for one too many.
                Either `async`, or blocking: then it runs in a thread. Pass None if something in front of the application
                limits requests already.
        """
        return self._mount_public(revocation_route(path), throttle)

    def leak_route(
        self,
        receiver: AsyncGitHubLeakReceiver | GitHubLeakReceiver,
        *,
        path: str = "/api/leaks/github",
        throttle: Throttle[RequestT] | None,
    ) -> MountedT:
        """A route that receives the reports of GitHub's secret scanning. It is public, and takes signed reports only.

        Args:
            receiver: Checks the reports and revokes the keys.
            path: Where to serve it.
            throttle: As for :meth:`revocation_route`.
        """
        return self._mount_public(leak_route(path, receiver), throttle)

    @abstractmethod
    def _mount_public(self, row: Route, throttle: Throttle[RequestT] | None) -> MountedT:
        """A row of the table as a route of the framework."""


_SHARED: Final = (
    "profiles",
    "issuers",
    "rules",
    "users",
    "realm",
    "clock",
    "cached_principal",
    "authorize",
    "reference",
)
# The two authenticators have the same methods.
_IN_THREAD: Final = tuple(
    name
    for name, method in vars(AsyncAuthenticator).items()
    if name[0] != "_" and name != "authenticate" and iscoroutinefunction(unwrap(method))
)


class OffLoopAuthenticator(AsyncAuthenticator[UserT]):
    """An `Authenticator` for an event loop. What an adapter for an event loop makes of it.

    Each operation is one call of the blocking authenticator in one thread, also where the application overrides the method in a
    subclass. Verifications under a lease, and malformed headers, need no thread.
    """

    # It has no ports of its own, so the initializer of the base class has nothing to do here.
    def __init__(self, blocking: Authenticator[UserT]) -> None:
        vars(self).update((name, getattr(blocking, name)) for name in _SHARED)
        vars(self).update((name, partial(self._call, name)) for name in _IN_THREAD)
        self._blocking = blocking
        self._begin_closed()
        parts: Any = blocking
        reads, interval = parts._look_ups, parts._watch_interval
        self._watches: AsyncWatches[UserT] = AsyncWatches(
            self.rules, _OffLoopReads(reads), self.clock, interval
        )

    async def authenticate(
        self, authorization: Sequence[str | bytes], *more: Any, **named: Any
    ) -> Principal[UserT]:
        """As `Authenticator` does it."""
        principal = None if self.cached_principal is None else self.cached_principal(authorization)
        if principal is None:
            principal = await self._call("authenticate", authorization, *more, **named)
        return principal

    def _call(self, name: str, /, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        if is_beside_loop():
            raise ConfigurationError(
                f"{name} of an adapter's authenticator has to be awaited, and was called in a `def` route. Call"
                f" auth.blocking.{name}(…) there: the Authenticator that you gave to the adapter."
            )
        return to_thread.run_sync(partial(getattr(self._blocking, name), *args, **kwargs))


class _OffLoopReads:
    """The look-ups of a round of watches. They have threads of their own: those that hang must take none from requests.

    Attributes:
        keys_at_once: How many keys one call of :meth:`find_keys` may look up.
    """

    keys_at_once: int = 1

    def __init__(self, reads: Reads) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self._reads = reads
        # It starts threads on first use, and serves every event loop.
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
