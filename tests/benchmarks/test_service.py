"""The measurements of the task service: what they calculate, and that each gives every row that it promises."""

from __future__ import annotations

import asyncio

import pytest
from benchmarks import __main__ as command
from benchmarks import soak
from benchmarks.timing import Scale
from benchmarks.traffic import Connection

QUICK = Scale(is_quick=True)


def test_what_has_grown_is_not_called_flat() -> None:
    quiet = dict.fromkeys(soak.TOLERANCES, 20.0)
    minutes = [quiet | {"memory (MiB)": 100.0 + 2 * number} for number in range(10)]
    judged = {row.name: row.is_reached for row in soak.rows("serving", minutes)}
    assert judged.pop("memory (MiB)") is False
    assert set(judged.values()) == {True}
    # The first fifth is left out: pools and caches are filled in it.
    filling = [quiet | {"open files": 2.0 if number < 2 else 20.0} for number in range(10)]
    assert {row.is_reached for row in soak.rows("worker", filling)} == {True}


@pytest.mark.anyio
async def test_a_connection_is_opened_again_when_the_server_has_closed_it() -> None:
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b'HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n{"a":1}')
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        connection = Connection(server.sockets[0].getsockname()[1], "secret")
        for _ in range(2):
            assert await connection.ask("GET", "/a") == (200, {"a": 1})
        connection.close()
    assert [request.split(b"\r\n")[0] for request in asked] == [b"GET /a HTTP/1.1"] * 2
    assert all(b"\r\nAuthorization: Bearer secret\r\n" in request for request in asked)


@pytest.mark.faults
def test_the_service_is_measured_beside_bare_fastapi_and_procrastinate_alone() -> None:
    result = command.measure("service", QUICK)
    assert [(row.group, row.name, row.against) for row in result.rows] == [
        *(
            pair
            for subject, bare in (
                ("who am I, SQLite", "one read"),
                ("20 tasks with their last run, SQLite", "one read"),
                ("health, SQLite", "no read"),
                ("who am I, leased for 250 ms, SQLite", "one read"),
                ("who am I, PostgreSQL", "one read"),
                ("20 tasks with their last run, PostgreSQL", "one read"),
                ("who am I, leased for 250 ms, PostgreSQL", "one read"),
            )
            for pair in (
                (f"Requests in a second, {subject}", f"bare FastAPI, {bare}", ""),
                (f"Requests in a second, {subject}", "the service", f"bare FastAPI, {bare}"),
            )
        ),
        *(
            (group, f"{subject}, {workers}", against)
            for group in ("Runs begun in a second", "From asking to running")
            for workers in ("one worker", "two workers")
            for subject, against in (
                ("procrastinate alone", ""),
                ("the service", f"procrastinate alone, {workers}"),
            )
        ),
    ]
    assert all(spread.median > 0 for row in result.rows for spread in row.cells.values())


@pytest.mark.faults
def test_a_soak_reports_for_each_figure_whether_it_is_flat() -> None:
    result = command.measure("soak", QUICK)
    assert [(row.group, row.name) for row in result.rows] == [
        (process, name) for process in ("serving", "worker") for name in soak.TOLERANCES
    ]
    assert all(row.is_reached is not None for row in result.rows)
    memory, *_ = result.rows
    assert 30 < memory.cells["begin"].median < 500
