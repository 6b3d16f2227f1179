"""One HTTP GET of a JSON object, with a bound on everything: the scheme, redirects, the size and the time.

It blocks, and runs in the thread of a key set only. The standard library does it: `urllib` knows the proxies and the
certificates that a machine is configured with.
"""

from __future__ import annotations

import io
import json
import socket
import ssl
import time
import urllib.request
from collections.abc import Mapping
from functools import partial
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from typing import Any, Final, cast
from urllib.parse import urlsplit

MAX_DOCUMENT: Final = 262_144
"""How many bytes of a document are read."""

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class FetchError(Exception):
    """A document could not be fetched, or is not what it has to be."""


def check_url(url: str) -> str:
    """The URL, which is https, or http to this machine.

    Raises:
        ValueError: It is something else.
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
        seconds: How long it may take, from the first byte to the last.
        context: Which certificates are trusted; None for those of this machine.
        headers: Sent along.

    Raises:
        FetchError: Whatever goes wrong.
    """
    deadline = time.monotonic() + seconds  # noqa: TID251 - of the sockets, and so never a clock of tests
    opener = urllib.request.OpenerDirector()
    # No handler of redirects, files or FTP, and none that turns a status into an exception.
    for handler in (
        urllib.request.ProxyHandler(),
        _PlainHandler(deadline),
        _TlsHandler(deadline, context),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    try:
        request = urllib.request.Request(  # noqa: S310 - the scheme is checked by check_url
            check_url(url), headers={"Accept": "application/json", **(headers or {})}
        )
        response = cast("HTTPResponse", opener.open(request, timeout=seconds))
        with response:
            status, body = response.status, response.read(MAX_DOCUMENT + 1)
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


class _DeadlineReader(io.RawIOBase):
    """Reads from a socket until a moment: a timeout of its own would begin anew with each byte."""

    def __init__(self, sock: socket.socket, raw: io.RawIOBase, deadline: float) -> None:
        self._sock = sock
        self._raw = raw
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        remaining = self._deadline - time.monotonic()  # noqa: TID251 - as above
        if remaining <= 0:
            raise TimeoutError("the answer takes too long")
        self._sock.settimeout(remaining)
        return cast("int", self._raw.readinto(buffer))

    def close(self) -> None:
        # The socket stays open for as long as this part of it.
        self._raw.close()
        super().close()


class _DeadlineResponse(HTTPResponse):
    def __init__(self, deadline: float, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        raw = self.fp.detach()
        self.fp = io.BufferedReader(_DeadlineReader(sock, raw, deadline))


def _connect(
    kind: type[HTTPConnection], deadline: float, host: str, **options: Any
) -> HTTPConnection:
    connection = kind(host, **options)
    connection.response_class = cast("Any", partial(_DeadlineResponse, deadline))
    return connection


class _PlainHandler(urllib.request.HTTPHandler):
    def __init__(self, deadline: float) -> None:
        super().__init__()
        self._connect = partial(_connect, HTTPConnection, deadline)

    def http_open(self, req: urllib.request.Request) -> HTTPResponse:
        return self.do_open(cast("Any", self._connect), req)


class _TlsHandler(urllib.request.HTTPSHandler):
    def __init__(self, deadline: float, context: ssl.SSLContext | None) -> None:
        context = ssl.create_default_context() if context is None else context
        super().__init__(context=context)
        self._connect = partial(_connect, HTTPSConnection, deadline, context=context)

    def https_open(self, req: urllib.request.Request) -> HTTPResponse:
        return self.do_open(cast("Any", self._connect), req)
