"""One address holds as many connections as it can, and the shipped proxy serves every other (ASVS 5.0, section 13.2)."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from examples.task_service.tests.faults.clients import Client
from examples.task_service.tests.faults.deployment import (
    Deployment,
    credential,
    new_key,
    new_task,
    set_up,
    start_run,
)
from examples.task_service.tests.faults.nursery import nursery, until
from examples.task_service.tests.faults.proxies import HOST, proxy, tls

pytestmark = pytest.mark.faults

CONNECTIONS = 512
HEAD = b"POST /api/auth/login HTTP/1.1\r\nHost: a\r\n"
BODY = HEAD + b"Content-Length: 100\r\n\r\n{"


@dataclass
class Proxied:
    """A service behind proxies."""

    ports: dict[str, int]
    trusted: ssl.SSLContext
    program: Client
    run_id: str

    def begin(self, name: str, request: bytes, source: str = "127.0.0.1") -> ssl.SSLSocket:
        """A connection that sends a request and is kept open."""
        plain = socket.create_connection(("127.0.0.1", self.ports[name]), 10, (source, 0))
        connection = self.trusted.wrap_socket(plain, server_hostname=HOST)
        connection.sendall(request)
        return connection

    def status_of(self, name: str, path: str, source: str) -> int | None:
        """The status of an answer that came within ten seconds; None if there was none."""
        request = f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        try:
            with self.begin(name, request.encode(), source) as connection:
                return int(connection.recv(65_536).split(b" ")[1])
        except OSError:
            return None


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    folder = tmp_path_factory.mktemp("held")
    with nursery(folder) as processes, ExitStack() as stack:
        api = Deployment(processes, folder, trusted_proxies="127.0.0.1").serve()
        program = new_key(set_up(api, allowed_commands=["sleep"]))
        run_id = start_run(program, new_task(program, "sleep", "250", timeout_seconds=280))
        ports = {
            name: stack.enter_context(proxy(name, folder, [api.port, api.port]))
            for name in ("nginx", "haproxy")
        }
        yield Proxied(ports, tls(folder), program, run_id)


@pytest.mark.parametrize("kind", ["streams", "bodies", "heads"])
@pytest.mark.parametrize("name", ["nginx", "haproxy"])
def test_one_address_that_holds_512_connections_keeps_no_other_out(
    service: Proxied, name: str, kind: str
) -> None:
    stream = (
        f"GET /api/runs/{service.run_id}/log HTTP/1.1\r\nHost: a\r\nAccept: text/event-stream\r\n"
        f"Authorization: Bearer {credential(service.program)}\r\n\r\n"
    )
    request = {"bodies": BODY, "heads": HEAD, "streams": stream.encode()}[kind]
    with ExitStack() as stack:
        for _ in range(CONNECTIONS):
            stack.callback(service.begin(name, request).close)
        if kind == "bodies":
            # At once: the proxy ends a body that does not come.
            assert service.status_of(name, "/api/tasks", "127.0.0.1") == 429
        for _ in range(20):
            assert service.status_of(name, "/healthz", "127.0.0.2") == 200
            assert service.status_of(name, "/readyz", "127.0.0.2") == 200
            assert service.status_of(name, "/api/tasks", "127.0.0.2") == 401
        # From the very address that holds them.
        assert service.status_of(name, "/healthz", "127.0.0.1") == 200
    until(
        lambda: service.status_of(name, "/api/tasks", "127.0.0.1") == 401,
        "the address is served again",
    )


def test_a_slow_request_is_ended_by_the_proxy(service: Proxied) -> None:
    with ExitStack() as stack:
        slow = [
            stack.enter_context(service.begin(name, request))
            for name in service.ports
            for request in (HEAD, BODY)
        ]
        for connection in slow:
            connection.settimeout(60)
            # At most an answer that says so, and the end.
            assert connection.recv(100)[:12] in {b"", b"HTTP/1.1 408", b"HTTP/1.0 408"}
