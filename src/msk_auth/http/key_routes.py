"""The key routes: one table, and one flow for each route. Every adapter mounts the rows of :data:`KEY_ROUTES`.

::

    GET    {prefix}                    the caller's keys               any credential
    POST   {prefix}                    a new key, shown once           interactive
    GET    {prefix}/{key_id}           one of the caller's keys        any credential
    PATCH  {prefix}/{key_id}           the edited key                  interactive
    POST   {prefix}/{key_id}/rotate    its successor, shown once       interactive
    POST   {prefix}/{key_id}/revoke    the revoked key                 interactive
    DELETE {prefix}/{key_id}           nothing                         interactive

If the application has a `may_act_for`, each of them takes `?on_behalf_of=…`, the id of another owner whose keys it is about,
and only an interactive login may send it. Otherwise this parameter is ignored, as all unknown ones are.

A flow begins where :func:`~msk_auth.http.routes.respond` has checked the policy and read the body.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias, cast
from urllib.parse import quote

from msk_auth.core.fields import KEY_FIELDS
from msk_auth.core.key_management import CreatedKey
from msk_auth.core.model import ApiKey, KeyPage, Principal
from msk_auth.core.policy import any_credential, require_interactive

from . import openapi
from .answers import NO_STORE, Answer, json_answer
from .parsing import parse_create, parse_list, parse_on_behalf_of, parse_rotate, parse_update
from .routes import Exchange, HttpFlow, Route, named_rows

MAX_BODY: Final = 65_536
"""How many bytes of a body are read. A hundred scopes, a description, labels and networks need less than 25,000."""

KeyOperation: TypeAlias = Literal[
    "list_keys", "create_key", "get_key", "update_key", "rotate_key", "revoke_key", "delete_key"
]
"""The name of a key route."""

_READ: Final = any_credential()
_MANAGE: Final = require_interactive()


def list_keys(request: Exchange, principal: Principal[Any], _body: bytes) -> HttpFlow[Answer]:
    """A page of the caller's keys, newest first."""
    wanted = parse_list(request.query)
    acting = _acting(request)
    page: KeyPage = yield lambda io: io.authenticator.list_keys(
        principal,
        status=wanted.status,
        cursor=wanted.cursor,
        limit=wanted.limit,
        label=wanted.label,
        **acting,
    )
    items = [key_document(request, record) for record in page.items]
    return json_answer(200, {"items": items, "next_cursor": page.next_cursor})


def create_key(request: Exchange, principal: Principal[Any], body: bytes) -> HttpFlow[Answer]:
    """A new key, shown once."""
    wanted = parse_create(body, request.content_type)
    acting = _acting(request)
    created: CreatedKey = yield lambda io: io.authenticator.create_key(
        principal, lifetime=wanted.lifetime, **wanted.fields, **acting
    )
    return _reveal(request, created, request.path, **acting)


def get_key(request: Exchange, principal: Principal[Any], _body: bytes) -> HttpFlow[Answer]:
    """One of the caller's keys."""
    acting = _acting(request)
    record: ApiKey = yield lambda io: io.authenticator.get_key(principal, request.key_id, **acting)
    return json_answer(200, key_document(request, record))


def update_key(request: Exchange, principal: Principal[Any], body: bytes) -> HttpFlow[Answer]:
    """The edited key."""
    wanted = parse_update(body, request.content_type)
    acting = _acting(request)
    record: ApiKey = yield lambda io: io.authenticator.update_key(
        principal, request.key_id, **wanted, **acting
    )
    return json_answer(200, key_document(request, record))


def rotate_key(request: Exchange, principal: Principal[Any], body: bytes) -> HttpFlow[Answer]:
    """The successor of a key, shown once."""
    overlap = parse_rotate(body, request.content_type)
    acting = _acting(request)
    created: CreatedKey = yield lambda io: io.authenticator.rotate_key(
        principal, request.key_id, overlap=overlap, **acting
    )
    collection = request.path.rsplit("/", 2)[0]  # without /{key_id}/rotate
    return _reveal(request, created, collection, **acting)


def revoke_key(request: Exchange, principal: Principal[Any], _body: bytes) -> HttpFlow[Answer]:
    """The revoked key."""
    acting = _acting(request)
    record: ApiKey = yield lambda io: io.authenticator.revoke_key(
        principal, request.key_id, **acting
    )
    return json_answer(200, key_document(request, record))


def delete_key(request: Exchange, principal: Principal[Any], _body: bytes) -> HttpFlow[Answer]:
    """Revoke a key and take it off the list."""
    acting = _acting(request)
    yield lambda io: io.authenticator.delete_key(principal, request.key_id, **acting)
    return Answer(204, (NO_STORE,))


def _acting(request: Exchange) -> dict[str, str]:
    """On whose behalf the caller acts, as an argument of the authenticator; empty if on its own.

    A subclass of the application's authenticator may know no such argument, so it gets none that is not needed.
    """
    if not request.authenticator.rules.delegates:
        return {}
    owner_id = parse_on_behalf_of(request.query)
    return {} if owner_id is None else {"on_behalf_of": owner_id}


def _reveal(
    request: Exchange, created: CreatedKey, collection: str, on_behalf_of: str | None = None
) -> Answer:
    """The one answer in which a key's value exists."""
    # Quoted: a path parameter in the application's own prefix may hold anything.
    location = f"{quote(collection.rstrip('/'))}/{created.record.id}"
    if on_behalf_of is not None:
        location += f"?on_behalf_of={quote(on_behalf_of, safe='')}"
    document = key_document(request, created.record) | {"key": created.value.reveal()}
    return json_answer(201, document, [("location", location)])


def key_document(request: Exchange, record: ApiKey) -> dict[str, object]:
    """A key as the routes answer it, without its value."""
    shown = {
        field.name: _shown(getattr(record, field.name)) for field in KEY_FIELDS if field.is_shown
    }
    return shown | {
        "mask": request.authenticator.rules.key_format.mask(record.id),
        "status": record.status(request.authenticator.clock.now()).value,
    }


def _shown(value: object) -> object:
    """A value of a record as JSON has it: times as of RFC 3339, sets sorted."""
    match value:
        case datetime():
            utc = value.astimezone(UTC)
            return utc.isoformat(timespec="microseconds").replace("+00:00", "Z")
        case frozenset():
            return sorted(cast("frozenset[str]", value))
        case _:
            return value


_ONE: Final = "/{key_id}"

KEY_ROUTES: Final = (
    Route("list_keys", "GET", "", _READ, list_keys, openapi.LIST_KEYS),
    Route("create_key", "POST", "", _MANAGE, create_key, openapi.CREATE_KEY, MAX_BODY),
    Route("get_key", "GET", _ONE, _READ, get_key, openapi.GET_KEY),
    Route("update_key", "PATCH", _ONE, _MANAGE, update_key, openapi.UPDATE_KEY, MAX_BODY),
    Route(
        "rotate_key", "POST", f"{_ONE}/rotate", _MANAGE, rotate_key, openapi.ROTATE_KEY, MAX_BODY
    ),
    Route("revoke_key", "POST", f"{_ONE}/revoke", _MANAGE, revoke_key, openapi.REVOKE_KEY),
    Route("delete_key", "DELETE", _ONE, _MANAGE, delete_key, openapi.DELETE_KEY),
)
"""Every key route, in the order in which adapters mount them."""


def key_routes(operations: Collection[KeyOperation] | None) -> tuple[Route, ...]:
    """The rows of the table that an application wants.

    Args:
        operations: Their names; None means all.

    Raises:
        ConfigurationError: It is no collection of names of key routes, or empty.
    """
    return named_rows(KEY_ROUTES, operations, "key routes")
