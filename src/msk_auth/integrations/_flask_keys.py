"""The key routes as Flask views, without their guards: `FlaskAuth.key_routes` puts those on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from flask import request
from werkzeug.exceptions import ClientDisconnected, HTTPException

from msk_auth.authenticator import Authenticator
from msk_auth.core.errors import Problem
from msk_auth.core.model import Principal
from msk_auth.core.policy import Policy
from msk_auth.http.answers import Answer, ContentTooLarge, broken_body
from msk_auth.http.key_routes import (
    MANAGE,
    MAX_BODY,
    NO_CONTENT,
    READ,
    KeyPresenter,
    parse_create,
    parse_list,
    parse_rotate,
)

Handler: TypeAlias = Callable[..., Answer]


@dataclass(frozen=True, slots=True)
class KeyView:
    """One of the key routes.

    Attributes:
        method: Its HTTP method.
        rule: After the prefix.
        name: Its endpoint's name.
        policy: What has to be checked before it does anything.
        handler: Called with the principal and the values in the path.
    """

    method: str
    rule: str
    name: str
    policy: Policy
    handler: Handler


def key_views(authenticator: Authenticator[Any]) -> list[KeyView]:
    """All key routes of an authenticator."""
    keys = _Handlers(authenticator)
    one = "/<key_id>"
    return [
        KeyView("GET", "", "list_keys", READ, keys.list),
        KeyView("POST", "", "create_key", MANAGE, keys.create),
        KeyView("GET", one, "get_key", READ, keys.get),
        KeyView("POST", f"{one}/rotate", "rotate_key", MANAGE, keys.rotate),
        KeyView("POST", f"{one}/revoke", "revoke_key", MANAGE, keys.revoke),
        KeyView("DELETE", one, "delete_key", MANAGE, keys.delete),
    ]


class _Handlers:
    """What the routes do for a principal who may."""

    def __init__(self, authenticator: Authenticator[Any]) -> None:
        self._authenticator = authenticator
        self._present = KeyPresenter(authenticator.rules.key_format, authenticator.clock)

    def list(self, principal: Principal[Any]) -> Answer:
        asked = parse_list(request.query_string)
        page = self._authenticator.list_keys(
            principal, status=asked.status, cursor=asked.cursor, limit=asked.limit
        )
        return self._present.page(page)

    def create(self, principal: Principal[Any]) -> Answer:
        asked = parse_create(read_body(MAX_BODY), request.environ.get("CONTENT_TYPE"))
        created = self._authenticator.create_key(
            principal, name=asked.name, scopes=asked.scopes, lifetime=asked.lifetime
        )
        return self._present.created(created, collection=_path())

    def get(self, principal: Principal[Any], key_id: str) -> Answer:
        return self._present.key(self._authenticator.get_key(principal, key_id))

    def rotate(self, principal: Principal[Any], key_id: str) -> Answer:
        asked = parse_rotate(read_body(MAX_BODY), request.environ.get("CONTENT_TYPE"))
        created = self._authenticator.rotate_key(principal, key_id, overlap=asked.overlap)
        collection = _path().rsplit("/", 2)[0]  # without /{key_id}/rotate
        return self._present.created(created, collection=collection)

    def revoke(self, principal: Principal[Any], key_id: str) -> Answer:
        return self._present.key(self._authenticator.revoke_key(principal, key_id))

    def delete(self, principal: Principal[Any], key_id: str) -> Answer:
        self._authenticator.delete_key(principal, key_id)
        return NO_CONTENT


def read_body(limit: int) -> bytes:
    """The body of the current request.

    Raises:
        ContentTooLarge: It has more bytes than `limit`.
        RequestMalformed: It ended before its end.
        Problem, HTTPException: The application's own limits, or something of it in front of the stream.
    """
    body = bytearray()
    try:
        # One byte more than allowed shows that there are too many.
        while len(body) <= limit and (chunk := request.stream.read(limit + 1 - len(body))):
            body += chunk
    except ClientDisconnected:
        raise broken_body() from None
    except (Problem, HTTPException):
        raise
    except Exception:  # noqa: BLE001 - whatever a server raises
        raise broken_body() from None
    if len(body) > limit:
        raise ContentTooLarge(limit)
    return bytes(body)


def _path() -> str:
    """The path as the client sees it."""
    return request.root_path + request.path
