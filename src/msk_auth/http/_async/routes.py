"""The routes of the library, as tables, and the function from a request to an answer.

Key routes::

    GET    {prefix}                    the caller's keys               any credential
    POST   {prefix}                    a new key, shown once           interactive
    GET    {prefix}/{key_id}           one of the caller's keys        any credential
    PATCH  {prefix}/{key_id}           the edited key                  interactive
    POST   {prefix}/{key_id}/rotate    its successor, shown once       interactive
    POST   {prefix}/{key_id}/revoke    the revoked key                 interactive
    DELETE {prefix}/{key_id}           nothing                         interactive

If the application has a `may_act_for`, each of them takes `?on_behalf_of=…`, the id of another owner of the keys,
and only an interactive login may send it.

Routes for administrators, which require an interactive login with the permission of :meth:`~msk_auth.Authenticator.admin_keys`::

    GET    {prefix}                    the keys of all owners, by page
    POST   {prefix}/revoke             revoked keys, by their ids
    POST   {prefix}/{key_id}/revoke    the revoked key

Routes that need no login, and do not read `Authorization`::

    POST   /api/revoke                 the holder of a key revokes it     public, with a throttle
    POST   /api/leaks/github           GitHub's secret scanning reports   public, signed, with a throttle

The order is the same for all of them:

1. A guarded route checks its policy, and refuses unknown query parameters. A public route calls the application's
   throttle, and reads no query.
2. Only then the body is read, up to the route's limit.
3. The route parses the body, calls the authenticator, and returns the answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from msk_auth._async.administration import AsyncAdminKeys
from msk_auth._async.authenticator import AsyncAuthenticator
from msk_auth._async.primitives import holding
from msk_auth._leak_reports import (
    GITHUB_KEYS_URL,
    MAX_REPORT,
    PublishedKeys,
    check_signature,
    labels,
    read_report,
    read_signature,
)
from msk_auth.core.errors import CredentialRefused, InputInvalid
from msk_auth.core.key_management import MANAGE
from msk_auth.core.model import KeyFilter, Principal
from msk_auth.core.policy import Policy, require_interactive
from msk_auth.http import openapi
from msk_auth.http.answers import (
    NO_STORE,
    Answer,
    json_answer,
    key_answer,
    page_answer,
    revealing_answer,
    revoked_answer,
)
from msk_auth.http.parsing import (
    parse_create,
    parse_ids,
    parse_query,
    parse_revocation,
    parse_rotate,
    parse_update,
)
from msk_auth.http.routes import (
    MAX_BODY,
    MAX_REVOCATION,
    READ,
    AdminKeyOperation,
    KeyOperation,
    Route,
    named_rows,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncExchange:
    """One request, as an adapter extracts it. :func:`respond` adds what it has checked and read.

    Attributes:
        authenticator: Manages the keys.
        query: The raw query string, without the question mark.
        path: The path as the client sees it, not percent-encoded.
        key_id: The value of the placeholder in the route's path; empty if it has none.
        header: Returns the value of a header, given its lower-case name; None unless it is present exactly once.
        admit: Returns the principal of the request, if it meets a policy.
        read_body: Returns the body, given a limit; raises `ContentTooLarge` for a longer body.
        call: Calls a function of the application that may block.
        throttle: Raises :class:`~msk_auth.errors.TooManyAttempts` over the limit. None: there is no throttle.
        principal: The principal, unless the route is public.
        given: The parameters of the query, by name.
        body: The body, if the route reads it.
    """

    authenticator: AsyncAuthenticator[Any]
    query: bytes
    path: str
    key_id: str
    header: Callable[[str], str | None]
    admit: Callable[[Policy], Awaitable[Principal[Any]]]
    read_body: Callable[[int], Awaitable[bytes]]
    call: Callable[..., Awaitable[Any]]
    throttle: Callable[[], Awaitable[object]] | None = None
    principal: Any = None
    given: dict[str, Any] = field(default_factory=dict[str, Any])
    body: bytes = b""


async def respond(route: Route, exchange: AsyncExchange) -> Answer:
    """The answer of a route to a request.

    Raises:
        Problem: The policy, the throttle or the route refuses the request.
        Exception: An exception of the application or its framework while the throttle is called or the body is read.
    """
    if route.policy is not None:
        principal = await exchange.admit(route.policy)
        delegates = exchange.authenticator.rules.delegates
        given = parse_query(exchange.query, route.query_names(delegates=delegates))
        exchange = replace(exchange, principal=principal, given=given)
    elif exchange.throttle is not None:
        await exchange.throttle()
    if route.max_body is not None:
        exchange = replace(exchange, body=await exchange.read_body(route.max_body))
    answer: Answer = await route.handle(exchange)
    return answer


# A subclass of the application's authenticator may not accept `on_behalf_of`: it is passed only if it was sent.
async def list_keys(request: AsyncExchange) -> Answer:
    """A page of the caller's keys, newest first."""
    page = await request.authenticator.list_keys(request.principal, **request.given)
    return page_answer(request.authenticator, page)


async def create_key(request: AsyncExchange) -> Answer:
    """A new key, shown once."""
    wanted = parse_create(request.body, request.header("content-type"))
    created = await request.authenticator.create_key(request.principal, **wanted, **request.given)
    return revealing_answer(request.authenticator, created, request.path, **request.given)


async def get_key(request: AsyncExchange) -> Answer:
    """One of the caller's keys."""
    record = await request.authenticator.get_key(request.principal, request.key_id, **request.given)
    return key_answer(request.authenticator, record)


async def update_key(request: AsyncExchange) -> Answer:
    """The edited key."""
    wanted = parse_update(request.body, request.header("content-type"))
    record = await request.authenticator.update_key(
        request.principal, request.key_id, **wanted, **request.given
    )
    return key_answer(request.authenticator, record)


async def rotate_key(request: AsyncExchange) -> Answer:
    """The successor of a key, shown once."""
    overlap = parse_rotate(request.body, request.header("content-type"))
    created = await request.authenticator.rotate_key(
        request.principal, request.key_id, overlap=overlap, **request.given
    )
    collection = request.path.rsplit("/", 2)[0]  # without /{key_id}/rotate
    return revealing_answer(request.authenticator, created, collection, **request.given)


async def revoke_key(request: AsyncExchange) -> Answer:
    """The revoked key."""
    record = await request.authenticator.revoke_key(
        request.principal, request.key_id, **request.given
    )
    return key_answer(request.authenticator, record)


async def delete_key(request: AsyncExchange) -> Answer:
    """Revoke a key and remove it from the list."""
    await request.authenticator.delete_key(request.principal, request.key_id, **request.given)
    return Answer(204, (NO_STORE,))


_ONE = "/{key_id}"

KEY_ROUTES = (
    Route("list_keys", "GET", "", READ, list_keys, openapi.LIST_KEYS),
    Route("create_key", "POST", "", MANAGE, create_key, openapi.CREATE_KEY, MAX_BODY),
    Route("get_key", "GET", _ONE, READ, get_key, openapi.GET_KEY),
    Route("update_key", "PATCH", _ONE, MANAGE, update_key, openapi.UPDATE_KEY, MAX_BODY),
    Route("rotate_key", "POST", f"{_ONE}/rotate", MANAGE, rotate_key, openapi.ROTATE_KEY, MAX_BODY),
    Route("revoke_key", "POST", f"{_ONE}/revoke", MANAGE, revoke_key, openapi.REVOKE_KEY),
    Route("delete_key", "DELETE", _ONE, MANAGE, delete_key, openapi.DELETE_KEY),
)
"""Every key route, in the order in which adapters mount them."""


def key_routes(operations: Collection[KeyOperation] | None) -> tuple[Route, ...]:
    """The key routes with these names; None means all."""
    return named_rows(KEY_ROUTES, operations)


def admin_key_routes(
    permission: str, max_age: timedelta | None, operations: Collection[AdminKeyOperation] | None
) -> tuple[Route, ...]:
    """The key routes for administrators.

    Args:
        permission: As for :meth:`AsyncAuthenticator.admin_keys`.
        max_age: Likewise.
        operations: The names of the routes; None means all.
    """
    policy = require_interactive(permission, max_age=max_age)

    def admin_for(request: AsyncExchange) -> AsyncAdminKeys[Any]:
        return request.authenticator.admin_keys(permission, max_age=max_age)

    async def list_all_keys(request: AsyncExchange) -> Answer:
        given = dict(request.given)
        paging = {name: given.pop(name) for name in ("cursor", "limit") if name in given}
        wanted = KeyFilter(**given)
        page = await admin_for(request).list_keys(request.principal, wanted, **paging)
        return page_answer(request.authenticator, page)

    async def revoke_any_keys(request: AsyncExchange) -> Answer:
        ids = parse_ids(request.body, request.header("content-type"))
        revoked = await admin_for(request).revoke_keys(request.principal, ids)
        return revoked_answer(request.authenticator, ids, revoked)

    async def revoke_any_key(request: AsyncExchange) -> Answer:
        record = await admin_for(request).revoke_key(request.principal, request.key_id)
        return key_answer(request.authenticator, record)

    everything, one = openapi.REVOKE_ANY_KEYS, openapi.REVOKE_ANY_KEY
    table = (
        Route("list_all_keys", "GET", "", policy, list_all_keys, openapi.LIST_ALL_KEYS),
        Route("revoke_any_keys", "POST", "/revoke", policy, revoke_any_keys, everything, MAX_BODY),
        Route("revoke_any_key", "POST", f"{_ONE}/revoke", policy, revoke_any_key, one),
    )
    return named_rows(table, operations)


async def revoke_presented_key(request: AsyncExchange) -> Answer:
    """Revoke the key in the body."""
    token = parse_revocation(request.body, request.header("content-type"))
    try:
        await request.authenticator.revoke_presented_key(token)
    except CredentialRefused:
        # Without an error the sender would believe that a truncated key is revoked.
        raise InputInvalid.of(
            "token",
            "This is not a complete API key, so nothing was revoked. Send the whole value, beginning"
            " with its prefix.",
        ) from None
    # The same answer for existing and unknown keys (RFC 7009, section 2.2).
    return json_answer(200, {})


def revocation_route(path: str) -> Route:
    """The route that revokes a presented key."""
    operation = openapi.REVOKE_PRESENTED_KEY
    handle = revoke_presented_key
    return Route("revoke_presented_key", "POST", path, None, handle, operation, MAX_REVOCATION)


def leak_route(path: str, fetch_keys: Callable[[str], Any]) -> Route:
    """The route that receives reports of leaks.

    Args:
        path: The path of the route.
        fetch_keys: Fetches the body of an address. It may block.
    """
    keys = PublishedKeys()

    async def receive_leak_report(request: AsyncExchange) -> Answer:
        """Revoke the keys of a report, in the order of the checks of `_leak_reports`."""
        identifier, signature = read_signature(
            request.header("github-public-key-identifier"),
            request.header("github-public-key-signature"),
        )
        now = request.authenticator.clock.monotonic
        key = keys.find(identifier, now())
        if key is None:
            async with holding(keys.lock):
                if keys.begin_fetch(identifier, now()):
                    with keys.fetching():
                        keys.fill(await request.call(fetch_keys, GITHUB_KEYS_URL))
            key = keys.find(identifier, now())
        check_signature(key, signature, request.body)
        matches = read_report(request.body)
        revoked = await request.authenticator.revoke_leaked([match.found for match in matches])
        return json_answer(200, labels(matches, revoked))

    operation = openapi.RECEIVE_LEAK_REPORT
    handle = receive_leak_report
    return Route("receive_leak_report", "POST", path, None, handle, operation, MAX_REPORT)
