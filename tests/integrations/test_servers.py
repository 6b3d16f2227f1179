"""The table of cases over raw sockets, under the servers that people deploy (G6).

A server may refuse by itself what is no HTTP, or longer than it reads; whatever reaches an
application gets the table's answer, the same from every adapter.
"""

from __future__ import annotations

import functools
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.integrations.adapters import ADAPTERS

from msk_auth.testing.adapter import CASES, Case, fill

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
APP = "tests.integrations.served:app"
HOST = "127.0.0.1"

COMMANDS = {
    "uvicorn with h11": "uvicorn --http h11 --log-level critical --host {host} --port {port} {app}",
    "uvicorn with httptools": (
        "uvicorn --http httptools --log-level critical --host {host} --port {port} {app}"
    ),
    "granian": "granian --interface {interface} --no-log --host {host} --port {port} {app}",
    # Its own limits are shorter than those that this asks about.
    "gunicorn": (
        "gunicorn --log-level critical --limit-request-field_size 16384 --limit-request-line 0"
        " -b {host}:{port} {app}"
    ),
    "werkzeug": "flask --app {app} run --no-reload --host {host} --port {port}",
}
ASGI = ["fastapi", "starlette", "litestar"]
ALL_DEPLOYMENTS = [
    *(("uvicorn with h11", adapter) for adapter in ASGI),
    *(("uvicorn with httptools", adapter) for adapter in ASGI),
    *(("granian", adapter) for adapter in [*ASGI, "flask"]),
    ("gunicorn", "flask"),
    ("werkzeug", "flask"),
]
DEPLOYMENTS = [
    (server, adapter)
    for server, adapter in ALL_DEPLOYMENTS
    if adapter in ADAPTERS and find_spec(COMMANDS[server].split()[0]) is not None
]


@dataclass(frozen=True)
class Answer:
    """What the table is about; what repeats a random id or credential, with its name in its place."""

    status: int
    challenge: str | None
    retry_after: str | None
    content_type: str | None
    body: str

    @property
    def is_the_servers_own(self) -> bool:
        """True if the application was not asked."""
        return self.status in {0, 400, 413, 431} and self.content_type not in {
            "application/json",
            "application/problem+json",
        }


def is_sendable(case: Case) -> bool:
    """A line break ends a header on a real connection; and one world serves all cases, so none may change it."""
    if any("\r" in value or "\n" in value for _, value in case.headers) or len(case.body) > 1000:
        return False
    method, _, target = case.request.partition(" ")
    changes = method != "GET" and target.startswith("/api/keys") and case.status < 400
    return not changes and re.fullmatch(r"[!-~]*", target) is not None


def is_clean(case: Case) -> bool:
    """Every server has to hand on what is HTTP, and not longer than 8,000 bytes."""
    return all(
        len(value) < 8000 and re.fullmatch(r"[\t -~]*", value) is not None
        for _, value in case.headers
    )


def is_emptied(server: str, adapter: str, case: Case) -> bool:
    """granian hands a WSGI application an empty value in place of one that is not ASCII."""
    return (server, adapter) == ("granian", "flask") and not all(
        value.isascii() for _, value in case.headers
    )


SENT = [case for case in CASES if is_sendable(case)]


@contextmanager
def served(server: str, adapter: str) -> Iterator[tuple[int, dict[str, str]]]:
    """A running server, as its port and the names of its world."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        probe.close()
        names = Path(folder, "names.json")
        interface = "wsgi" if adapter == "flask" else "asgi"
        command = COMMANDS[server].format(host=HOST, port=port, app=APP, interface=interface)
        process = subprocess.Popen(
            [sys.executable, "-m", *command.split()],
            cwd=ROOT,
            env=os.environ
            | {
                "PYTHONPATH": str(ROOT),
                "SERVED_ADAPTER": adapter,
                "SERVED_NAMES": str(names),
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_for(process, port, names)
            known = json.loads(names.read_text("utf-8"))
            yield port, known
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(20)


def wait_for(process: subprocess.Popen[bytes], port: int, names: Path) -> None:
    """Some servers listen before they have the application, and others after."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, f"the server ended with {process.returncode}"
        if names.exists():
            with suppress(OSError), socket.create_connection((HOST, port), timeout=5):
                return
        time.sleep(0.05)
    raise AssertionError("the server does not serve")


def ask(port: int, names: dict[str, str], case: Case) -> Answer:
    """Exactly these bytes, and what comes back until the server closes."""
    body = fill(case.body, names)
    method, _, target = case.request.partition(" ")
    headers = [("host", "tasks.test"), ("connection", "close"), *case.headers]
    if body or method != "GET":
        headers.append(("content-length", str(len(body))))
    lines = [f"{name}: ".encode() + fill(value, names) for name, value in headers]
    request = [method.encode() + b" " + fill(target, names) + b" HTTP/1.1", *lines, b"", body]
    received = b""
    with socket.create_connection((HOST, port), timeout=20) as connection:
        # A server that refuses may close before it has read everything.
        with suppress(ConnectionError):
            connection.sendall(b"\r\n".join(request))
        with suppress(ConnectionError):
            while chunk := connection.recv(65536):
                received += chunk
    return read(received, names, is_problem=case.code is not None)


def read(received: bytes, names: dict[str, str], *, is_problem: bool) -> Answer:
    head, _, body = received.partition(b"\r\n\r\n")
    status_line, *lines = head.decode("latin-1").split("\r\n")
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        assert name.lower() not in {"www-authenticate"} & headers.keys(), "two challenges"
        headers[name.lower()] = value.strip()
    if headers.get("transfer-encoding") == "chunked":
        body = unchunked(body)
    text = body.decode("latin-1")
    for name, value in names.items():
        assert name.endswith("_id") or name == "id_unknown" or value not in text
        text = text.replace(value, f"<{name}>")
    return Answer(
        int(status_line.split(" ")[1]) if status_line else 0,
        headers.get("www-authenticate"),
        headers.get("retry-after"),
        headers.get("content-type"),
        text if is_problem else "",
    )


def unchunked(body: bytes) -> bytes:
    content = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        content, body = content + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return content


@functools.cache
def answers_of(server: str, adapter: str) -> dict[str, Answer]:
    """The answers to all cases, asked once in a run."""
    with served(server, adapter) as (port, names):
        return {case.name: ask(port, names, case) for case in SENT}


def test_enough_of_the_table_is_sent() -> None:
    assert len(SENT) >= 300
    assert sum(not is_clean(case) for case in SENT) >= 8


@pytest.mark.parametrize(("server", "adapter"), DEPLOYMENTS, ids=map(" and ".join, DEPLOYMENTS))
def test_every_case_gets_its_answer(server: str, adapter: str) -> None:
    answers = answers_of(server, adapter)
    wrong: list[tuple[str, Answer]] = []
    for case in SENT:
        answer = answers[case.name]
        if answer.is_the_servers_own and not is_clean(case):
            continue
        code = json.loads(answer.body)["code"] if answer.body else None
        told = (answer.status, code, answer.challenge, answer.retry_after)
        expected = (case.status, case.code, case.challenge, case.retry_after)
        if is_emptied(server, adapter, case):
            expected = (401, "credentials_missing", 'Bearer realm="api"', None)
        if told != expected:
            wrong.append((case.name, answer))
    assert wrong == []


def test_no_two_deployments_differ() -> None:
    told: dict[str, dict[Answer, list[str]]] = {}
    for server, adapter in DEPLOYMENTS:
        answers = answers_of(server, adapter)
        for case in SENT:
            answer = answers[case.name]
            if not answer.is_the_servers_own and not is_emptied(server, adapter, case):
                where = told.setdefault(case.name, {}).setdefault(answer, [])
                where.append(f"{server}, {adapter}")
    assert {name: each for name, each in told.items() if len(each) > 1} == {}
