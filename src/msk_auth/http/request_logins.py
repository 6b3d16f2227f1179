"""Logins that are not in the `Authorization` header: an application's functions of the request, and where it came from.

An adapter hands on what it extracted. Whether any of it counts is decided in `core.authentication`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from msk_auth.authenticator.validation import check_blocking_logins
from msk_auth.core.logins import RequestLogins, question

_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})


class LoginSources:
    """What an application configured at its adapter.

    Args:
        functions: Each takes the framework's request, and returns a `Login` or None.
        own_csrf_protection: Whether a login counts for an unsafe method wherever the request came from. Otherwise only if a page
            of the same origin sent it.
        awaits: Whether a function may be async.

    Raises:
        ConfigurationError: One of them is async, and `awaits` is False.
    """

    def __init__(
        self,
        functions: Sequence[Callable[[Any], object]],
        *,
        own_csrf_protection: bool,
        awaits: bool,
    ) -> None:
        self.functions: tuple[Callable[[Any], object], ...] = tuple(functions)
        if not awaits:
            self.check_blocking()
        self._checks_origin = not own_csrf_protection

    def check_blocking(self) -> None:
        """Refuse functions that have to be awaited, for an `Authenticator`, which calls them in a thread.

        Raises:
            ConfigurationError: One of them is async.
        """
        check_blocking_logins(self.functions)

    def ask(
        self,
        request: object,
        *,
        method: str | None,
        scheme: str,
        headers: Iterable[tuple[bytes, bytes]],
    ) -> RequestLogins:
        """What may find a login in a request. Without functions nothing does, and an adapter need not come here.

        Args:
            request: What the functions take.
            method: None for the handshake of a websocket, which no cross-origin rule of a browser keeps back.
            scheme: That of the request.
            headers: With lower-case names.
        """
        is_foreign = (
            self._checks_origin
            and method not in _SAFE_METHODS
            and not is_same_origin(headers, scheme)
        )
        return RequestLogins(
            tuple(question(function, request) for function in self.functions), is_foreign
        )


def is_same_origin(headers: Iterable[tuple[bytes, bytes]], scheme: str) -> bool | None:
    """Whether a page of this origin made the browser send a request.

    Browsers send that in `Sec-Fetch-Site` (Fetch Metadata), which no page can set, and over plain HTTP in `Origin` (RFC 6454,
    section 7) alone. A program can send what it likes: this protects people from other sites, and nothing from programs.

    A request that changes something with a cookie needs True. One that sends its credentials itself, such as a login, is
    another site's doing only at False.

    Args:
        headers: The request's, with lower-case names, as in an ASGI scope.
        scheme: What the browser used: `http` or `ws`, `https` or `wss`. Behind a proxy that ends TLS the request itself does
            not show it.

    Returns:
        True for a page of this origin, or an address that a person typed. False for another site, and for headers that no
        browser sends. None if no header shows it, as with programs.
    """
    found: dict[bytes, list[bytes]] = {b"host": [], b"origin": [], b"sec-fetch-site": []}
    for name, value in headers:
        if name in found:
            found[name].append(value)
    hosts, origins, sites = found.values()
    if max(len(hosts), len(origins), len(sites)) > 1:
        # No browser sends one of them twice.
        return False
    if sites:
        return sites[0] in {b"same-origin", b"none"}
    if not origins:
        return None
    host = b"".join(hosts)
    # The origin of a websocket's page has the scheme of HTTP.
    return bool(host) and origins[0] == scheme.replace("ws", "http").encode() + b"://" + host
