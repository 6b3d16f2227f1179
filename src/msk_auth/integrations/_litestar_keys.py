"""The key routes as Litestar handlers, each behind its guard."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias, cast

from litestar import Request, Response
from litestar.exceptions import HTTPException
from litestar.handlers import HTTPRouteHandler, delete, get, post
from litestar.openapi.spec import Operation

from msk_auth.authenticator import AsyncAuthenticator
from msk_auth.core.errors import Problem
from msk_auth.core.model import Principal
from msk_auth.core.policy import Policy
from msk_auth.http.admission import Memory
from msk_auth.http.answers import ContentTooLarge, broken_body
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
from msk_auth.http.openapi import describe_key_route

from ._litestar_errors import to_response

Keys: TypeAlias = Request[Any, Any, Any]
Admit: TypeAlias = Callable[[Keys, Policy], Awaitable[Principal[Any]]]

_ONE: Final = "/{key_id:str}"


def key_handlers(
    authenticator: AsyncAuthenticator[Any], *, admit: Admit, guard: Callable[[Policy], Any]
) -> list[HTTPRouteHandler]:
    """All key routes.

    Args:
        authenticator: Manages the keys.
        admit: Asked by every handler before anything else: there is no way to mount one without it.
        guard: For the documentation and for whoever reads the policy; the handler asks anyway.
    """
    present = KeyPresenter(authenticator.rules.key_format, authenticator.clock)

    # Functions, and no methods: Litestar copies a router deeply, with all that a method is bound to.

    async def list_keys(request: Request[Any, Any, Any]) -> Response[bytes]:
        principal = await admit(request, READ)
        asked = parse_list(request.scope["query_string"])
        page = await authenticator.list_keys(
            principal, status=asked.status, cursor=asked.cursor, limit=asked.limit
        )
        return to_response(present.page(page))

    async def create_key(request: Request[Any, Any, Any]) -> Response[bytes]:
        principal = await admit(request, MANAGE)
        asked = parse_create(
            await read_body(request, MAX_BODY), request.headers.get("content-type")
        )
        created = await authenticator.create_key(
            principal, name=asked.name, scopes=asked.scopes, lifetime=asked.lifetime
        )
        return to_response(present.created(created, collection=_path(request)))

    async def get_key(request: Request[Any, Any, Any]) -> Response[bytes]:
        principal = await admit(request, READ)
        return to_response(present.key(await authenticator.get_key(principal, _key_id(request))))

    async def rotate_key(request: Request[Any, Any, Any]) -> Response[bytes]:
        principal = await admit(request, MANAGE)
        asked = parse_rotate(
            await read_body(request, MAX_BODY), request.headers.get("content-type")
        )
        created = await authenticator.rotate_key(principal, _key_id(request), overlap=asked.overlap)
        collection = _path(request).rsplit("/", 2)[0]  # without /{key_id}/rotate
        return to_response(present.created(created, collection=collection))

    async def revoke_key(request: Request[Any, Any, Any]) -> Response[bytes]:
        principal = await admit(request, MANAGE)
        return to_response(present.key(await authenticator.revoke_key(principal, _key_id(request))))

    async def delete_key(request: Request[Any, Any, Any]) -> Response[None]:
        principal = await admit(request, MANAGE)
        await authenticator.delete_key(principal, _key_id(request))
        # Litestar wants to see in the annotation that there is no body.
        return Response(None, status_code=NO_CONTENT.status, headers=dict(NO_CONTENT.headers))

    def options(name: str, policy: Policy, status: int) -> dict[str, Any]:
        return {
            "name": f"msk_auth.{name}",
            "guards": [guard(policy)],
            "status_code": status,
            "operation_class": operation_class(name),
        }

    return [
        get("/", **options("list_keys", READ, 200))(list_keys),
        post("/", **options("create_key", MANAGE, 201))(create_key),
        get(_ONE, **options("get_key", READ, 200))(get_key),
        post(f"{_ONE}/rotate", **options("rotate_key", MANAGE, 201))(rotate_key),
        post(f"{_ONE}/revoke", **options("revoke_key", MANAGE, 200))(revoke_key),
        delete(_ONE, **options("delete_key", MANAGE, 204))(delete_key),
    ]


def operation_class(name: str) -> type[Operation]:
    """What the document says of one of the routes, whose handler shows Litestar nothing of it."""

    class KeyOperation(Operation):
        def to_schema(self) -> dict[str, Any]:
            return super().to_schema() | describe_key_route(name)

    return KeyOperation


async def read_body(request: Request[Any, Any, Any], limit: int) -> bytes:
    """The body of a request.

    Raises:
        ContentTooLarge: It has more bytes than `limit`.
        RequestMalformed: It ended before its end.
        Problem, HTTPException: A middleware of the application refused it.
    """
    body = bytearray()
    while True:
        try:
            message = cast("dict[str, Any]", await request.receive())
        except (Problem, HTTPException):
            raise
        except Exception:  # noqa: BLE001 - whatever a server raises
            raise broken_body() from None
        if message["type"] == "http.disconnect":
            raise broken_body()
        body += message.get("body", b"")
        if len(body) > limit:
            raise ContentTooLarge(limit)
        if not message.get("more_body", False):
            return bytes(body)


def _key_id(request: Keys) -> str:
    key_id: str = request.path_params["key_id"]
    return key_id


def _path(request: Keys) -> str:
    """The path as the client sees it. Litestar takes the root path off `path`."""
    scope = cast("Memory", request.scope)
    root: str = scope.get("root_path", "").rstrip("/")
    path: str = scope["path"]
    return root + path
