"""The routes of `_leak_routes` as Litestar handlers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, cast

from litestar import Request, Response
from litestar.handlers import HTTPRouteHandler, post

from msk_auth.authenticator import AsyncAuthenticator
from msk_auth.core.errors import KeyMalformed
from msk_auth.http.admission import Memory
from msk_auth.http.leak_routes import (
    IDENTIFIER_HEADER,
    MAX_REVOCATION,
    REPORT,
    REVOKE,
    REVOKED,
    SIGNATURE_HEADER,
    check_path,
    check_receiver,
    labels_answer,
    not_a_key,
    only_value,
    parse_revocation,
)
from msk_auth.leaks import MAX_REPORT, AsyncGitHubLeakReceiver

from ._litestar_errors import to_response
from ._litestar_keys import operation_class, read_body

Throttle: TypeAlias = Callable[[Request[Any, Any, Any]], Awaitable[object]]
"""Counts a request that nobody has to log in for, and raises :class:`~msk_auth.TooManyAttempts` for one too many."""


def revocation_handler(
    authenticator: AsyncAuthenticator[Any],
    path: str,
    throttle: Throttle | None,
    public: dict[str, Any],
) -> HTTPRouteHandler:
    """Revokes the key in the body.

    Raises:
        ConfigurationError: The path does not begin with a slash, or ends with one.
    """
    check_path(path)

    async def revoke_presented_key(request: Request[Any, Any, Any]) -> Response[bytes]:
        if throttle is not None:
            await throttle(request)
        body = await read_body(request, MAX_REVOCATION)
        token = parse_revocation(body, request.headers.get("content-type"))
        try:
            await authenticator.revoke_presented_key(token)
        except KeyMalformed:
            raise not_a_key() from None
        return to_response(REVOKED)

    return post(path, **_options(REVOKE, public))(revoke_presented_key)


def leak_handler(
    receiver: AsyncGitHubLeakReceiver,
    path: str,
    throttle: Throttle | None,
    public: dict[str, Any],
) -> HTTPRouteHandler:
    """Hands a report to a receiver.

    Raises:
        ConfigurationError: The path does not begin with a slash, or ends with one, or the receiver is of the other kind.
    """
    check_path(path)
    check_receiver(receiver, AsyncGitHubLeakReceiver)

    async def receive_leak_report(request: Request[Any, Any, Any]) -> Response[bytes]:
        if throttle is not None:
            await throttle(request)
        headers = cast("Memory", request.scope)["headers"]
        labels = await receiver.receive(
            await read_body(request, MAX_REPORT),
            key_identifier=only_value(headers, IDENTIFIER_HEADER),
            signature=only_value(headers, SIGNATURE_HEADER),
        )
        return to_response(labels_answer(labels))

    return post(path, **_options(REPORT, public))(receive_leak_report)


def _options(name: str, public: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": f"msk_auth.{name}",
        "opt": public,
        "status_code": 200,
        "tags": ["API keys"],
        "operation_class": operation_class(name),
    }
