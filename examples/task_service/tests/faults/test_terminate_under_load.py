"""SIGTERM under load: every request on a connection that was established gets its answer (RFC 9112, section 9.6)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from examples.task_service.tests.faults.deployment import Deployment
from examples.task_service.tests.faults.nursery import nursery

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900), pytest.mark.anyio]

TERMINATIONS = int(os.environ.get("MSK_AUTH_TEST_TERMINATIONS", "20"))
CLIENTS = 12
REQUEST = b"GET %b HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
PATHS = (b"/healthz", b"/readyz", b"/api/tasks")


@dataclass
class Tally:
    """What clients saw, and each time that they were left without an answer."""

    answers: Counter[bytes] = field(default_factory=Counter)
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


async def client(port: int, number: int, tally: Tally) -> None:
    """Send requests until no connection is to be had; even numbers keep their connections, odd ones use each of them once."""
    turn = number
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionError:
            return
        sent = 0
        try:
            is_last = False
            while not is_last:
                turn += 1
                writer.write(REQUEST % PATHS[turn % len(PATHS)])
                sent += 1
                status, is_last = await answer(reader)
                tally.answers[status] += 1
                is_last = is_last or number % 2 == 1
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            tally.unanswered.append(f"client {number}, request {sent} of its connection: {error!r}")
        finally:
            writer.close()


async def test_sigterm_under_load_leaves_no_request_without_an_answer(tmp_path: Path) -> None:
    tally = Tally()
    with nursery(tmp_path) as processes:
        deployment = Deployment(processes, tmp_path)
        for turn in range(TERMINATIONS):
            api = await asyncio.to_thread(deployment.serve)
            before = tally.answers.total()
            clients = [
                asyncio.create_task(client(api.port, number, tally)) for number in range(CLIENTS)
            ]
            # Another instant of the load each time.
            while tally.answers.total() < before + 100 + 7 * turn:  # noqa: ASYNC110 - a count has no event
                await asyncio.sleep(0.001)
            api.process.send(signal.SIGTERM)
            await asyncio.wait_for(asyncio.gather(*clients), 60)
            assert await asyncio.to_thread(api.process.wait) == 0
    assert tally.unanswered == []
    assert set(tally.answers) == {b"200", b"401"}
