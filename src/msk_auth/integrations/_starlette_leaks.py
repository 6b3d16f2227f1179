"""The routes of `_leak_routes` as Starlette endpoints; FastAPI serves the same ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from msk_auth.core.errors import KeyMalformed
from msk_auth.http.leak_routes import (
    IDENTIFIER_HEADER,
    MAX_REVOCATION,
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

from ._starlette_base import StarletteBase, to_response
from ._starlette_keys import read_body

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]

Throttle: TypeAlias = Callable[[Request], Awaitable[object]]
"""Counts a request that nobody has to log in for, and raises :class:`~msk_auth.TooManyAttempts` for one too many."""


def revocation_endpoint(auth: StarletteBase[Any], path: str, throttle: Throttle | None) -> Endpoint:
    """Revokes the key in the body.

    Raises:
        ConfigurationError: The path does not begin with a slash, or ends with one.
    """
    check_path(path)
    authenticator = auth.authenticator

    async def endpoint(request: Request) -> Response:
        if throttle is not None:
            await throttle(request)
        body = await read_body(request, MAX_REVOCATION)
        token = parse_revocation(body, request.headers.get("content-type"))
        try:
            await authenticator.revoke_presented_key(token)
        except KeyMalformed:
            raise not_a_key() from None
        return to_response(REVOKED)

    return auth.public(endpoint)


def leak_endpoint(
    auth: StarletteBase[Any],
    receiver: AsyncGitHubLeakReceiver,
    path: str,
    throttle: Throttle | None,
) -> Endpoint:
    """Hands a report to a receiver.

    Raises:
        ConfigurationError: The path does not begin with a slash, or ends with one, or the receiver is of the other kind.
    """
    check_path(path)
    check_receiver(receiver, AsyncGitHubLeakReceiver)

    async def endpoint(request: Request) -> Response:
        if throttle is not None:
            await throttle(request)
        labels = await receiver.receive(
            await read_body(request, MAX_REPORT),
            key_identifier=only_value(request.scope["headers"], IDENTIFIER_HEADER),
            signature=only_value(request.scope["headers"], SIGNATURE_HEADER),
        )
        return to_response(labels_answer(labels))

    return auth.public(endpoint)
