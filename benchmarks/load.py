"""Asks a server as fast as it answers, over a fixed number of connections."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    """What came of it.

    Attributes:
        per_second: Answers.
        p99: Only one answer in a hundred took longer.
        refused: Answers that were no 2xx.
        total: All answers.
    """

    per_second: float
    p99: float
    refused: int
    total: int


def ask(port: int, key: str, seconds: float, path: str, connections: int) -> Load:
    """Ask for `path` with this key as the bearer credential, about this long.

    Raises:
        RuntimeError: A connection failed.
    """
    return asyncio.run(_load(port, path, f"Bearer {key}", seconds, connections))


class _Asker(asyncio.Protocol):
    """One connection: asks again as soon as an answer is whole."""

    def __init__(self, request: bytes, until: float, done: asyncio.Future[None]) -> None:
        self._request = request
        self._until = until
        self._done = done
        self._buffer = b""
        self._began = 0.0
        self.times: list[float] = []
        self.refused = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._ask()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(RuntimeError("the server closed a connection"))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, separator, body = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            return
        length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
        if length is None:
            self._done.set_exception(RuntimeError("an answer without a length"))
            self._transport.close()
            return
        if len(body) < int(length[1]):
            return
        self._buffer = b""
        now = time.perf_counter()
        self.times.append(now - self._began)
        self.refused += not head.startswith(b"HTTP/1.1 2")
        if now < self._until:
            self._ask()
        else:
            self._done.set_result(None)
            self._transport.close()

    def _ask(self) -> None:
        self._began = time.perf_counter()
        self._transport.write(self._request)


async def _load(port: int, path: str, authorization: str, seconds: float, connections: int) -> Load:
    loop = asyncio.get_running_loop()
    request = (
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: {authorization}\r\n\r\n"
    ).encode()
    began = time.perf_counter()
    askers: list[_Asker] = []
    endings = [loop.create_future() for _ in range(connections)]
    for ending in endings:
        asker = _Asker(request, began + seconds, ending)
        await loop.create_connection(lambda asker=asker: asker, "127.0.0.1", port)  # type: ignore[misc]
        askers.append(asker)
    await asyncio.gather(*endings)
    took = time.perf_counter() - began
    times = sorted(each for asker in askers for each in asker.times)
    return Load(
        per_second=len(times) / took,
        p99=times[int(len(times) * 0.99)] * 1e3,
        refused=sum(asker.refused for asker in askers),
        total=len(times),
    )
