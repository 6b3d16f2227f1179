"""What guarding a route adds to a request, in processor time, without a network and without a server around it.

The applications are those of `adapters`. Here nothing but the framework and the guard is measured, so that a
difference of a microsecond shows that drowns in the noise of a real server.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Iterator
from typing import Any

from msk_auth import KeyFormat
from msk_auth.stores.memory import AsyncMemoryKeyStore, MemoryKeyStore

from . import subjects
from .applications import ASYNC, FRAMEWORKS, flask_app
from .machine import describe
from .result import Aim, Chart, Column, Result, Row, Spread
from .timing import Scale, Work, rows, take_turns

NONE, DICTIONARY, DIGESTS = "no authentication", "dictionary", "dictionary of digests"
LEASED, MEMORY = "leased", "read from memory"


def ask_asgi(app: Any, key: str, status: int) -> Callable[[], Any]:
    """One request to an ASGI application, which must answer with this status."""
    headers = [(b"host", b"x"), (b"accept", b"*/*"), (b"authorization", f"Bearer {key}".encode())]
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def work() -> None:
        statuses.clear()
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": "/",
            "raw_path": b"/",
            "query_string": b"",
            "root_path": "",
            "headers": headers,
            "client": ("192.0.2.1", 1),
            "server": ("192.0.2.2", 80),
            "state": {},
        }
        await app(scope, receive, send)
        assert statuses == [status], statuses

    return work


def ask_wsgi(app: Any, key: str, status: int) -> Callable[[], None]:
    """One request to a WSGI application, which must answer with this status."""
    statuses: list[str] = []

    def start_response(line: str, _headers: Any, _error: Any = None) -> None:
        statuses.append(line)

    def work() -> None:
        statuses.clear()
        answer = app(
            {
                "REQUEST_METHOD": "GET",
                "SCRIPT_NAME": "",
                "PATH_INFO": "/",
                "QUERY_STRING": "",
                "SERVER_NAME": "x",
                "SERVER_PORT": "80",
                "SERVER_PROTOCOL": "HTTP/1.1",
                "HTTP_HOST": "x",
                "HTTP_AUTHORIZATION": f"Bearer {key}",
                "wsgi.version": (1, 0),
                "wsgi.url_scheme": "http",
                "wsgi.input": io.BytesIO(),
                "wsgi.errors": io.StringIO(),
                "wsgi.multithread": True,
                "wsgi.multiprocess": False,
                "wsgi.run_once": False,
            },
            start_response,
        )
        b"".join(answer)
        answer.close()
        assert int(statuses[0][:3]) == status, statuses

    return work


def works(framework: str, runner: asyncio.Runner) -> Iterator[Work]:
    """The ways of one framework, ready to be called."""
    store = MemoryKeyStore()
    maker = subjects.authenticator(store)
    key = maker.create_key(subjects.interactive(), name="benchmark").value.reveal()
    unknown = KeyFormat().generate().reveal()
    is_async = framework in ASYNC
    build: Any = ASYNC.get(framework, flask_app)
    ask: Any = ask_asgi if is_async else ask_wsgi
    apps: dict[str, Any] = {
        name: build(way, _authenticator(store, key[4:16], name, runner, is_async=is_async), key)
        for name, way in (
            (NONE, "none"),
            (DICTIONARY, "dictionary"),
            (DIGESTS, "digests"),
            (LEASED, "msk_auth"),
            (MEMORY, "msk_auth"),
        )
    }

    def work(name: str, app: str, credential: str, status: int, against: str) -> Work:
        call = ask(apps[app], credential, status)
        against = against and f"{framework}, {against}"
        return Work(framework, f"{framework}, {name}", call, against, is_async=is_async)

    yield work(NONE, NONE, key, 200, "")
    yield work(DICTIONARY, DICTIONARY, key, 200, NONE)
    yield work(DIGESTS, DIGESTS, key, 200, DICTIONARY)
    yield work(LEASED, LEASED, key, 200, DICTIONARY)
    yield work(MEMORY, MEMORY, key, 200, DICTIONARY)
    yield work("dictionary, refuses", DICTIONARY, unknown, 401, DICTIONARY)
    yield work("malformed key, refused", LEASED, "msk_not_a_key", 401, LEASED)
    # It is looked for, so it is compared with a key that is looked for.
    yield work("unknown key, refused", MEMORY, unknown, 401, MEMORY)


def run(scale: Scale) -> Result:
    """Measure it."""
    measured = describe("fastapi", "starlette", "litestar", "flask")
    made: list[Row] = []
    with asyncio.Runner() as runner:
        for framework in FRAMEWORKS:
            ways = list(works(framework, runner))
            samples = take_turns(
                ways, rounds=scale.pick(1, 40), seconds=scale.pick(1, 300) / 10_000, runner=runner
            )
            nothing = samples[f"{framework}, {NONE}"]
            made += [
                _row(row, samples[f"{framework}, {row.name}"], nothing)
                for row in rows(ways, samples)
            ]
    return Result(
        name="handling",
        title="One request, in process",
        method="Processor time of one request to an application with one route, called as a server would call it, with"
        " the key in memory. The lease lasts 5 seconds.",
        columns=[
            Column("time", "Time", "µs"),
            Column("added", "Added by the guard", "µs"),
            Column("ratio", "Ratio"),
        ],
        rows=made,
        chart=Chart("bars", "processor time of one request, µs", "time"),
        measured=measured,
    )


def _row(row: Row, own: list[float], nothing: list[float]) -> Row:
    cells = dict(row.cells)
    aim = None
    if own is not nothing:
        added = [mine - bare for mine, bare in zip(own, nothing, strict=True)]
        cells["added"] = Spread.of(added)
    if "key, refused" in row.name:
        aim = Aim("ratio", "at most", 1.0)
    return Row(row.group, row.name, cells, row.against, aim)


def _authenticator(
    store: MemoryKeyStore, key_id: str, name: str, runner: asyncio.Runner, *, is_async: bool
) -> Any:
    """One whose store has this key."""
    lease = subjects.LONG_LEASE if name == LEASED else None
    if not is_async:
        return subjects.authenticator(store, lease=lease)
    record = store.find(key_id)
    assert record is not None
    other = AsyncMemoryKeyStore()
    runner.run(other.insert(record, max_active=None, now=record.created_at))
    return subjects.async_authenticator(other, lease=lease)
