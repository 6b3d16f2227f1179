"""The server: how it listens, and what its clients see when it stops."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from unittest import mock

import pytest
from examples.task_service.tests.waiting import eventually
from starlette.types import Receive, Scope, Send

from task_service import server as server_module
from task_service.server import Server, bind

pytestmark = pytest.mark.anyio


@dataclass
class App:
    """Waits for `finish` at /slow, and answers anything else at once."""

    finish: asyncio.Event = field(default_factory=asyncio.Event)
    began: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/slow":
            self.began.set()
            await self.finish.wait()
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})


@dataclass
class Running:
    app: App
    server: Server
    port: int
    stopping: list[str]


@asynccontextmanager
async def running(listener: socket.socket | None = None) -> AsyncIterator[Running]:
    app, stopping = App(), []
    listener = bind("127.0.0.1", 0) if listener is None else listener
    server = Server(
        app,
        host="127.0.0.1",
        grace_seconds=60,
        on_stopping=lambda: stopping.append("now"),
    )
    port = listener.getsockname()[1]
    task = asyncio.create_task(server.serve(sockets=[listener]))
    await eventually(lambda: server.started)
    try:
        yield Running(app, server, port, stopping)
    finally:
        app.finish.set()
        server.should_exit = True
        await task


async def ask(port: int, path: str = "/") -> bytes:
    """The whole answer to a request on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
    async with asyncio.timeout(60):
        answer = await reader.read()
    writer.close()
    return answer


async def test_streams_are_ended_first_and_accepted_requests_are_finished() -> None:
    async with running() as it:
        answer = asyncio.create_task(ask(it.port, "/slow"))
        await it.app.began.wait()
        it.server.should_exit = True
        await eventually(lambda: bool(it.stopping))
        it.app.finish.set()
        assert (await answer).endswith(b"ok")
    assert it.stopping == ["now"]


async def test_a_request_that_arrives_just_after_the_signal_is_answered() -> None:
    async with running() as it:
        reader, writer = await asyncio.open_connection("127.0.0.1", it.port)
        await eventually(lambda: bool(it.server.server_state.connections))
        # On its way when the server begins to stop, however busy the machine is.
        it.server._on_stopping = lambda: writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        it.server.should_exit = True
        async with asyncio.timeout(60):
            assert (await reader.read()).endswith(b"ok")
        writer.close()


async def test_a_client_that_connects_between_two_processes_is_answered_by_the_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "_REQUEST_IN_TRANSIT_SECONDS", 0.0)
    # As systemd keeps a socket that it has passed.
    with bind("127.0.0.1", 0) as kept:
        async with running(kept.dup()) as it:
            pass
        reader, writer = await asyncio.open_connection("127.0.0.1", it.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        async with running(kept.dup()), asyncio.timeout(60):
            assert (await reader.read()).endswith(b"ok")
        writer.close()


def test_a_socket_that_systemd_passed_is_taken_and_only_by_the_process_it_is_meant_for() -> None:
    with (
        bind("127.0.0.1", 0) as passed,
        mock.patch.object(server_module, "_FIRST_PASSED_SOCKET", passed.dup().detach()),
        mock.patch.dict(os.environ, LISTEN_FDS="1", LISTEN_PID=str(os.getpid())),
    ):
        with bind("192.0.2.1", 1) as taken:
            assert taken.getsockname() == passed.getsockname()
        os.environ["LISTEN_PID"] = "1"
        with bind("127.0.0.1", 0) as own:
            assert own.getsockname() != passed.getsockname()
