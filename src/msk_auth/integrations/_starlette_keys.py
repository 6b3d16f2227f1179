"""The key routes as Starlette endpoints; FastAPI serves the same ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

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
    check_prefix,
    parse_create,
    parse_list,
    parse_rotate,
)

from ._starlette_base import StarletteBase, declare, to_response

Handler: TypeAlias = Callable[[Principal[Any], Request], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class KeyRoute:
    """One of the key routes.

    Attributes:
        method: Its HTTP method.
        path: After the prefix.
        name: Its name in the framework's routing.
        policy: What its endpoint demands before it does anything.
        endpoint: Guards itself: there is no way to mount it without its guard.
    """

    method: str
    path: str
    name: str
    policy: Policy
    endpoint: Callable[[Request], Awaitable[Response]]


def key_routes(auth: StarletteBase[Any], prefix: str) -> list[KeyRoute]:
    """All key routes of an adapter.

    Raises:
        ConfigurationError: The prefix does not begin with a slash, or ends with one.
    """
    check_prefix(prefix)
    keys = _Handlers(auth)
    one = "/{key_id}"
    routes: list[tuple[str, str, str, Policy, Handler]] = [
        ("GET", "", "list_keys", READ, keys.list),
        ("POST", "", "create_key", MANAGE, keys.create),
        ("GET", one, "get_key", READ, keys.get),
        ("POST", f"{one}/rotate", "rotate_key", MANAGE, keys.rotate),
        ("POST", f"{one}/revoke", "revoke_key", MANAGE, keys.revoke),
        ("DELETE", one, "delete_key", MANAGE, keys.delete),
    ]
    return [
        KeyRoute(method, path, name, policy, _guarded(auth, policy, handler))
        for method, path, name, policy, handler in routes
    ]


def _guarded(
    auth: StarletteBase[Any], policy: Policy, handler: Handler
) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        principal = await auth.admit(request, policy)
        return to_response(await handler(principal, request))

    return declare(endpoint, policy)


class _Handlers:
    """What the routes do for a principal who may."""

    def __init__(self, auth: StarletteBase[Any]) -> None:
        self._authenticator = auth.authenticator
        self._present = KeyPresenter(auth.authenticator.rules.key_format, auth.authenticator.clock)

    async def list(self, principal: Principal[Any], request: Request) -> Answer:
        asked = parse_list(request.scope["query_string"])
        page = await self._authenticator.list_keys(
            principal, status=asked.status, cursor=asked.cursor, limit=asked.limit
        )
        return self._present.page(page)

    async def create(self, principal: Principal[Any], request: Request) -> Answer:
        asked = parse_create(
            await read_body(request, MAX_BODY), request.headers.get("content-type")
        )
        created = await self._authenticator.create_key(
            principal, name=asked.name, scopes=asked.scopes, lifetime=asked.lifetime
        )
        return self._present.created(created, collection=_path(request))

    async def get(self, principal: Principal[Any], request: Request) -> Answer:
        record = await self._authenticator.get_key(principal, request.path_params["key_id"])
        return self._present.key(record)

    async def rotate(self, principal: Principal[Any], request: Request) -> Answer:
        asked = parse_rotate(
            await read_body(request, MAX_BODY), request.headers.get("content-type")
        )
        created = await self._authenticator.rotate_key(
            principal, request.path_params["key_id"], overlap=asked.overlap
        )
        collection = _path(request).rsplit("/", 2)[0]  # without /{key_id}/rotate
        return self._present.created(created, collection=collection)

    async def revoke(self, principal: Principal[Any], request: Request) -> Answer:
        record = await self._authenticator.revoke_key(principal, request.path_params["key_id"])
        return self._present.key(record)

    async def delete(self, principal: Principal[Any], request: Request) -> Answer:
        await self._authenticator.delete_key(principal, request.path_params["key_id"])
        return NO_CONTENT


async def read_body(request: Request, limit: int) -> bytes:
    """The body of a request.

    Raises:
        ContentTooLarge: It has more bytes than `limit`.
        RequestMalformed: It ended before its end.
        Problem, HTTPException: A middleware of the application refused it.
    """
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                break
    except (Problem, HTTPException):
        raise
    except Exception:  # noqa: BLE001 - whatever a server raises, and `ClientDisconnect`
        raise broken_body() from None
    if len(body) > limit:
        raise ContentTooLarge(limit)
    return bytes(body)


def _path(request: Request) -> str:
    """The path as the client sees it. Some servers put the root path into `path`, others do not."""
    root: str = request.scope.get("root_path", "").rstrip("/")
    path: str = request.scope["path"]
    return path if path.startswith(f"{root}/") else root + path
