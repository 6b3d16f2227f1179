"""One HTTP GET of a JSON object, with a limited scheme, size and time, and no redirects.

The call blocks, so only the thread of a key set makes it. `urllib` of the standard library knows the machine's configured
proxies and certificates.
"""

from __future__ import annotations

import json
import ssl
import time
import urllib.request
from collections.abc import Mapping
from http.client import HTTPResponse
from typing import Final, cast
from urllib.parse import urlsplit

MAX_DOCUMENT: Final = 262_144
"""The maximum size of a document, in bytes."""

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class FetchError(Exception):
    """A document could not be fetched, or is invalid."""


def check_url(url: str) -> str:
    """The URL, if it is https, or http to this machine.

    Raises:
        ValueError: The URL is invalid.
    """
    parts = urlsplit(url)
    if parts.username is not None or parts.fragment or not parts.hostname:
        raise ValueError(f"{url!r} needs a host, and neither a user nor a fragment")
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        raise ValueError(f"{url!r} is not an https URL")
    return url


def fetch_json(
    url: str,
    *,
    seconds: float,
    context: ssl.SSLContext | None = None,
    headers: Mapping[str, str] | None = None,
) -> dict[str, object]:
    """The JSON object at a URL.

    Args:
        url: https, or http to this machine.
        seconds: The time limit for the body, and for each answer of the network before it.
        context: The trusted certificates; None for those of this machine.
        headers: Headers to send.

    Raises:
        FetchError: For every failure.
    """
    deadline = time.monotonic() + seconds  # noqa: TID251 - of the sockets, and so never a clock of tests
    opener = urllib.request.OpenerDirector()
    # No handlers for redirects, files or FTP, and none that turns a status into an exception.
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(context=context or ssl.create_default_context()),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    try:
        request = urllib.request.Request(  # noqa: S310 - the scheme is checked by check_url
            check_url(url), headers={"Accept": "application/json", **(headers or {})}
        )
        with cast("HTTPResponse", opener.open(request, timeout=seconds)) as response:
            status, body = response.status, _read(response, deadline)
    except Exception as error:
        raise FetchError(f"{url}: {error!r}") from error
    if status != 200:
        raise FetchError(f"{url} answered {status}; redirects are not followed")
    if len(body) > MAX_DOCUMENT:
        raise FetchError(f"{url} is longer than {MAX_DOCUMENT} bytes")
    try:
        value: object = json.loads(body)
    except (ValueError, RecursionError):
        raise FetchError(f"{url} is not JSON") from None
    if not isinstance(value, dict):
        raise FetchError(f"{url} is not a JSON object")
    return cast("dict[str, object]", value)


def _read(response: HTTPResponse, deadline: float) -> bytes:
    """The body, up to a byte more than the limit. The socket's timeout alone would restart with each byte."""
    body = b""
    while chunk := response.read1(MAX_DOCUMENT + 1 - len(body)):
        body += chunk
        if time.monotonic() > deadline:  # noqa: TID251 - as above
            raise TimeoutError("the answer takes too long")
    return body
