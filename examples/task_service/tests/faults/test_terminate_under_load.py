"""SIGTERM under load, behind the shipped proxies, on sockets that systemd keeps: each request gets its answer."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from examples.task_service.tests.faults.deployment import Deployment
from examples.task_service.tests.faults.nursery import nursery
from examples.task_service.tests.faults.proxies import HOST, proxy, tls
from tests.databases import postgres_database
from tests.ports import free_port

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900), pytest.mark.anyio]

TERMINATIONS = int(os.environ.get("MSK_AUTH_TEST_TERMINATIONS", "20"))
CLIENTS = 6
# No proxy sends the second one twice. Without credentials it is refused.
REQUESTS = (
    b"GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST /api/tasks HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
)


@dataclass
class Tally:
    """What clients saw, and each time that they were left without an answer."""

    answers: Counter[tuple[bytes, bytes]] = field(default_factory=Counter)
    unanswered: list[str] = field(default_factory=list)


async def answer(reader: asyncio.StreamReader) -> tuple[bytes, bool]:
    """The status of a whole answer, and whether it is the last one on its connection."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    (length,) = (
        int(line.removeprefix(b"content-length:"))
        for line in head.split(b"\r\n")
        if line.startswith(b"content-length:")
    )
    await reader.readexactly(length)
    return head.split(b" ")[1], b"\r\nconnection: close\r\n" in head


async def client(port: int, trusted: ssl.SSLContext, number: int, tally: Tally) -> None:
    """Send requests until cancelled; even numbers keep their connections, odd ones use each of them once."""
    turn = number
    while True:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=trusted, server_hostname=HOST
        )
        try:
            is_last = False
            while not is_last:
                turn += 1
                request = REQUESTS[turn % len(REQUESTS)]
                writer.write(request)
                status, is_last = await answer(reader)
                tally.answers[request[:4], status] += 1
                is_last = is_last or number % 2 == 1
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            tally.unanswered.append(f"client {number}: {error!r}")
        finally:
            writer.close()


async def test_restarts_under_load_leave_no_request_without_an_answer(tmp_path: Path) -> None:
    tally = Tally()
    with ExitStack() as stack:
        database = stack.enter_context(postgres_database())
        url = database.set(drivername="postgresql").render_as_string(hide_password=False)
        processes = stack.enter_context(nursery(tmp_path))
        deployment = Deployment(
            processes, tmp_path, database_url=url, trusted_proxies="127.0.0.1", execute_runs="never"
        )
        apis = [deployment.serve_on_kept_socket(free_port()) for _ in range(2)]
        ports = [api.port for api in apis]
        clients: list[asyncio.Task[None]] = []
        for name in ("nginx", "haproxy"):
            port = stack.enter_context(proxy(name, tmp_path, ports))
            clients += [
                asyncio.create_task(client(port, tls(tmp_path), number, tally))
                for number in range(CLIENTS)
            ]
        for turn in range(TERMINATIONS):
            # Another instant of the load each time.
            enough = tally.answers.total() + 50 + 7 * (turn % 10)
            while tally.answers.total() < enough:
                await asyncio.sleep(0.001)
                assert not any(task.done() for task in clients)
            api = apis[turn % 2]
            api.process.send(signal.SIGTERM)
            assert await asyncio.to_thread(api.process.wait) == 0
            apis[turn % 2] = await asyncio.to_thread(deployment.serve_on_kept_socket, api.port)
        for task in clients:
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
    assert tally.unanswered == []
    assert set(tally.answers) == {(b"GET ", b"200"), (b"POST", b"401")}
