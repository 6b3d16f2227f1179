"""Whether a browser says that a page of this service sent a request.

The scheme is that of the base URL: behind a proxy that ends TLS the service itself is spoken to over http, and a request
does not show what the browser used. A header of the request that says so could come from the client.
"""

from __future__ import annotations

from collections.abc import Iterable


def is_from_own_page(headers: Iterable[tuple[bytes, bytes]], scheme: str) -> bool | None:
    """Whether a page of this service sent the request; None if nothing in it tells, as with programs.

    Args:
        headers: Of the request, with lower-case names.
        scheme: Under which people reach the service.
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
    return bool(hosts) and origins[0] == scheme.encode() + b"://" + hosts[0]
