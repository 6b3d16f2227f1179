"""The two routes that need no login: revocation of a presented key, and reports of leaks.

::

    POST   /api/revoke          the holder of a key revokes it     public, with a throttle
    POST   /api/leaks/github    GitHub's secret scanning reports   public, signed, with a throttle

What a request has in `Authorization` is not read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from msk_auth.core.errors import ConfigurationError, InputInvalid, KeyMalformed
from msk_auth.leaks import MAX_REPORT, AsyncGitHubLeakReceiver, GitHubLeakReceiver, LeakLabel

from . import openapi
from .answers import Answer, json_answer
from .parsing import parse_revocation
from .routes import Exchange, HttpFlow, Route, check_path

MAX_REVOCATION: Final = 4096
"""How many bytes of a request to revoke are read. A key has 55, in a form at most three times as many."""

_IDENTIFIER_HEADER: Final = "github-public-key-identifier"
_SIGNATURE_HEADER: Final = "github-public-key-signature"
_EXAMPLE: Final = "/api/revoke"

AnyReceiver: TypeAlias = AsyncGitHubLeakReceiver | GitHubLeakReceiver


def revoke_presented_key(request: Exchange, _principal: None, body: bytes) -> HttpFlow[Answer]:
    """Revoke the key in the body."""
    token = parse_revocation(body, request.content_type)
    try:
        yield lambda io: io.authenticator.revoke_presented_key(token)
    except KeyMalformed:
        # Without an error its sender would believe that a cut-off key is revoked.
        raise InputInvalid.of(
            "token",
            "This is not a complete API key, so nothing was revoked. Send the whole value, beginning"
            " with its prefix.",
        ) from None
    # One answer, whether there is such a key or not (RFC 7009, section 2.2).
    return json_answer(200, {})


def receive_leak_report(
    receive: Callable[..., Any], _request: Exchange, _principal: None, body: bytes
) -> HttpFlow[Answer]:
    """Hand a report to its receiver."""
    labels: Sequence[LeakLabel] = yield lambda io: receive(
        body,
        key_identifier=io.header(_IDENTIFIER_HEADER),
        signature=io.header(_SIGNATURE_HEADER),
    )
    return json_answer(200, [label.document() for label in labels])


def revocation_route(path: str) -> Route:
    """The row of the route that revokes a presented key.

    Raises:
        ConfigurationError: The path does not begin with a slash, or ends with one.
    """
    check_path(path, _EXAMPLE)
    return Route(
        "revoke_presented_key",
        "POST",
        path,
        None,
        revoke_presented_key,
        openapi.REVOKE_PRESENTED_KEY,
        MAX_REVOCATION,
    )


def leak_route(
    path: str,
    receiver: object,
    kinds: tuple[type[AnyReceiver], ...],
    call: Callable[..., Any] | None = None,
) -> Route:
    """The row of the route that receives reports.

    Args:
        path: Where it is served.
        receiver: Checks the reports and revokes the keys.
        kinds: What the receiver may be under the adapter's driver.
        call: Calls what may be a function or a coroutine function, under a driver that awaits.

    Raises:
        ConfigurationError: The path does not begin with a slash, or ends with one, or the receiver is of another kind.
    """
    check_path(path, _EXAMPLE)
    if not isinstance(receiver, kinds):
        raise ConfigurationError(
            f"leak_route needs {kinds[0].__name__}(…) here, not {type(receiver).__name__}: it has to wait"
            " in the way that this framework does."
        )
    receive = receiver.receive if call is None else partial(call, receiver.receive)
    return Route(
        "receive_leak_report",
        "POST",
        path,
        None,
        partial(receive_leak_report, receive),
        openapi.RECEIVE_LEAK_REPORT,
        MAX_REPORT,
    )
