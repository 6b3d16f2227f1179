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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import BadStatusLine, HTTPResponse
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.contract.adapter import CASES, Case, fill
from tests.integrations.adapters import ADAPTERS
from tests.integrations.raw_websocket import Talk, talk
from tests.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.no_cover]

ROOT = Path(__file__).parents[2]
APP = "tests.integrations.served:app"
HOST = "127.0.0.1"

# Without an option it takes this machine for a proxy, whose `X-Forwarded-For` states the client.
UVICORN = "uvicorn --no-proxy-headers --log-level critical --host {host} --port {port} {app}"

COMMANDS = {
    "uvicorn with h11": f"{UVICORN} --http h11",
    "uvicorn with httptools": f"{UVICORN} --http httptools",
    "granian": "granian --interface {interface} --no-log --host {host} --port {port} {app}",
    # Its own limits are shorter than those that this asks about.
    "gunicorn": (
        "gunicorn --log-level critical --limit-request-field_size 16384 --limit-request-line 0"
        " -b {host}:{port} {app}"
    ),
    "werkzeug": "flask --app {app} run --no-reload --host {host} --port {port}",
}
# Each adapter under one server, and each other server with one adapter: what a server does is the same for all of them.
ALL_DEPLOYMENTS = [
    ("uvicorn with h11", "fastapi"),
    ("uvicorn with httptools", "starlette"),
    # With Litestar as with FastAPI, whose websockets are Starlette's.
    *(("granian", adapter) for adapter in ["fastapi", "litestar", "flask"]),
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
    at_keys = target.startswith(("/api/keys", "/api/admin/keys"))
    changes = method != "GET" and at_keys and case.status < 400
    return not changes and re.fullmatch(r"[!-~]*", target) is not None


def is_clean(case: Case) -> bool:
    """Every server has to hand on what is HTTP, and not longer than 8,000 bytes."""
    return all(
        len(value) < 8000 and re.fullmatch(r"[\t -~]*", value) is not None
        for _, value in case.headers
    )


def is_emptied(server: str, adapter: str, case: Case) -> bool:
    """The one difference that no adapter can remove: granian empties a value that is not ASCII for a WSGI application.

    Next to another one it is still distinguished from no header, and refused.
    """
    values = [value for name, value in case.headers if name.lower() == "authorization"]
    return (
        (server, adapter) == ("granian", "flask") and len(values) == 1 and not values[0].isascii()
    )


# uvicorn needs another package for websockets.
WITH_WEBSOCKETS = [each for each in DEPLOYMENTS if each[0] == "granian" and each[1] != "flask"]
TALKS: dict[str, tuple[str, str | None, list[str]]] = {
    "nothing": ("/ws", None, []),
    "key_revoked": ("/ws", "key_revoked", []),
    "a key for a login": ("/ws/admin", "key_admin", []),
    "missing": ("/ws/missing", "jwt", []),
    "opened": ("/ws", "key", []),
    "closed": ("/ws/talk", "jwt", ["hello", "administer", "continue"]),
    # These two revoke the key that they use.
    "watched": ("/ws/watch", "key_admin", []),
    "verified again": ("/ws/again", "key_bob", []),
}


SENT = [case for case in CASES if is_sendable(case)]


def is_read_alike(case: Case) -> bool:
    """What no server reads differently: at most one credential in a plain header, and JSON under a plain path and query."""
    values = {name.lower(): value for name, value in case.headers}
    return (
        len(values) == len(case.headers)
        and values.pop("content-type", "application/json") == "application/json"
        and values.keys() <= {"authorization"}
        and all(
            re.fullmatch(r"(?i:Bearer) [\w<>.-]+", value) is not None and len(value) < 100
            for value in values.values()
        )
        and re.fullmatch(r"[\w/<>-]{,100}(\?[\w=&:.-]{,100})?", case.request.partition(" ")[2])
        is not None
    )


# What servers may read differently, and one case for each answer. All adapters answer the whole table in `test_cases.py`.
ONE_FOR_EACH = {(case.status, case.code, case.challenge): case for case in SENT}.values()
SENT_TO_SERVERS = [case for case in SENT if case in ONE_FOR_EACH or not is_read_alike(case)]


def cases_for(server: str, adapter: str) -> Sequence[Case]:
    """The cases of a deployment. What granian reads, it reads alike for every ASGI application."""
    return [*ONE_FOR_EACH] if (server, adapter) == ("granian", "fastapi") else SENT_TO_SERVERS


@contextmanager
def served(server: str, adapter: str) -> Iterator[tuple[int, dict[str, str]]]:
    """A running server, as its port and the names of its world."""
    interface = "wsgi" if adapter == "flask" else "asgi"
    port = free_port()
    command = COMMANDS[server].format(host=HOST, port=port, app=APP, interface=interface)
    with tempfile.TemporaryDirectory() as folder:
        names = Path(folder, "names.json")
        more = {"PYTHONPATH": str(ROOT), "SERVED_ADAPTER": adapter, "SERVED_NAMES": str(names)}
        process = subprocess.Popen(
            [sys.executable, "-m", *command.split()],
            cwd=ROOT,
            env=os.environ | more,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_for(process, port, names)
            yield port, json.loads(names.read_text("utf-8"))
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(60)


def wait_for(process: subprocess.Popen[bytes], port: int, names: Path) -> None:
    """Some servers accept connections before they have loaded the application, and others after."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, f"the server ended with {process.returncode}"
        if names.exists():
            with suppress(OSError), socket.create_connection((HOST, port), timeout=60):
                return
        time.sleep(0.05)
    raise AssertionError("the server does not serve")


def ask(port: int, names: dict[str, str], case: Case) -> Answer:
    """Exactly these bytes, and what comes back until the server closes."""
    body = fill(case.body, names)
    method, _, target = case.request.partition(" ")
    headers = [(name, fill(value, names)) for name, value in case.headers]
    if body or method != "GET":
        headers.append(("content-length", str(len(body)).encode()))
    request = method.encode() + b" " + fill(target, names)
    return read(exchange(port, request, headers, body), names, is_problem=case.code is not None)


def exchange(
    port: int, request: bytes, headers: Sequence[tuple[str, bytes]], body: bytes
) -> tuple[HTTPResponse, bytes] | None:
    """The complete response of a server, and its body; None if the server closes without one."""
    sent = [("host", b"tasks.test"), ("connection", b"close"), *headers]
    lines = [f"{name}: ".encode() + value for name, value in sent]
    with socket.create_connection((HOST, port), timeout=60) as connection:
        # A server that refuses may close before it has read everything.
        with suppress(ConnectionError):
            connection.sendall(b"\r\n".join([request + b" HTTP/1.1", *lines, b"", body]))
        response = HTTPResponse(connection)
        try:
            response.begin()
            return response, response.read()
        except (ConnectionError, BadStatusLine):
            return None


def read(
    response: tuple[HTTPResponse, bytes] | None, names: dict[str, str], *, is_problem: bool
) -> Answer:
    if response is None:
        return Answer(0, None, None, None, "")
    head, body = response
    challenges = head.headers.get_all("www-authenticate", [])
    assert len(challenges) <= 1, "two challenges"
    text = body.decode("latin-1")
    for name, value in names.items():
        assert name.endswith("_id") or name == "id_unknown" or value not in text
        text = text.replace(value, f"<{name}>")
    return Answer(
        head.status,
        *challenges or [None],
        head.headers["retry-after"],
        head.headers["content-type"],
        text if is_problem else "",
    )


def answers_of(server: str, adapter: str) -> dict[str, Answer]:
    """The answers to all cases."""
    return asked(server, adapter).answers


@dataclass(frozen=True)
class Asked:
    """What came back from one deployment.

    Attributes:
        answers: To all cases.
        talks: What became of the websockets, where there are any.
        followed: The answer that goes on until its key is revoked: ended, and not broken off.
        broken: The status and the code of the answer to a body with a broken chunk, or the server's own answer.
    """

    answers: dict[str, Answer]
    talks: dict[str, Talk]
    followed: tuple[HTTPResponse, bytes] | None
    broken: Answer


@functools.cache
def asked(server: str, adapter: str) -> Asked:
    """Everything, asked once in a run."""
    with served(server, adapter) as (port, names):
        answers = {case.name: ask(port, names, case) for case in cases_for(server, adapter)}
        talks = TALKS if (server, adapter) in WITH_WEBSOCKETS else {}
        talked = {
            name: talk(port, path, bearer(names, credential), messages)
            for name, (path, credential, messages) in talks.items()
        }
        # The last ones: they revoke the key that they use.
        headers = [(name.decode(), value) for name, value in bearer(names, "key")]
        followed = exchange(port, b"GET /follow", headers, b"")
        headers = [(name.decode(), value) for name, value in bearer(names, "jwt")]
        headers += [("content-type", b"application/json"), ("transfer-encoding", b"chunked")]
        broken = exchange(port, b"POST /api/keys", headers, b"zz\r\n{}\r\n0\r\n\r\n")
        return Asked(answers, talked, followed, read(broken, names, is_problem=True))


def bearer(names: dict[str, str], credential: str | None) -> list[tuple[bytes, bytes]]:
    return (
        [] if credential is None else [(b"authorization", f"Bearer {names[credential]}".encode())]
    )


@pytest.mark.parametrize(("server", "adapter"), DEPLOYMENTS, ids=map(" and ".join, DEPLOYMENTS))
def test_every_case_gets_its_answer(server: str, adapter: str) -> None:
    answers = answers_of(server, adapter)
    wrong: list[tuple[str, Answer]] = []
    for case in cases_for(server, adapter):
        answer = answers[case.name]
        if answer.is_the_servers_own and not is_clean(case):
            continue
        code = json.loads(answer.body)["code"] if answer.body else None
        given = (answer.status, code, answer.challenge, answer.retry_after)
        expected = (case.status, case.code, case.challenge, case.retry_after)
        if is_emptied(server, adapter, case):
            expected = (401, "credentials_missing", 'Bearer realm="api"', None)
        if given != expected:
            wrong.append((case.name, answer))
    assert wrong == []


@pytest.mark.parametrize(
    ("server", "adapter"), WITH_WEBSOCKETS, ids=map(" and ".join, WITH_WEBSOCKETS)
)
def test_websockets_are_refused_with_the_answer_and_closed_with_the_code(
    server: str, adapter: str
) -> None:
    talks = asked(server, adapter).talks
    refused = {name: each for name, each in talks.items() if each.status != 101}
    assert {
        name: (each.status, json.loads(each.body)["code"]) for name, each in refused.items()
    } == {
        "nothing": (401, "credentials_missing"),
        "key_revoked": (401, "key_revoked"),
        "a key for a login": (403, "interactive_required"),
        "missing": (404, "task_not_found"),
    }
    assert all("content-type: application/problem+json" in each.head for each in refused.values())
    assert (
        'www-authenticate: bearer realm="api", error="invalid_token"' in talks["key_revoked"].head
    )
    assert json.loads(talks["opened"].texts[0])["owner"] == "alice"
    assert talks["opened"].close == (1000, "")
    assert talks["closed"].texts == ("alice", "alice")
    assert talks["closed"].close == (1008, "key_revoked")
    assert talks["watched"].close == (1008, "key_revoked")
    assert talks["verified again"].close == (1008, "key_revoked")


@pytest.mark.parametrize(("server", "adapter"), DEPLOYMENTS, ids=map(" and ".join, DEPLOYMENTS))
def test_a_stream_ends_when_its_key_is_revoked(server: str, adapter: str) -> None:
    followed = asked(server, adapter).followed
    assert followed is not None
    assert (followed[0].status, followed[1]) == (200, b"first\n")


@pytest.mark.parametrize(("server", "adapter"), DEPLOYMENTS, ids=map(" and ".join, DEPLOYMENTS))
def test_a_body_that_cannot_be_read_is_a_400(server: str, adapter: str) -> None:
    broken = asked(server, adapter).broken
    if (server, adapter) == ("granian", "flask"):
        # It hands on an empty body, which is no JSON. When this fails, granian has begun to report it.
        assert (broken.status, json.loads(broken.body)["code"]) == (422, "input_invalid")
        return
    assert broken.status == 400
    if not broken.is_the_servers_own:
        assert json.loads(broken.body)["code"] == "request_malformed"


def test_no_two_deployments_differ() -> None:
    found: dict[str, dict[Answer, list[str]]] = {}
    for server, adapter in DEPLOYMENTS:
        answers = answers_of(server, adapter)
        for case in cases_for(server, adapter):
            answer = answers[case.name]
            if not answer.is_the_servers_own and not is_emptied(server, adapter, case):
                where = found.setdefault(case.name, {}).setdefault(answer, [])
                where.append(f"{server}, {adapter}")
    assert {name: each for name, each in found.items() if len(each) > 1} == {}
