"""Asking a server as fast as it answers, over a fixed number of connections: with `wrk` where it is installed.

Otherwise, and for less than a second, a small generator of this project does it. It is slower than `wrk`, so it finds
a smaller difference between fast servers; results say which of the two was used.

How fast a machine is may change from one second to the next by more than what two servers differ in. They are compared
by :func:`compare`: each has its core for itself, for moments that follow each other so closely that whatever slows the
machine slows both.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass

from .result import Spread

CONNECTIONS = 16
MOMENT_SECONDS = 0.04
_UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3, "m": 6e4}


@dataclass(frozen=True, slots=True)
class Load:
    """What came of it.

    Attributes:
        per_second: Answers.
        p50: The median time of an answer, in milliseconds.
        p99: Only one answer in a hundred took longer.
        refused: Answers that were no 2xx.
        total: All answers.
    """

    per_second: float
    p50: float
    p99: float
    refused: int
    total: int


def generator() -> str:
    """The name of what asks."""
    return "wrk" if shutil.which("wrk") else "the project's own generator"


def ask(
    port: int, key: str, seconds: float, connections: int = CONNECTIONS, path: str = "/"
) -> Load:
    """Ask for `path` with this key as the bearer credential, about this long.

    Raises:
        RuntimeError: A connection failed.
    """
    # wrk knows whole seconds only.
    if generator() == "wrk" and seconds >= 1:
        return _wrk(port, path, key, round(seconds), connections)
    return asyncio.run(_load(port, path, f"Bearer {key}", seconds, connections))


def compare(
    servers: Sequence[tuple[int, str]],
    seconds: float,
    *,
    paths: Sequence[str] = ("/", "/"),
    connections: int = CONNECTIONS,
) -> list[Load]:
    """Ask two servers by turns, each for this long altogether. Of the answers only the numbers mean something.

    Args:
        servers: The port of each, and the key to ask it with.
        seconds: How long each is asked.
        paths: What each is asked for.
        connections: How many each is asked over.

    Raises:
        RuntimeError: A connection failed.
    """
    if generator() != "wrk" or seconds < 1:
        return [
            ask(port, key, seconds, connections, path)
            for (port, key), path in zip(servers, paths, strict=True)
        ]
    # They count the time in which they are stopped.
    asking = [
        _start_wrk(port, path, key, round(2 * seconds), connections)
        for (port, key), path in zip(servers, paths, strict=True)
    ]
    turn = 0
    while all(each.poll() is None for each in asking):
        os.kill(asking[1 - turn].pid, signal.SIGSTOP)
        os.kill(asking[turn].pid, signal.SIGCONT)
        time.sleep(MOMENT_SECONDS)
        turn = 1 - turn
    for each in asking:
        each.send_signal(signal.SIGCONT)
    return [_end_wrk(each) for each in asking]


def _wrk(port: int, path: str, key: str, seconds: int, connections: int) -> Load:
    return _end_wrk(_start_wrk(port, path, key, seconds, connections))


def _start_wrk(
    port: int, path: str, key: str, seconds: int, connections: int
) -> subprocess.Popen[str]:
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency"]
    header = ["-H", f"Authorization: Bearer {key}"]
    return subprocess.Popen(
        [*command, *header, f"http://127.0.0.1:{port}{path}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _end_wrk(process: subprocess.Popen[str]) -> Load:
    printed, _ = process.communicate()
    if process.returncode or "Socket errors" in printed:
        raise RuntimeError(printed)
    return read_wrk(printed)


def read_wrk(printed: str) -> Load:
    """What `wrk --latency` printed.

    Raises:
        RuntimeError: It printed something else.
    """
    per_second = re.search(r"Requests/sec:\s+([\d.]+)", printed)
    total = re.search(r"(\d+) requests in", printed)
    refused = re.search(r"Non-2xx or 3xx responses: (\d+)", printed)
    times = {
        share: float(value) * _UNITS[unit]
        for share, value, unit in re.findall(r"(\d+)%\s+([\d.]+)(us|ms|s|m)\b", printed)
    }
    if per_second is None or total is None or not {"50", "99"} <= times.keys():
        raise RuntimeError(printed)
    return Load(
        per_second=float(per_second[1]),
        p50=times["50"],
        p99=times["99"],
        refused=int(refused[1]) if refused else 0,
        total=int(total[1]),
    )


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
        p50=Spread.of(times).median * 1e3,
        p99=times[int(len(times) * 0.99)] * 1e3,
        refused=sum(asker.refused for asker in askers),
        total=len(times),
    )
