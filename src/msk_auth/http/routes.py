"""A route without a framework: what an adapter extracts from a request, and the one way from there to an answer.

Every route the library ships is a :class:`Route` in a table: the adapters mount the rows, and :func:`respond` is the flow
that each request runs. Its order is the same for all of them:

1. A guarded route checks its policy, a public one the application's throttle.
2. Only then the body is read, up to the route's limit.
3. The route parses it, calls the authenticator, and presents the answer.

An adapter runs the flow with :func:`~msk_auth.flows.run_blocking` or :func:`~msk_auth.flows.run_awaiting` over its
:class:`Exchange`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, cast

from msk_auth.core.errors import ConfigurationError, RequestMalformed
from msk_auth.core.policy import Policy

from .answers import Answer, ContentTooLarge
from .openapi import Json

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One request, as an adapter extracts it. Callables that wait return awaitables under an awaiting driver.

    Attributes:
        authenticator: Manages the keys: an `Authenticator` or an `AsyncAuthenticator`.
        query: The raw query string, without the question mark.
        path: The path as the client sees it, not percent-encoded.
        key_id: The value of the placeholder in the route's path; empty if it has none.
        content_type: The header `Content-Type`, if it is there.
        header: The value of a header, given its lower-case name; None if it is not there exactly once.
        admit: Waits. The principal of the request, if a policy lets it pass.
        read_body: Waits. The body, given a limit; it may return more than the limit, and stops reading soon after it.
        throttle: Waits. Raises :class:`~msk_auth.errors.TooManyAttempts` for one request too many. None: there is no throttle.
    """

    authenticator: Any
    query: bytes
    path: str
    key_id: str
    content_type: str | None
    header: Callable[[str], str | None]
    admit: Callable[[Policy], Any]
    read_body: Callable[[int], Any]
    throttle: Callable[[], Any] | None = None


HttpFlow: TypeAlias = Generator[Callable[[Exchange], Any], Any, T]
"""A flow whose steps reach the outside through an :class:`Exchange`."""


@dataclass(frozen=True, slots=True)
class Route:
    """A row of a table of routes.

    Attributes:
        name: In the framework's routing.
        method: Its HTTP method.
        path: After the prefix; a placeholder is `{key_id}`.
        policy: What a request has to meet; None if the route is public, with a throttle.
        flow: What the route does with an exchange, the principal (None if the route is public) and the body.
        operation: What OpenAPI says of it.
        max_body: How many bytes of a body are read; None if none is.
    """

    name: str
    method: str
    path: str
    policy: Policy | None
    flow: Callable[[Exchange, Any, bytes], HttpFlow[Answer]]
    operation: Json
    max_body: int | None = None

    @property
    def status(self) -> int:
        """The status code of success."""
        return int(min(self.operation["responses"]))


def respond(route: Route, exchange: Exchange) -> HttpFlow[Answer]:
    """The answer of a route to a request.

    Raises:
        Problem: The policy, the throttle or the route refuses the request.
        Exception: What the application or its framework raises while the throttle is called or the body is read.
    """
    principal = None
    policy = route.policy
    if policy is not None:
        principal = yield lambda io: io.admit(policy)
    elif exchange.throttle is not None:
        throttle = exchange.throttle
        yield lambda _io: throttle()
    body = b"" if route.max_body is None else (yield from _read_body(route.max_body))
    return (yield from route.flow(exchange, principal, body))


def _read_body(limit: int) -> HttpFlow[bytes]:
    body: bytes = yield lambda io: io.read_body(limit)
    if len(body) > limit:
        raise ContentTooLarge(limit)
    return body


def broken_body() -> RequestMalformed:
    """The problem of a body that does not arrive as its headers announce it. Servers raise what they like for it."""
    return RequestMalformed(
        "The body could not be read to its end. Check its length or its chunks, and send the request again."
    )


def named_rows(
    table: tuple[Route, ...], operations: Collection[str] | None, kind: str
) -> tuple[Route, ...]:
    """The rows of a table that an application wants.

    Args:
        table: The routes.
        operations: Their names; None means all.
        kind: What the routes are called, for an error.

    Raises:
        ConfigurationError: It is no collection of names of these routes, or empty.
    """
    if operations is None:
        return table
    given = cast("object", operations)
    known = [row.name for row in table]
    is_list = isinstance(given, Collection) and not isinstance(given, str)
    if not is_list or not operations or any(name not in known for name in operations):
        raise ConfigurationError(
            f"operations={given!r} does not name {kind}. Write a list of some of these: {', '.join(known)}."
        )
    return tuple(row for row in table if row.name in operations)


def check_path(path: str, example: str) -> None:
    """Check while starting that routes can be served under a path.

    Raises:
        ConfigurationError: It does not begin with a slash, or ends with one.
    """
    if not path.startswith("/") or path.endswith("/"):
        raise ConfigurationError(
            f"The path {path!r} does not work. Write it with a slash at its beginning and none at its end,"
            f" such as {example!r}."
        )
