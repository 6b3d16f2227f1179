"""The key routes for administrators: one table, and one flow for each route. Every adapter mounts the rows.

::

    GET    {prefix}                    the keys of all owners, by page
    POST   {prefix}/revoke             revoked keys, by their ids
    POST   {prefix}/{key_id}/revoke    the revoked key

All of them demand the interactive login with the permission that :class:`~msk_auth.AdminKeys` were made with.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Literal, TypeAlias, cast

from msk_auth._async.administration import AsyncAdminKeys
from msk_auth._sync.administration import AdminKeys
from msk_auth.core.errors import ConfigurationError
from msk_auth.core.model import ApiKey, KeyPage, Principal

from . import openapi
from .answers import Answer, json_answer
from .key_routes import MAX_BODY, key_document
from .parsing import parse_ids, parse_list_all
from .routes import Exchange, HttpFlow, Route, named_rows

AdminKeyOperation: TypeAlias = Literal["list_all_keys", "revoke_any_keys", "revoke_any_key"]
"""The name of a key route for administrators."""

AnyAdminKeys: TypeAlias = AsyncAdminKeys[Any] | AdminKeys[Any]

Call: TypeAlias = Callable[..., Any]
"""Calls a method of the `AdminKeys` of an application with its arguments."""


def list_all_keys(
    admin: AnyAdminKeys, call: Call, request: Exchange, principal: Principal[Any], _body: bytes
) -> HttpFlow[Answer]:
    """A page of the keys of all owners that match."""
    wanted = parse_list_all(request.query)
    page: KeyPage = yield lambda io: call(
        _of(io, admin).list_keys, principal, wanted.wanted, cursor=wanted.cursor, limit=wanted.limit
    )
    items = [key_document(request, record) for record in page.items]
    return json_answer(200, {"items": items, "next_cursor": page.next_cursor})


def revoke_any_keys(
    admin: AnyAdminKeys, call: Call, request: Exchange, principal: Principal[Any], body: bytes
) -> HttpFlow[Answer]:
    """The revoked keys, and the ids that no key has."""
    ids = parse_ids(body, request.content_type)
    revoked: tuple[ApiKey | None, ...] = yield lambda io: call(
        _of(io, admin).revoke_keys, principal, ids
    )
    found = [key_document(request, record) for record in revoked if record is not None]
    missing = [key_id for key_id, record in zip(ids, revoked, strict=True) if record is None]
    return json_answer(200, {"items": found, "not_found": missing})


def revoke_any_key(
    admin: AnyAdminKeys, call: Call, request: Exchange, principal: Principal[Any], _body: bytes
) -> HttpFlow[Answer]:
    """The revoked key."""
    record: ApiKey = yield lambda io: call(_of(io, admin).revoke_key, principal, request.key_id)
    return json_answer(200, key_document(request, record))


def admin_key_routes(
    admin: AnyAdminKeys,
    kinds: tuple[type[AnyAdminKeys], ...],
    call: Call,
    operations: Collection[AdminKeyOperation] | None,
) -> tuple[Route, ...]:
    """The rows of the table that an application wants.

    Args:
        admin: Decides, lists and revokes.
        kinds: What it may be under the adapter's driver.
        call: Calls its methods, under a driver that awaits.
        operations: The names of the routes; None means all.

    Raises:
        ConfigurationError: It is of another kind; or `operations` is no collection of names of these routes, or empty.
    """
    if not isinstance(cast("object", admin), kinds):
        raise ConfigurationError(
            f"admin_key_routes needs {kinds[0].__name__}(…) here, not {type(admin).__name__}: it has to wait in the"
            " way that this framework does."
        )
    return named_rows(_table(admin, call), operations, "key routes for administrators")


def _table(admin: AnyAdminKeys, call: Call) -> tuple[Route, ...]:
    policy = admin.policy
    return (
        Route(
            "list_all_keys",
            "GET",
            "",
            policy,
            partial(list_all_keys, admin, call),
            openapi.LIST_ALL_KEYS,
        ),
        Route(
            "revoke_any_keys",
            "POST",
            "/revoke",
            policy,
            partial(revoke_any_keys, admin, call),
            openapi.REVOKE_ANY_KEYS,
            MAX_BODY,
        ),
        Route(
            "revoke_any_key",
            "POST",
            "/{key_id}/revoke",
            policy,
            partial(revoke_any_key, admin, call),
            openapi.REVOKE_ANY_KEY,
        ),
    )


def _of(exchange: Exchange, admin: AnyAdminKeys) -> Any:
    """The `AdminKeys`, if they are those of the application that serves the request."""
    if admin.authenticator.rules is not exchange.authenticator.rules:
        raise ConfigurationError(
            "The AdminKeys of admin_key_routes have another authenticator than the adapter. Make them with the one that the"
            " application has."
        )
    return admin
