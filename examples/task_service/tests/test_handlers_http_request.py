"""`http_request` against real servers on this machine, and a resolver that changes its answers."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from examples.task_service.tests.test_handlers_command import Log
from pydantic import ValidationError

from msk_auth import SystemClock
from msk_auth.errors import InputInvalid
from msk_auth.testing import FrozenClock
from task_service.handlers import (
    HandlerEnvironment,
    HandlerResult,
    LeaseLost,
    RunContext,
    RunLease,
    outbound,
)
from task_service.handlers.http_request import (
    MAX_LOGGED_BODY,
    MAX_REDIRECTS,
    HttpRequest,
    HttpRequestParams,
)

pytestmark = pytest.mark.anyio

LOOPBACK = (ip_network("127.0.0.1/32"),)


async def nothing_allowed() -> list[str]:
    return []


def handler(resolve: Any = None, networks: Sequence[Any] = LOOPBACK) -> HttpRequest:
    environment = HandlerEnvironment(allowed_commands=nothing_allowed, allowed_networks=networks)
    handler = HttpRequest(environment)
    if resolve is not None:
        handler.policy = replace(handler.policy, resolve=resolve)
    return handler


async def run(
    http: HttpRequest, traceparent: str | None = None, **params: Any
) -> tuple[HandlerResult, Log]:
    log = Log()
    context = RunContext(
        run_id="run_1", attempt=1, clock=SystemClock(), sink=log, traceparent=traceparent
    )
    return await http.run(HttpRequestParams(**params), context), log


class Server:
    """Answers each request with what `reply` makes of it, and remembers what came."""

    def __init__(self, reply: Callable[[str], bytes | Awaitable[bytes]]) -> None:
        self.reply = reply
        self.requests: list[str] = []
        self.port = 0
        self.reader: asyncio.StreamReader | None = None
        self.closed = asyncio.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = next(
                (
                    int(line.split(":")[1])
                    for line in head.lower().splitlines()
                    if line.startswith("content-length")
                ),
                0,
            )
            request = head + (await reader.readexactly(length)).decode()
            self.requests.append(request)
            answer = self.reply(request)
            writer.write(answer if isinstance(answer, bytes) else await answer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            self.closed.set()


def answer(status: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@asynccontextmanager
async def serving(
    reply: Callable[[str], bytes | Awaitable[bytes]], **options: Any
) -> AsyncIterator[Server]:
    server = Server(reply)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0, **options)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        await listener.wait_closed()


async def test_a_response_is_logged() -> None:
    async with serving(lambda _: answer("200 OK", "Grüße\n".encode())) as server:
        result, log = await run(
            handler(),
            url=f"http://127.0.0.1:{server.port}/path?q=1",
            method="POST",
            headers={"X-One": "1", "User-Agent": "mine"},
            body="böd",
        )
    assert result == HandlerResult(exit_code=0)
    assert log.text("stdout") == "Grüße\n"
    assert log.text("system") == f"POST http://127.0.0.1:{server.port}/path?q=1\n200 OK\n"
    head, _, body = server.requests[0].partition("\r\n\r\n")
    first, *rest = head.split("\r\n")
    sent = {line.split(": ")[0].lower(): line.split(": ")[1] for line in rest}
    assert first == "POST /path?q=1 HTTP/1.1"
    assert body == "böd"
    # All that is sent: nothing of the service's own, no cookie, no credential.
    assert sent == {
        "host": f"127.0.0.1:{server.port}",
        "accept": "*/*",
        "accept-encoding": "identity",
        "user-agent": "mine",
        "x-one": "1",
        "content-length": "4",
    }


@pytest.mark.parametrize(
    ("status", "result"),
    [
        ("204 No Content", HandlerResult(0)),
        ("304 Not Modified", HandlerResult(0)),
        ("404 Not Found", HandlerResult(404, "HTTP 404 Not Found")),
        ("503 ", HandlerResult(503, "HTTP 503")),
    ],
)
async def test_the_status_decides_the_outcome(status: str, result: HandlerResult) -> None:
    async with serving(lambda _: answer(status)) as server:
        assert (await run(handler(), url=server.url))[0] == result


async def test_a_long_response_is_truncated() -> None:
    async with serving(lambda _: answer("200 OK", b"x" * (10 * MAX_LOGGED_BODY))) as server:
        result, log = await run(handler(), url=server.url)
        await asyncio.wait_for(server.closed.wait(), 30)
    assert result.exit_code == 0
    assert len(log.text("stdout")) == MAX_LOGGED_BODY
    assert "Only the first" in log.text("system")


async def test_a_response_of_exactly_the_bound_is_whole() -> None:
    async with serving(lambda _: answer("200 OK", b"x" * MAX_LOGGED_BODY)) as server:
        _, log = await run(handler(), url=server.url)
    assert len(log.text("stdout")) == MAX_LOGGED_BODY
    assert "Only the first" not in log.text("system")


async def test_compressed_responses_are_not_decompressed() -> None:
    def bomb(_: str) -> bytes:
        return answer("200 OK", b"\x1f\x8bnot really gzip", "Content-Encoding: gzip")

    async with serving(bomb) as server:
        result, log = await run(handler(), url=server.url)
    assert result.exit_code == 0
    assert log.text("stdout").endswith("not really gzip")


@pytest.mark.parametrize(
    "reply", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort"]
)
async def test_a_broken_response_fails_with_one_line(reply: bytes) -> None:
    async with serving(lambda _: reply) as server:
        result, _ = await run(handler(), url=server.url)
    assert result.exit_code is None
    assert result.error is not None
    assert result.error.startswith("The request failed (RemoteProtocolError)")
    assert "\n" not in result.error


async def test_a_refused_connection_fails_with_one_line() -> None:
    async with serving(lambda _: b"") as server:
        port = server.port
    result, _ = await run(handler(), url=f"http://127.0.0.1:{port}")
    assert result.error is not None
    assert result.error.startswith("The request failed (ConnectError)")


async def test_cancelling_closes_the_connection() -> None:
    started, finish = asyncio.Event(), asyncio.Event()

    async def wait(_: str) -> bytes:
        started.set()
        await finish.wait()
        return b""

    async with serving(wait) as server:
        url = f"http://127.0.0.1:{server.port}"
        task = asyncio.create_task(run(handler(), url=url))
        await asyncio.wait_for(started.wait(), 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert server.reader is not None
        assert await asyncio.wait_for(server.reader.read(), 30) == b""
        finish.set()
        await asyncio.wait_for(server.closed.wait(), 30)


# Addresses


async def test_an_internal_address_is_refused_at_creation_and_at_the_run() -> None:
    """In each of its notations, which are in test_handlers_outbound.py."""
    http = handler(networks=())
    url = "http://169.254.169.254/"
    with pytest.raises(InputInvalid) as refusal:
        await http.check(HttpRequestParams(url=url))
    assert [error.field for error in refusal.value.errors] == ["params.url"]
    result, log = await run(http, url=url)
    assert result.error is not None
    assert "internal or reserved" in result.error
    assert log.text("stdout") == ""


async def test_a_name_of_an_internal_address_is_refused_at_the_run() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    async with serving(lambda _: answer("200 OK")) as server:
        http = handler(resolve, networks=())
        url = f"http://rebind.example:{server.port}/"
        await http.check(HttpRequestParams(url=url))
        result, _ = await run(http, url=url)
    assert result.error is not None
    assert "internal or reserved" in result.error
    assert server.requests == []


async def test_a_name_is_resolved_once() -> None:
    """DNS rebinding: the second answer would be forbidden, and is never requested."""
    answers = iter([["127.0.0.1"], ["127.0.0.2"]])

    async def resolve(host: str, port: int) -> list[str]:
        return next(answers)

    async with serving(lambda _: answer("200 OK")) as server:
        result, _ = await run(handler(resolve), url=f"http://rebind.example:{server.port}/")
    assert result.exit_code == 0
    # The name is kept for the server.
    assert f"host: rebind.example:{server.port}" in server.requests[0].lower()
    assert next(answers) == ["127.0.0.2"]


async def test_the_next_address_is_tried_when_there_is_no_connection() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.9", "127.0.0.1", "127.0.0.8"]

    async with serving(lambda _: answer("200 OK")) as server:
        http = handler(resolve, networks=[ip_network("127.0.0.0/8")])
        result, _ = await run(http, url=f"http://several.example:{server.port}/")
    assert result.exit_code == 0
    assert len(server.requests) == 1


# Redirects


async def test_redirects_are_followed_and_the_last_response_logged() -> None:
    def reply(request: str) -> bytes:
        if request.startswith("GET /first"):
            return answer("302 Found", b"moved", "Location: /second")
        return answer("200 OK", b"here")

    async with serving(reply) as server:
        result, log = await run(
            handler(),
            url=f"http://127.0.0.1:{server.port}/first",
            headers={"Authorization": "Bearer theirs"},
            body="once",
        )
    assert result.exit_code == 0
    assert log.text("stdout") == "here"
    assert "authorization: bearer theirs" in server.requests[1].lower()
    assert "once" in server.requests[0]
    assert "once" not in server.requests[1]


async def test_a_request_belongs_to_the_trace_of_its_run() -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    own = trace.replace("0af7", "0bf7")
    async with serving(lambda _: answer("200 OK")) as server:
        url = f"http://127.0.0.1:{server.port}/"
        await run(handler(), traceparent=trace, url=url)
        await run(handler(), traceparent=trace, url=url, headers={"Traceparent": own})
        await run(handler(), url=url)
    of_run, of_task, none = server.requests
    assert f"traceparent: {trace}" in of_run
    assert f"traceparent: {own}" in of_task
    assert trace not in of_task
    assert "traceparent" not in none


async def test_another_origin_does_not_get_the_headers() -> None:
    async with serving(lambda _: answer("200 OK")) as second:
        location = f"Location: http://127.0.0.1:{second.port}/"
        async with serving(lambda _: answer("307 Temporary Redirect", b"", location)) as first:
            result, _ = await run(
                handler(),
                url=f"http://127.0.0.1:{first.port}/",
                headers={"Authorization": "Bearer theirs", "X-Api-Key": "theirs"},
            )
    assert result.exit_code == 0
    assert "theirs" in first.requests[0]
    assert "theirs" not in second.requests[0]


@pytest.mark.parametrize(
    "location",
    [
        "http://127.0.0.2:{port}/",
        "http://2130706433:{port}/",
        "//169.254.169.254/latest/meta-data/",
        "file:///etc/passwd",
        "http://[",
    ],
)
async def test_every_hop_is_checked(location: str) -> None:
    async with serving(
        lambda _: answer("301 Moved", b"", "Location: " + location.format(port=server.port))
    ) as server:
        result, _ = await run(handler(), url=server.url)
    assert result.error is not None
    assert result.exit_code is None
    assert len(server.requests) == 1


async def test_a_redirect_loop_ends() -> None:
    async with serving(lambda _: answer("302 Found", b"", "Location: /")) as server:
        result, _ = await run(handler(), url=server.url)
    assert result.error == f"There were more than {MAX_REDIRECTS} redirects."
    assert len(server.requests) == MAX_REDIRECTS + 1


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
async def test_only_safe_methods_follow(method: str) -> None:
    async with serving(lambda _: answer("302 Found", b"", "Location: /next")) as server:
        result, _ = await run(handler(), url=server.url, method=method)
    assert result.exit_code == 0
    assert len(server.requests) == 1


async def test_no_request_is_sent_after_the_lease_of_the_run() -> None:
    """A worker that was frozen in the middle goes on where it stopped, while another one executes the run."""
    clock = FrozenClock()
    lease = RunLease(clock.monotonic() + 10)

    def freeze(_: str) -> bytes:
        clock.advance(timedelta(seconds=10))
        return answer("302 Found", b"", "Location: /again")

    async with serving(freeze) as server:
        params = HttpRequestParams(url=server.url)
        context = RunContext("run_1", 1, clock, Log(), lease=lease)
        with pytest.raises(LeaseLost):
            await handler().run(params, context)
    assert len(server.requests) == 1


async def test_a_redirect_without_a_location_is_the_response() -> None:
    async with serving(lambda _: answer("302 Found")) as server:
        assert (await run(handler(), url=server.url))[0].exit_code == 0


# TLS


def certificate(folder: Path, name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server that is `name`, and a client that believes its issuer."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = folder / "server.pem"
    pem.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + made.public_bytes(serialization.Encoding.PEM)
    )
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(pem)
    return server, ssl.create_default_context(cafile=pem)


async def to_loopback(host: str, port: int) -> list[str]:
    return ["127.0.0.1"]


async def test_the_certificate_is_that_of_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server_side, client_side = certificate(tmp_path, "real.example")
    names: list[str | None] = []
    server_side.sni_callback = lambda _socket, name, _context: names.append(name)
    http = handler(to_loopback)
    monkeypatch.setattr(outbound, "_machines_tls", lambda: client_side)
    async with serving(lambda _: answer("200 OK"), ssl=server_side) as server:
        # With the dot that a full name may end with, which no certificate has.
        result, _ = await run(http, url=f"https://real.example.:{server.port}/")
        refused, _ = await run(http, url=f"https://other.example:{server.port}/")
    assert result == HandlerResult(0)
    assert names[0] == "real.example"
    assert refused.error is not None
    assert "CERTIFICATE_VERIFY_FAILED" in refused.error
    assert len(server.requests) == 1


async def test_an_untrusted_certificate_is_refused(tmp_path: Path) -> None:
    server_side, _ = certificate(tmp_path, "real.example")
    async with serving(lambda _: answer("200 OK"), ssl=server_side) as server:
        result, _ = await run(handler(to_loopback), url=f"https://real.example:{server.port}/")
    assert result.error is not None
    assert "CERTIFICATE_VERIFY_FAILED" in result.error
    assert server.requests == []


async def test_https_does_not_fall_back_to_http(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server_side, client_side = certificate(tmp_path, "real.example")
    http = handler(to_loopback)
    monkeypatch.setattr(outbound, "_machines_tls", lambda: client_side)
    location = "Location: http://real.example/"
    async with serving(lambda _: answer("302 Found", b"", location), ssl=server_side) as server:
        result, _ = await run(http, url=f"https://real.example:{server.port}/")
    assert (
        result.error
        == "The response redirects from https to http. If that is intended, use the final URL."
    )


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(lambda _: answer("200 OK", b"proxy")) as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        async with serving(lambda _: answer("200 OK", b"server")) as server:
            _, log = await run(handler(), url=server.url)
    assert log.text("stdout") == "server"
    assert proxy.requests == []


# Parameters


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("url", "ftp://example.org/"),
        ("url", "http://example.org/" + "a" * 8192),
        ("url", None),
        ("method", "get"),
        ("method", "TRACE"),
        ("method", "CONNECT"),
        ("method", "GET /"),
        ("headers", {"Host": "internal"}),
        ("headers", {"hOsT": "internal"}),
        ("headers", {"Content-Length": "5"}),
        ("headers", {"Transfer-Encoding": "chunked"}),
        ("headers", {"Connection": "close"}),
        ("headers", {"Proxy-Authorization": "Basic eA=="}),
        ("headers", {"X-A": "1\r\nX-B: 2"}),
        ("headers", {"X-A": "1\n"}),
        ("headers", {"X-A": "\x00"}),
        ("headers", {"X-A": " 1"}),
        ("headers", {"X-A": "ü"}),
        ("headers", {"X-A": "a" * 8193}),
        ("headers", {"X-A": 1}),
        ("headers", {"X A": "1"}),
        ("headers", {"X-A:": "1"}),
        ("headers", {"": "1"}),
        ("headers", {"X-A": "1", "x-a": "2"}),
        ("headers", {f"X-{index}": "1" for index in range(65)}),
        ("headers", []),
        ("body", 1),
        ("body", {"a": 1}),
        ("verify", False),
    ],
)
def test_bad_parameters_are_refused(field: str, value: object) -> None:
    with pytest.raises(ValidationError) as refusal:
        HttpRequestParams.model_validate({"url": "http://example.org/", field: value})
    assert refusal.value.errors()[0]["loc"][0] == field
