"""What every ASGI adapter shares: the credentials in a scope, and the methods that wait for a principal.

A request and a handshake are verified once. A websocket that is open is verified each time: what its handshake found may
be long past.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from msk_auth.authenticator import AsyncAuthenticator, Authenticator
from msk_auth.core.errors import ConfigurationError, Problem
from msk_auth.core.model import Principal, UserT
from msk_auth.core.policy import Policy
from msk_auth.http import admission
from msk_auth.http.admission import Memory
from msk_auth.http.answers import Answer, ProblemRenderer
from msk_auth.http.routes import Exchange, Route, broken_body, respond
from msk_auth.ports import run_awaiting
from msk_auth.watch import AsyncWatch

HANDSHAKE: Final = "msk_auth.handshake"
"""Where the scope of a websocket keeps its :class:`Handshake`."""

POLICY_VIOLATION: Final = 1008  # RFC 6455, section 7.4.1

RequestT = TypeVar("RequestT", bound="Connection")

_AUTHENTICATED: Final = Policy()


class Connection(Protocol):
    """A request or a websocket of any ASGI framework."""

    @property
    def scope(self) -> Any: ...


@dataclass(slots=True)
class Handshake:
    """How far a websocket is; every copy of its scope has the same one.

    Attributes:
        accepted: The application has accepted it, so it is open.
    """

    accepted: bool = False


def is_open(scope: Memory) -> bool:
    """True for a websocket whose handshake was accepted."""
    handshake: Handshake | None = scope.get(HANDSHAKE)
    return handshake is not None and handshake.accepted


class AsgiAuth(ABC, Generic[UserT]):
    """An adapter on top of one `AsyncAuthenticator`, whatever the framework.

    Args:
        authenticator: Decides; also an attribute.

    Raises:
        ConfigurationError: It is not an `AsyncAuthenticator`.
    """

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

    async def admit(self, connection: Connection, policy: Policy) -> Principal[UserT]:
        """The principal of a request or websocket, if the policy lets it pass.

        Guards call it; so may code that decides on a policy as it runs. A request is verified once, a websocket that is
        open each time.

        Raises:
            Problem: The credentials are missing or refused, or the policy is not met.
            ConfigurationError: The adapter is not installed on the application that serves the route.
        """
        scope = connection.scope
        self._check_installed(scope)
        return await self._verify(scope, policy, afresh=is_open(scope))

    async def verify_again(
        self, connection: Connection, policy: Policy = _AUTHENTICATED
    ) -> Principal[UserT]:
        """The principal of a request or websocket as it is now, if the policy lets it pass: verified afresh, or within a lease.

        For what goes on after a request was admitted. :meth:`admit` verifies once for the length of a request.

        Args:
            connection: The request or websocket.
            policy: What it has to meet; the default is to be authenticated.

        Raises:
            Problem: The credentials are refused now, or the policy is not met.
            ConfigurationError: As :meth:`admit`.
        """
        self._check_installed(connection.scope)
        return await self._verify(connection.scope, policy, afresh=True)

    def watch(self, principal: Principal[UserT], policy: Policy | None = None) -> AsyncWatch[UserT]:
        """A watch that ends a websocket or an event stream within two seconds of a revocation.

        `async with auth.watch(principal):` stands around what a websocket does, which is then closed with 1008 and the
        code of the refusal; a response streams `auth.watch(principal).stream(events())`.

        Args:
            principal: As it was admitted.
            policy: What it has to meet all the time. None: to keep every permission that it was admitted with.
        """
        return self.authenticator.watch(principal, policy)

    @abstractmethod
    def _check_installed(self, scope: Memory) -> None:
        """Refuse a route of an application without this adapter, at the first request.

        Raises:
            ConfigurationError: The application does not have this adapter.
        """

    async def _verify(self, scope: Memory, policy: Policy, *, afresh: bool) -> Principal[UserT]:
        # Every header, as sent. Frameworks hand out the first of several, or join them, and decode leniently; which
        # credentials count must not depend on that.
        authorization = tuple(values(scope, b"authorization"))
        flow = admission.admit(scope, self.authenticator, authorization, policy, afresh=afresh)
        principal = await run_awaiting(flow, self.authenticator)
        self._publish(scope, principal)
        return principal

    def _publish(self, scope: Memory, principal: Principal[UserT]) -> None:
        """Put a verified principal where the framework's own attributes of a request read it."""

    async def _respond(
        self,
        route: Route,
        request: RequestT,
        *,
        path: str,
        read_body: Callable[[int], Awaitable[bytes]],
        throttle: Callable[[RequestT], Awaitable[object]] | None,
    ) -> Answer:
        """The answer of one of the library's own routes."""
        scope = request.scope
        exchange = Exchange(
            authenticator=self.authenticator,
            query=scope["query_string"],
            path=path,
            key_id=scope["path_params"].get("key_id", ""),
            content_type=next(iter(_texts(scope, b"content-type")), None),
            header=lambda name: _only(_texts(scope, name.encode())),
            admit=lambda policy: self.admit(request, policy),
            read_body=read_body,
            throttle=None if throttle is None else partial(throttle, request),
        )
        return await run_awaiting(respond(route, exchange), exchange)


def values(scope: Memory, name: bytes) -> list[bytes]:
    """The values of every header of a name, as sent."""
    return [value for key, value in scope["headers"] if key.lower() == name]


def _texts(scope: Memory, name: bytes) -> list[str]:
    return [value.decode("latin-1") for value in values(scope, name)]


def _only(found: list[str]) -> str | None:
    return found[0] if len(found) == 1 else None


async def read_stream(
    chunks: AsyncIterable[bytes], limit: int, *, passing: type[Exception]
) -> bytes:
    """The body of a request; of one that is longer than `limit`, the beginning.

    Args:
        chunks: The body, as it arrives.
        limit: In bytes.
        passing: The framework's errors that a middleware of the application refuses a body with.

    Raises:
        RequestMalformed: It ended before its end.
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
    return bytes(body)
