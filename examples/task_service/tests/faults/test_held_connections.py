"""One address holds as many connections as it can, and everyone else is served (ASVS 5.0, section 13.2)."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from examples.task_service.tests.faults.clients import Client
from examples.task_service.tests.faults.deployment import (
    Api,
    Deployment,
    credential,
    new_key,
    new_task,
    set_up,
    start_run,
)
from examples.task_service.tests.faults.nursery import nursery, until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

CONNECTIONS = 512


def begin(port: int, request: bytes) -> socket.socket:
    """A connection of 127.0.0.1 that sends a request and is kept open."""
    connection = socket.create_connection(("127.0.0.1", port), 10)
    connection.sendall(request)
    return connection


def status_of(port: int, path: str, source: str, *headers: str) -> int | None:
    """The status of an answer that came within five seconds; None if there was none."""
    lines = [f"GET {path} HTTP/1.1", "Host: a", "Connection: close", *headers, "", ""]
    try:
        with socket.create_connection(("127.0.0.1", port), 5, (source, 0)) as connection:
            connection.sendall("\r\n".join(lines).encode())
            received = b""
            while chunk := connection.recv(65_536):
                received += chunk
    except OSError:
        return None
    return int(received.split(b" ")[1]) if received else None


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with nursery(tmp_path) as processes:
        yield Deployment(processes, tmp_path).serve()


def stream_request(api: Api) -> tuple[bytes, Client]:
    """To follow the log of a run that goes on for minutes; and the program that may."""
    admin = set_up(api, allowed_commands=["sleep"])
    program = new_key(admin)
    run_id = start_run(program, new_task(program, "sleep", "250", timeout_seconds=280))
    request = (
        f"GET /api/runs/{run_id}/log HTTP/1.1\r\nHost: a\r\n"
        f"Authorization: Bearer {credential(program)}\r\nAccept: text/event-stream\r\n\r\n"
    )
    return request.encode(), program


@pytest.mark.parametrize("kind", ["streams", "bodies", "heads"])
def test_one_address_that_holds_512_connections_keeps_no_other_out(api: Api, kind: str) -> None:
    request = {
        "bodies": b"POST /api/auth/login HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{",
        "heads": b"POST /api/auth/login HTTP/1.1\r\nHost: a\r\n",
    }.get(kind) or stream_request(api)[0]
    with ExitStack() as stack:
        for _ in range(CONNECTIONS):
            stack.callback(begin(api.port, request).close)
        for _ in range(20):
            assert status_of(api.port, "/healthz", "127.0.0.2") == 200
            assert status_of(api.port, "/readyz", "127.0.0.2") == 200
            assert status_of(api.port, "/api/tasks", "127.0.0.2") == 401
        # From the very address that holds them, once those that were refused have gone.
        until(lambda: status_of(api.port, "/healthz", "127.0.0.1") == 200, "health is answered", 10)
    until(
        lambda: status_of(api.port, "/api/tasks", "127.0.0.1") == 401, "the address is served again"
    )


def test_one_client_behind_a_proxy_keeps_no_other_out(tmp_path: Path) -> None:
    request = (
        b"POST /api/auth/login HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 192.0.2.7\r\n"
        b"Content-Length: 100\r\n\r\n{"
    )
    other = "X-Forwarded-For: 192.0.2.8"
    with nursery(tmp_path) as processes, ExitStack() as stack:
        api = Deployment(processes, tmp_path, trusted_proxies="127.0.0.1").serve()
        for _ in range(CONNECTIONS):
            stack.callback(begin(api.port, request).close)
        assert status_of(api.port, "/healthz", "127.0.0.1") == 200
        # A process that waits for the bodies does not answer for half a minute.
        until(
            lambda: status_of(api.port, "/api/tasks", "127.0.0.1", other) == 401,
            "another client of the proxy is served",
            20,
        )
