"""The routes of `_leak_routes` as Flask views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from flask import Request, request

from msk_auth.authenticator import Authenticator
from msk_auth.core.errors import KeyMalformed
from msk_auth.http.answers import Answer
from msk_auth.http.leak_routes import (
    IDENTIFIER_HEADER,
    MAX_REVOCATION,
    REVOKED,
    SIGNATURE_HEADER,
    check_path,
    check_receiver,
    labels_answer,
    not_a_key,
    parse_revocation,
)
from msk_auth.leaks import MAX_REPORT, GitHubLeakReceiver

from ._flask_keys import read_body

Throttle: TypeAlias = Callable[[Request], object]
"""Counts a request that nobody has to log in for, and raises :class:`~msk_auth.TooManyAttempts` for one too many."""


def revocation_view(
    authenticator: Authenticator[Any], path: str, throttle: Throttle | None
) -> Callable[[], Answer]:
    """Revokes the key in the body.

    Raises:
        ConfigurationError: The path does not begin with a slash, or ends with one.
    """
    check_path(path)

    def view() -> Answer:
        if throttle is not None:
            throttle(request)
        body = read_body(MAX_REVOCATION)
        token = parse_revocation(body, request.environ.get("CONTENT_TYPE"))
        try:
            authenticator.revoke_presented_key(token)
        except KeyMalformed:
            raise not_a_key() from None
        return REVOKED

    return view


def leak_view(
    receiver: GitHubLeakReceiver, path: str, throttle: Throttle | None
) -> Callable[[], Answer]:
    """Hands a report to a receiver.

    Raises:
        ConfigurationError: The path does not begin with a slash, or ends with one, or the receiver is of the other kind.
    """
    check_path(path)
    check_receiver(receiver, GitHubLeakReceiver)

    def view() -> Answer:
        if throttle is not None:
            throttle(request)
        labels = receiver.receive(
            read_body(MAX_REPORT),
            key_identifier=_header(IDENTIFIER_HEADER),
            signature=_header(SIGNATURE_HEADER),
        )
        return labels_answer(labels)

    return view


def _header(name: str) -> str | None:
    # Servers join several headers with commas, and neither of these two may hold one.
    value: str | None = request.environ.get(f"HTTP_{name.upper().replace('-', '_')}")
    return value
