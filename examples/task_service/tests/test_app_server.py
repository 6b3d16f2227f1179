"""The server underneath: clients that never finish what they began (ASVS 5.0, section 13.2)."""

from __future__ import annotations

import asyncio
import json
import math
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import ip_network

import pytest
from examples.task_service.tests.waiting import eventually
from starlette.types import Message, Receive, Scope, Send

from msk_auth import PROBLEM_BASE
from msk_auth.errors import ConfigurationError, RequestMalformed
from task_service import server as server_module
from task_service.server import MAX_HEAD_BYTES, Connections, Server, bind
from task_service.services import AUDIENCE

pytestmark = pytest.mark.anyio


@dataclass
class App:
    """Answers early at /early, waits for `finish` at /slow and within /begun, and reads the body anywhere else.

    `began` is set when a request waits, or a part of its body was read.
    """

    finish: asyncio.Event = field(default_factory=asyncio.Event)
    began: asyncio.Event = field(default_factory=asyncio.Event)
    headers: dict[bytes, bytes] = field(default_factory=dict)
    """Those of the latest request, once its body was read."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            while True:
                kind = (await receive())["type"]
                await send({"type": f"{kind}.complete"})
                if kind == "lifespan.shutdown":
                    return
        if scope["path"] == "/begun":
            headers = [(b"content-length", b"2")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            self.began.set()
            await self.finish.wait()
            await send({"type": "http.response.body", "body": b"ok"})
            return
        if scope["path"] == "/long":
            self.began.set()
            headers = [(b"content-length", b"100000000")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            for _ in range(1000):
                body = bytes(100_000)
                await send({"type": "http.response.body", "body": body, "more_body": True})
            return
        if scope["path"] == "/slow":
            self.began.set()
            await self.finish.wait()
        elif scope["path"] != "/early":
            message: Message = {"more_body": True}
            while message.get("more_body"):
                message = await receive()
                self.began.set()
            self.headers = dict(scope["headers"])
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})


@dataclass
class Running:
    app: App
    server: Server
    port: int
    task: asyncio.Task[None]
    stopping: list[str]


@asynccontextmanager
async def running(grace: int = 5, proxies: Sequence[str] = ()) -> AsyncIterator[Running]:
    app, stopping, started = App(), [], asyncio.Event()

    async def notify() -> None:
        started.set()

    listener = bind("127.0.0.1", 0)
    server = Server(
        app,
        host="127.0.0.1",
        grace_seconds=grace,
        on_started=notify,
        on_stopping=lambda: stopping.append("now"),
        trusted_proxies=[ip_network(proxy) for proxy in proxies],
    )
    task = asyncio.create_task(server._serve(sockets=[listener]))
    await started.wait()
    try:
        yield Running(app, server, listener.getsockname()[1], task, stopping)
    finally:
        app.finish.set()
        server.should_exit = True
        await task


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def everything(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(30):
        return await reader.read()


@pytest.fixture(autouse=True)
def stopping_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_HANDSHAKE_SECONDS", 0.02)
    monkeypatch.setattr(server_module, "LINGER_SECONDS", 5.0)


@pytest.fixture
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "HEAD_SECONDS", 0.3)


@pytest.mark.parametrize("sent", [b"", b"\r\n", b"GET / HT", b"GET / HTTP/1.1\r\nHost: a\r\nX: "])
async def test_a_head_that_is_never_finished_ends_the_connection(
    short_timeouts: None, sent: bytes
) -> None:
    async with running() as it, connected(it.port) as (reader, writer):
        writer.write(sent)
        assert await everything(reader) == b""


async def test_a_head_that_drips_ends_the_connection_all_the_same(short_timeouts: None) -> None:
    async with running() as it, connected(it.port) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n")
        for n in range(10):
            writer.write(b"X-%d: a\r\n" % n)
            await asyncio.sleep(0.05)
            if reader.at_eof():
                break
        # A line that was on its way when the connection ended is answered with a reset.
        with suppress(ConnectionResetError):
            assert await everything(reader) == b""


async def test_a_second_head_on_the_same_connection_is_due_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running() as it, connected(it.port) as (reader, writer):
        writer.write(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\nGET / HTT")
        await it.app.began.wait()
        monkeypatch.setattr(server_module, "HEAD_SECONDS", 0.1)
        it.app.finish.set()
        assert (await everything(reader)).count(b"200 OK") == 1


async def test_an_endless_head_is_refused_before_it_fills_the_memory() -> None:
    async with running() as it, connected(it.port) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nX: " + b"a" * (MAX_HEAD_BYTES + 1))
        assert (await everything(reader)).startswith(b"HTTP/1.1 431 ")


CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "start",
    [b"0\r\n" + b"a: b\r\n" * 1000, b"0\r\na: ", b"1;a="],
    ids=["trailer", "field of a trailer", "chunk extension"],
)
async def test_what_is_endless_beside_a_body_is_refused_before_it_fills_the_memory(
    start: bytes,
) -> None:
    async with running() as it, connected(it.port) as (reader, writer):
        writer.write(CHUNKED + b"1\r\n{\r\n")
        await it.app.began.wait()
        writer.write(start.ljust(MAX_HEAD_BYTES + 1, b"b"))
        assert (await everything(reader)).startswith(b"HTTP/1.1 431 ")


async def test_a_body_of_many_chunks_and_a_trailer_are_read() -> None:
    """More bytes beside the body than a head may have, but never at a stretch. The trailer adds no header."""
    async with running() as it, connected(it.port) as (reader, writer):
        writer.write(CHUNKED + b"1\r\na\r\n" * MAX_HEAD_BYTES)
        writer.write(b"0\r\nAuthorization: Bearer a\r\nHost: b\r\n\r\n")
        writer.write(b"GET /early HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert (await everything(reader)).count(b"HTTP/1.1 200 ") == 2
        assert it.app.headers == {b"host": b"a", b"transfer-encoding": b"chunked"}


async def test_a_refusal_is_not_written_into_a_response() -> None:
    async with running() as it, connected(it.port) as (reader, writer):
        writer.write(b"GET /begun HTTP/1.1\r\nHost: a\r\n\r\n")
        await it.app.began.wait()
        writer.write(b"BREW / HTCPCP/1.0\r\n\r\n")
        answer = await everything(reader)
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert answer.count(b"HTTP/1.1 ") == 1


async def test_what_is_not_http_gets_a_problem_document() -> None:
    async with running() as it, connected(it.port) as (reader, writer):
        writer.write(b"BREW / HTCPCP/1.0\r\n\r\n")
        head, _, body = (await everything(reader)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert b"application/problem+json" in head
        assert json.loads(body)["code"] == "bad_request"


@pytest.mark.parametrize("control", [b"\x00", b"\x01", b"\x0b", b"\x1f", b"\x7f"])
async def test_a_control_character_in_a_credential_is_challenged(control: bytes) -> None:
    async with running() as it, connected(it.port) as (reader, writer):
        writer.write(
            b"GET / HTTP/1.1\r\nHost: x\r\nAUTHORIZATION: Bearer a" + control + b"b\r\n\r\n"
        )
        head, _, body = (await everything(reader)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert b'www-authenticate: Bearer realm="task-service", error="invalid_request"' in head
        assert json.loads(body) == {
            "type": f"{PROBLEM_BASE}#request_malformed",
            "title": "The request is malformed",
            "status": 400,
            "detail": RequestMalformed.default_detail,
            "code": "request_malformed",
        }
    assert server_module.REALM == AUDIENCE


async def test_a_control_character_elsewhere_is_not_called_a_credential() -> None:
    async with running() as it, connected(it.port) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a\r\nX: \x01\r\n\r\n")
        head, _, body = (await everything(reader)).partition(b"\r\n\r\n")
        assert json.loads(body)["code"] == "bad_request"
        assert b"www-authenticate" not in head


# Held connections


async def ask(port: int, path: str = "/", source: str = "127.0.0.1") -> tuple[int, bytes]:
    """One request from this address: the status and the whole answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
    answered = await everything(reader)
    writer.close()
    return int(answered.split(b" ")[1]), answered


def code_of(answered: bytes) -> str:
    return str(json.loads(answered.partition(b"\r\n\r\n")[2])["code"])


@asynccontextmanager
async def held(port: int, count: int, source: str = "127.0.0.1") -> AsyncIterator[None]:
    """So many connections of one address, each with a body that is never finished."""
    async with AsyncExitStack() as stack:
        for _ in range(count):
            _, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
            stack.callback(writer.close)
            writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n")
        yield


async def test_a_client_beyond_the_limit_gets_503_with_retry_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 1)
    async with running() as it, held(it.port, 1):
        status, answered = await ask(it.port, source="127.0.0.2")
        assert (status, code_of(answered)) == (503, "service_unavailable")
        assert b"retry-after: 5" in answered
        assert b"connection: close" in answered


async def test_one_address_cannot_hold_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_FOR_ADDRESS", 3)
    async with running() as it:
        async with held(it.port, 3):
            status, answered = await ask(it.port)
            assert (status, code_of(answered)) == (429, "too_many_requests")
            assert b"retry-after: 5" in answered
            assert (await ask(it.port, source="127.0.0.2"))[0] == 200
        await eventually(lambda: not it.server.server_state.connections)
        assert (await ask(it.port))[0] == 200


@pytest.mark.parametrize("limit", ["MAX_CONNECTIONS", "MAX_FOR_ADDRESS"])
async def test_health_is_answered_beyond_every_limit(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, limit, 2)
    async with running() as it, held(it.port, 2):
        for path in ("/healthz", "/readyz?verbose"):
            status, answered = await ask(it.port, path)
            assert (status, b"connection: close" in answered) == (200, True)
        assert (await ask(it.port, "/healthz/more"))[0] in {429, 503}
        # One request, and not another one on the same connection.
        async with connected(it.port) as (reader, writer):
            writer.write(
                b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"
            )
            assert (await everything(reader)).count(b"HTTP/1.1") == 1


async def test_what_is_kept_for_health_checks_cannot_be_held_by_one_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 1)
    monkeypatch.setattr(server_module, "RESERVED_FOR_ADDRESS", 2)
    monkeypatch.setattr(server_module, "RESERVED_HEAD_SECONDS", 60.0)
    async with running() as it, held(it.port, 1):
        async with connected(it.port), connected(it.port):
            async with connected(it.port) as (reader, _):
                assert code_of(await everything(reader)) == "service_unavailable"
            assert (await ask(it.port, "/healthz", "127.0.0.2"))[0] == 200
        await eventually(lambda: len(it.server.server_state.connections) == 1)
        monkeypatch.setattr(server_module, "RESERVED_HEAD_SECONDS", 0.1)
        async with connected(it.port) as (silent, _):
            assert await everything(silent) == b""
        monkeypatch.setattr(server_module, "RESERVED_CONNECTIONS", 0)
        async with connected(it.port) as (reader, _):
            assert code_of(await everything(reader)) == "service_unavailable"


async def test_a_trusted_proxy_may_have_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_FOR_ADDRESS", 1)
    async with running(proxies=["127.0.0.0/31"]) as it, held(it.port, 3):
        assert (await ask(it.port))[0] == 200


async def test_a_proxy_at_the_limit_of_a_client_is_logged_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_module, "MAX_FOR_ADDRESS", 1)
    async with running() as it, held(it.port, 1):
        for _ in range(3):
            assert (await ask(it.port))[0] == 429
    (line,) = [record.message for record in caplog.records if "TRUSTED_PROXIES" in record.message]
    assert line.startswith("127.0.0.1 has 1 connections")


def test_addresses_of_one_ipv6_subscriber_count_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_FOR_ADDRESS", 1)
    monkeypatch.setattr(server_module, "_WARNING_SECONDS", math.inf)
    connections = Connections()

    async def add() -> None:
        assert connections.add(("2001:db8::1", 1)) is None
        assert connections.add(("2001:db8:0:1::1", 1)) is None
        assert connections.add(("2001:db8::2", 1)) is not None
        # A socket without an address, such as a Unix socket.
        assert [connections.add(None) for _ in range(3)] == [None] * 3

    asyncio.run(add())
    connections.remove(("2001:db8::1", 1), beyond=False)
    connections.remove(("2001:db8::2", 1), beyond=True)
    assert asyncio.run(_add(connections, "2001:db8::3")) is None


async def _add(connections: Connections, address: str) -> object:
    return connections.add((address, 1))


async def test_a_client_that_does_not_read_loses_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "WRITE_SECONDS", 0.2)
    async with running() as it:
        client = Ask(it.port)
        client.send("/long")
        await it.app.began.wait()
        await eventually(lambda: not it.server.server_state.connections)
        client.close()


async def test_a_body_that_was_answered_early_is_not_awaited_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "REST_SECONDS", 0.1)
    async with running() as it, connected(it.port) as (reader, writer):
        writer.write(b"POST /early HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nbegin")
        assert b"200 OK" in await everything(reader)


async def test_an_answer_may_take_longer_than_a_head() -> None:
    async with running() as it, connected(it.port) as (reader, writer):
        writer.write(b"GET /slow HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        await it.app.began.wait()
        # Nothing is left that would end the connection.
        (connection,) = it.server.server_state.connections
        assert connection._deadline is None
        it.app.finish.set()
        assert (await everything(reader)).endswith(b"ok")


async def test_stopping_is_announced_first_and_accepted_requests_are_finished() -> None:
    async with running() as it, connected(it.port) as (reader, writer):
        writer.write(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n")
        await it.app.began.wait()
        it.server.should_exit = True
        await eventually(lambda: bool(it.stopping))
        it.app.finish.set()
        assert (await everything(reader)).endswith(b"ok")
    assert it.stopping == ["now"]


class Ask:
    """A client that is not on the server's event loop: what it does happens in one instant of the server."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))

    def send(self, path: str = "/early") -> None:
        self._socket.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())

    async def answer(self) -> bytes:
        """All that comes until the server closes the connection."""
        self._socket.settimeout(30)
        return await asyncio.to_thread(self._read)

    def _read(self) -> bytes:
        with self._socket:
            received = b""
            while chunk := self._socket.recv(65_536):
                received += chunk
        return received

    def close(self) -> None:
        self._socket.close()

    async def one_answer(self) -> bytes:
        """The answer to the one request that was sent."""
        self._socket.settimeout(30)
        received = b""
        while not received.endswith(b"ok"):
            received += await asyncio.to_thread(self._socket.recv, 65_536)
        return received


async def stop_at_once(it: Running, last: Callable[[], None]) -> None:
    """Stop the server right after `last`, without an instant in between for its event loop."""
    stopped = asyncio.Event()

    async def tick(_: int) -> bool:
        last()
        stopped.set()
        return True

    it.server.on_tick = tick  # type: ignore[method-assign]
    await stopped.wait()


async def test_a_client_that_was_not_accepted_yet_is_answered_when_the_service_stops() -> None:
    async with running() as it:
        clients: list[Ask] = []

        def connect() -> None:
            clients.extend(Ask(it.port) for _ in range(5))
            for client in clients[:3]:
                client.send()

        await stop_at_once(it, connect)
        # Two of them ask only now that the service is stopping.
        for client in clients[3:]:
            client.send()
        for client in clients:
            answered = await client.answer()
            assert answered.startswith(b"HTTP/1.1 200 OK")
            assert b"connection: close" in answered


async def test_a_request_on_its_way_on_a_kept_connection_is_answered_when_the_service_stops() -> (
    None
):
    async with running() as it:
        client = Ask(it.port)
        client.send()
        assert b"connection: close" not in await client.one_answer()
        await stop_at_once(it, client.send)
        answered = await client.answer()
        assert answered.startswith(b"HTTP/1.1 200 OK")
        assert b"connection: close" in answered


async def test_a_response_during_shutdown_closes_its_connection() -> None:
    async with running() as it:
        client = Ask(it.port)
        client.send("/slow")
        await it.app.began.wait()
        await stop_at_once(it, it.app.finish.set)
        assert b"connection: close" in await client.answer()


async def test_an_answer_that_promised_to_keep_the_connection_is_followed_by_another_one() -> None:
    async with running() as it:
        client = Ask(it.port)
        client.send("/begun")
        await it.app.began.wait()
        await stop_at_once(it, it.app.finish.set)
        assert b"connection: close" not in await client.one_answer()
        client.send()
        assert b"connection: close" in await client.answer()


async def test_idle_connections_are_closed_while_the_service_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "LINGER_SECONDS", 0.1)
    async with running(grace=3600) as it, connected(it.port) as (silent, _):
        kept = Ask(it.port)
        kept.send()
        await kept.one_answer()
        await stop_at_once(it, lambda: None)
        assert await kept.answer() == b""
        assert await everything(silent) == b""
        await asyncio.wait_for(it.task, 60)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's part is Linux's")
async def test_no_client_connects_while_the_service_stops() -> None:
    with bind("127.0.0.1", 0) as listener:
        connected_before = Ask(listener.getsockname()[1])
        assert server_module.waiting_connections(listener) == 1
        server_module.refuse_connections(listener)
        with pytest.raises(TimeoutError):
            socket.create_connection(listener.getsockname(), 0.2)
        # It was let in before, and is not dropped.
        connected_before.send()
        accepted, _ = listener.accept()
        with accepted:
            accepted.settimeout(30)
            assert accepted.recv(4) == b"GET "
        connected_before.close()
        assert server_module.waiting_connections(listener) == 0


async def test_where_the_kernel_has_no_part_in_stopping_it_stops_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with bind("127.0.0.1", 0) as listener:
        waiting = socket.create_connection(listener.getsockname())
        with monkeypatch.context() as patch:
            patch.setattr(sys, "platform", "darwin")
            server_module.refuse_connections(listener)
            assert server_module.waiting_connections(listener) == 0
        monkeypatch.setattr(server_module, "_SO_ATTACH_FILTER", -1)
        server_module.refuse_connections(listener)
        socket.create_connection(listener.getsockname(), 30).close()
        waiting.close()
    assert server_module.waiting_connections(listener) == 0


def test_a_used_port_is_reported_in_one_line() -> None:
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"Another program uses port {port}"):
            bind("127.0.0.1", port)


def test_an_address_of_another_machine_is_reported_in_one_line() -> None:
    with pytest.raises(ConfigurationError, match="This machine cannot listen on"):
        bind("192.0.2.1", 8000)
