"""The middleware around every request, in front of an application that reports what it received."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from http import HTTPStatus
from ipaddress import ip_network
from typing import Any, cast

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from msk_auth import KeyFormat, SystemClock
from msk_auth.errors import CredentialRefused, Problem
from task_service.login_cookie import LoginCookie
from task_service.middleware import (
    MAX_BODY_BYTES,
    BodyLimit,
    HeadAsGet,
    RequestLog,
    SecurityHeaders,
)
from task_service.observability import ACCESS_LOGGER, Metrics
from task_service.request_record import request_address
from task_service.trusted_proxies import TrustedProxies, client_address

pytestmark = pytest.mark.anyio

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ1c3IifQ.c2lnbmF0dXJl"
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
COOKIE = f"__Host-task_session={JWT}"


@dataclass
class Answered:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Client:
    """One request after the other into an ASGI application, byte for byte."""

    app: Any
    peer: tuple[str, int] | None = ("192.0.2.1", 5000)
    messages: list[Message] = field(default_factory=list)

    async def request(
        self,
        method: str = "GET",
        path: str = "/api/echo",
        headers: list[tuple[str, str]] | None = None,
        chunks: tuple[bytes, ...] = (b"",),
    ) -> Answered:
        pending = [
            {"type": "http.request", "body": chunk, "more_body": n < len(chunks) - 1}
            for n, chunk in enumerate(chunks)
        ]
        sent: list[Message] = []

        async def receive() -> Message:
            if pending:
                return pending.pop(0)
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": b"",
            "client": self.peer,
            "headers": [
                (name.lower().encode(), value.encode("latin-1"))
                for name, value in [("Host", "127.0.0.1:8000"), *(headers or [])]
            ],
        }
        await self.app(scope, receive, send)
        assert scope["method"] == method
        self.messages = sent
        body = b"".join(message.get("body", b"") for message in sent[1:])
        names = [name.decode() for name, _ in sent[0]["headers"]]
        assert len(names) == len(set(names)), "a header twice"
        return Answered(
            sent[0]["status"],
            {name.decode(): value.decode() for name, value in sent[0]["headers"]},
            body,
        )


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    request = Request(scope, receive)
    if scope["path"] == "/api/boom":
        raise RuntimeError("the secret cause")
    if scope["path"] == "/api/refused":
        raise CredentialRefused("key_unknown")
    body = await request.body()
    seen = {
        "authorization": request.headers.getlist("authorization"),
        "size": len(body),
        "method": scope["method"],
        "address": request_address(),
    }
    await JSONResponse(seen)(scope, receive, send)


async def answer(_request: Request, problem: Problem) -> Response:
    return JSONResponse({"code": problem.code}, status_code=problem.status)


def around(
    *,
    base_url: str = "http://127.0.0.1:8000",
    loopback: bool = True,
    proxies: tuple[str, ...] = (),
    app: Any = echo,
    metrics: Metrics | None = None,
) -> Client:
    clock = SystemClock()
    cookie = LoginCookie(app, base_url=base_url, loopback=loopback)
    observed = RequestLog(
        HeadAsGet(BodyLimit(cookie)),
        clock=clock,
        metrics=metrics or Metrics(),
        templates={},
        answer=answer,
        key_activity=cast("Any", None),  # no request has a key
    )
    secured: Any = SecurityHeaders(observed, https=base_url.startswith("https"))
    return Client(TrustedProxies(secured, networks=[ip_network(proxy) for proxy in proxies]))


# Headers


@pytest.mark.parametrize("path", ["/api/echo", "/api/refused", "/api/boom"])
async def test_every_answer_has_the_security_headers(path: str) -> None:
    answered = await around().request(path=path)
    assert answered.headers["x-content-type-options"] == "nosniff"
    assert answered.headers["referrer-policy"] == "no-referrer"
    assert answered.headers["cross-origin-resource-policy"] == "same-origin"
    assert (
        answered.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
    )
    assert answered.headers["cache-control"] == "no-store"
    assert "strict-transport-security" not in answered.headers


async def test_under_https_responses_have_strict_transport_security() -> None:
    answered = await around(base_url="https://tasks.example").request()
    assert answered.headers["strict-transport-security"] == "max-age=31536000"


async def test_an_answer_keeps_the_headers_that_it_chose_itself() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(headers={"Content-Security-Policy": "mine"})(scope, receive, send)

    answered = await around(app=app).request()
    assert answered.headers["content-security-policy"] == "mine"


async def test_the_request_id_is_fresh_and_never_the_clients() -> None:
    client = around()
    ids = {
        (await client.request(headers=[("X-Request-Id", "mine")])).headers["x-request-id"]
        for _ in range(3)
    }
    assert len(ids) == 3
    assert "mine" not in ids


@pytest.mark.parametrize(
    ("given", "trace_id"),
    [
        (TRACEPARENT, "0af7651916cd43dd8448eb211c80319c"),
        (TRACEPARENT.upper(), None),
        (TRACEPARENT + "-more", None),
        (f"00-{'0' * 32}-b7ad6b7169203331-01", None),
        (f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-01", None),
        ("msk_AAAAAAAAAAAA_000000000000000000000000000000002uGo9O", None),
    ],
)
async def test_the_log_line_names_the_trace(
    given: str, trace_id: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, ACCESS_LOGGER):
        await around().request(headers=[("traceparent", given)])
    lines = [vars(record) for record in caplog.records if record.name == ACCESS_LOGGER]
    assert [line["trace_id"] for line in lines] == [trace_id]


# What went wrong


async def test_an_unexpected_exception_is_a_500_without_details(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answered = await around().request(path="/api/boom")
    assert (answered.status, answered.json) == (500, {"code": "internal_error"})
    assert "the secret cause" in caplog.text


async def test_a_problem_that_a_middleware_raises_is_answered_as_one() -> None:
    answered = await around().request(path="/api/refused")
    assert (answered.status, answered.json) == (401, {"code": "key_unknown"})


async def test_an_answer_that_breaks_off_is_not_completed() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        await around(app=app).request()


async def test_the_log_line_names_the_route_and_no_query_or_header(
    caplog: pytest.LogCaptureFixture,
) -> None:
    key = KeyFormat().generate().reveal()
    with caplog.at_level(logging.INFO, "task_service.access"):
        await around().request(path=f"/api/{key}", headers=[("Authorization", f"Bearer {key}")])
    (record,) = caplog.records
    fields = record.__dict__
    assert (fields["method"], fields["route"], fields["status"]) == ("GET", "unmatched", 200)
    assert fields["address"] == "192.0.2.1"
    assert key not in str(fields)


async def test_a_status_is_logged_as_a_number(caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(status_code=HTTPStatus.SEE_OTHER)(scope, receive, send)

    with caplog.at_level(logging.INFO, "task_service.access"):
        await around(app=app).request()
    assert repr(caplog.records[0].__dict__["status"]) == "303"


async def test_requests_are_in_flight_until_they_are_answered() -> None:
    metrics = Metrics()
    seen = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append("requests_in_flight 1.0" in metrics.render().decode())
        raise RuntimeError

    await around(app=app, metrics=metrics).request()
    assert seen == [True]
    assert "requests_in_flight 0.0" in metrics.render().decode()


async def test_metrics_count_by_route_and_fold_unknown_methods_into_one() -> None:
    metrics = Metrics()
    client = around(metrics=metrics)
    for method in ("GET", "BREW", "PROPFIND"):
        await client.request(method)
    text = metrics.render().decode()
    assert 'task_service_requests_total{method="GET",route="unmatched",status="200"} 1.0' in text
    assert 'task_service_requests_total{method="other",route="unmatched",status="200"} 2.0' in text


# Bodies


@pytest.mark.parametrize("length", [str(MAX_BODY_BYTES + 1), "9" * 5000])
async def test_a_body_that_is_too_large_is_refused_unread(length: str) -> None:
    answered = await around().request("POST", headers=[("Content-Length", length)])
    assert (answered.status, answered.json) == (413, {"code": "content_too_large"})


async def test_a_body_in_chunks_is_refused_unread() -> None:
    answered = await around().request("POST", headers=[("Transfer-Encoding", "chunked")])
    assert (answered.status, answered.json) == (411, {"code": "length_required"})


async def test_the_largest_body_arrives_whole() -> None:
    length = ("Content-Length", str(MAX_BODY_BYTES))
    chunks = (b"a" * (MAX_BODY_BYTES - 1), b"a")
    answered = await around().request("POST", headers=[length], chunks=chunks)
    assert answered.json["size"] == MAX_BODY_BYTES


async def test_a_client_that_goes_away_within_its_body_gets_no_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["type"] == "http.disconnect"

    with caplog.at_level(logging.INFO, "task_service.access"), pytest.raises(IndexError):
        await around(app=app).request("POST", chunks=())
    assert caplog.records[0].__dict__["status"] == 499


# Addresses


@pytest.mark.parametrize(
    ("peer", "forwarded", "believed", "noticed"),
    [
        # Not a proxy: any client can write this header.
        ("192.0.2.1", "198.51.100.7", "192.0.2.1", True),
        ("10.0.0.1", "198.51.100.7", "198.51.100.7", False),
        # What stands left of an address that is not trusted was written by that client.
        ("10.0.0.1", "203.0.113.9, 198.51.100.7", "198.51.100.7", True),
        ("10.0.0.1", "203.0.113.9, 198.51.100.7, 10.0.0.2", "198.51.100.7", True),
        ("10.0.0.1", "198.51.100.7, 10.0.0.2", "198.51.100.7", False),
        ("10.0.0.1", "198.51.100.7:4711", "198.51.100.7", False),
        # A proxy that does not know the client, or hides it.
        ("10.0.0.1", "198.51.100.7, unknown", None, False),
        ("10.0.0.1", "", "10.0.0.1", False),
        ("192.0.2.1", " ", "192.0.2.1", False),
        # Sockets of proxies, and of a service, that listen for IPv4 and IPv6.
        ("10.0.0.1", "198.51.100.7, ::ffff:10.0.0.2", "198.51.100.7", False),
        ("::ffff:10.0.0.1", "2001:db8::7", "2001:db8::7", False),
        ("::ffff:192.0.2.1", "2001:db8::7", "192.0.2.1", True),
    ],
)
async def test_forwarded_for_is_believed_from_the_right_as_far_as_proxies_are_trusted(
    peer: str,
    forwarded: str,
    believed: str | None,
    noticed: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = around(proxies=("10.0.0.0/8",))
    client.peer = (peer, 5000)
    answered = await client.request(headers=[("X-Forwarded-For", forwarded)])
    assert answered.json["address"] == believed
    logged = [str(r.args[0]) for r in caplog.records if r.args and "ignored" in r.message]
    assert logged == ([believed] if noticed else [])


def test_an_address_that_is_no_ip_address_is_none() -> None:
    assert client_address({"client": ("a socket", 0)}) is None
    assert client_address({"client": None}) is None
    assert client_address({"client": ("::ffff:192.0.2.1", 0)}) == "192.0.2.1"
    assert request_address() is None


# The login cookie

SAME = ("Sec-Fetch-Site", "same-origin")


@pytest.mark.parametrize(
    ("headers", "authorization"),
    [
        ([("Cookie", f"a=b; {COOKIE}; c=d")], [f"Bearer {JWT}"]),
        # Two are none.
        ([("Cookie", COOKIE), ("Cookie", COOKIE)], []),
        # A proxy's own login beside the cookie is not ours.
        ([("Cookie", COOKIE), ("Authorization", "Basic abc")], [f"Bearer {JWT}"]),
    ],
)
async def test_the_login_cookie_becomes_the_authorization_header(
    headers: list[tuple[str, str]], authorization: list[str]
) -> None:
    answered = await around().request(headers=headers)
    assert answered.json["authorization"] == authorization


@pytest.mark.parametrize(
    "value",
    [KeyFormat().generate().reveal(), "nonsense", "", "eyJ.a", f"{JWT}.more", "eyJé.a.b"],
)
async def test_a_cookie_that_holds_no_login_token_is_ignored(value: str) -> None:
    answered = await around().request("POST", headers=[("Cookie", f"__Host-task_session={value}")])
    assert (answered.status, answered.json["authorization"]) == (200, [])


@pytest.mark.parametrize("header", ["Bearer abc", "bearer  abc", "Bearer"])
async def test_cookie_and_bearer_are_two_credentials(header: str) -> None:
    answered = await around().request(headers=[("Cookie", COOKIE), ("Authorization", header)])
    assert (answered.status, answered.json) == (400, {"code": "request_malformed"})


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([SAME], 200),
        ([("Sec-Fetch-Site", "none")], 200),
        ([("Origin", "http://127.0.0.1:8000")], 200),
        ([], 403),
        ([("Sec-Fetch-Site", "same-site")], 403),
        ([("Sec-Fetch-Site", "cross-site"), ("Origin", "http://127.0.0.1:8000")], 403),
        ([SAME, SAME], 403),
        ([("Origin", "null")], 403),
        ([("Origin", "http://127.0.0.1:8001")], 403),
        ([("Origin", "https://127.0.0.1:8000")], 403),
        ([("Origin", "http://127.0.0.1:8000.evil.example")], 403),
    ],
)
async def test_with_the_cookie_unsafe_methods_need_the_same_origin(
    headers: list[tuple[str, str]], status: int
) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE", "BREW"):
        answered = await around().request(method, headers=[("Cookie", COOKIE), *headers])
        assert answered.status == status, method
        if status == 403:
            assert answered.json == {"code": "cross_origin_refused"}


async def test_without_the_cookie_no_origin_matters() -> None:
    answered = await around().request("POST", headers=[("Sec-Fetch-Site", "cross-site")])
    assert answered.status == 200


THIS_MACHINE = "http://127.0.0.1:8000"


@pytest.mark.parametrize(
    ("base_url", "loopback", "hosts", "is_own"),
    [
        (THIS_MACHINE, True, ["localhost:8000", "[::1]:8000", "127.0.0.1", "LOCALHOST"], True),
        (THIS_MACHINE, True, ["evil.example:8000", "127.0.0.1.evil.example"], False),
        (THIS_MACHINE, True, ["", "[", "a:b:c"], False),
        ("https://tasks.example", True, ["tasks.example"], True),
        # Bound to a network, any name may be its own.
        (THIS_MACHINE, False, ["build-server:8000"], True),
    ],
)
async def test_the_cookie_is_good_under_the_services_own_names(
    base_url: str, loopback: bool, hosts: list[str], is_own: bool
) -> None:
    for host in hosts:
        answered = await _with_host(around(base_url=base_url, loopback=loopback), host)
        assert answered.status == (200 if is_own else 421), host
        assert is_own or answered.json == {"code": "misdirected_request"}


async def _with_host(client: Client, host: str) -> Answered:
    inner = client.app

    async def renamed(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [header for header in scope["headers"] if header[0] != b"host"]
        scope["headers"] = [*headers, (b"host", host.encode())]
        await inner(scope, receive, send)

    client.app = renamed
    return await client.request(headers=[("Cookie", COOKIE)])
