"""Requests of the deployed service, beside a bare FastAPI application with one read: asked by turns, one process each."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import URL, make_url
from tests.databases import postgres_database

from . import load
from .deployed import Deployed, deployed
from .load import Load
from .machine import cpu_seconds
from .result import Aim, Row, Spread
from .timing import Scale, ratios

CONNECTIONS = 8
TASKS = 20
LEASE_MS = 250
GROUP = "Requests in a second"

_ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class _Subject:
    """A row: a route of the service, and the bare route that it is compared with."""

    name: str
    path: str
    bare: str
    at_least: float


_READ = "one read"
_NOTHING = "no read"
_BARE_PATHS = {_READ: "/read", _NOTHING: "/nothing"}
_TASKS_PATH = f"/api/tasks?limit={TASKS}"


def _subjects(database: str, *, is_leased: bool) -> list[_Subject]:
    if is_leased:
        return [_Subject(f"who am I, leased for {LEASE_MS} ms", "/api/auth/me", _READ, 1.5)]
    subjects = [
        _Subject("who am I", "/api/auth/me", _READ, 1.0),
        _Subject(f"{TASKS} tasks with their last run", _TASKS_PATH, _READ, 0.6),
    ]
    if database == "SQLite":
        subjects.append(_Subject("health", "/healthz", _NOTHING, 0.6))
    return subjects


@dataclass(frozen=True, slots=True)
class _Server:
    port: int
    pid: int


@contextmanager
def _bare_server(url: URL) -> Iterator[_Server]:
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "benchmarks.bare_application",
            url.render_as_string(hide_password=False),
        ],
        cwd=_ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield _Server(int(process.stdout.readline()), process.pid)
    finally:
        process.terminate()
        process.communicate(timeout=30)


@contextmanager
def _databases(name: str) -> Iterator[tuple[URL, URL | None]]:
    """Empty databases for the bare application and for the service, whose own SQLite file needs no URL."""
    if name == "PostgreSQL":
        with postgres_database() as bare_url, postgres_database() as service_url:
            yield bare_url.set(drivername="postgresql+psycopg"), service_url
    else:
        with tempfile.TemporaryDirectory(prefix="bare-benchmark-") as folder:
            yield make_url(f"sqlite:///{folder}/bare.db"), None


def measure_requests(scale: Scale) -> list[Row]:
    """Rows of the service and of the bare application, on SQLite and on PostgreSQL."""
    rows: list[Row] = []
    for database in ("SQLite", "PostgreSQL"):
        for is_leased in (False, True):
            settings = {"lease_ms": str(LEASE_MS)} if is_leased else {}
            with (
                _databases(database) as (bare_url, service_url),
                _bare_server(bare_url) as bare,
                deployed(service_url, apis=1, log_format="json", **settings) as it,
            ):
                it.run_tasks(TASKS)
                for subject in _subjects(database, is_leased=is_leased):
                    rows += _beside(subject, database, it, bare, scale)
    return rows


def _beside(
    subject: _Subject, database: str, it: Deployed, bare: _Server, scale: Scale
) -> list[Row]:
    (api,) = it.apis
    server = _Server(api.port, api.process.pid)
    asked = [(bare.port, _BARE_PATHS[subject.bare]), (server.port, subject.path)]

    def take_turns(seconds: float) -> list[Load]:
        return [load.ask(port, it.key, seconds, path, CONNECTIONS) for port, path in asked]

    seconds = scale.pick(0, 3) or 0.2
    loads: list[list[Load]] = []
    costs: list[list[float]] = []
    for number in range(scale.pick(1, 7)):
        if not number:
            # Connections are opened, caches are filled.
            take_turns(0.2)
        before = [cpu_seconds(each.pid) for each in (bare, server)]
        found = take_turns(seconds)
        time.sleep(0.05)
        after = [cpu_seconds(each.pid) for each in (bare, server)]
        if any(each.refused for each in found):
            raise RuntimeError(f"{subject.name}: {[each.refused for each in found]} were refused")
        loads.append(found)
        costs.append(
            [
                (end - begin) / each.total * 1e6
                for begin, end, each in zip(before, after, found, strict=True)
            ]
        )
    # A heading for each pair: a chart has no room for the names of both in one line.
    group = f"{GROUP}, {subject.name}, {database}"
    name = f"bare FastAPI, {subject.bare}"
    cells = [
        {
            "rate": Spread.of([each[number].per_second for each in loads]),
            "cpu": Spread.of([each[number] for each in costs]),
            "p99": Spread.of([each[number].p99 for each in loads]),
        }
        for number in (0, 1)
    ]
    rates = [[each[number].per_second for each in loads] for number in (0, 1)]
    cells[1]["ratio"] = Spread.of(ratios(rates[1], rates[0]))
    aim = Aim("ratio", "at least", subject.at_least)
    return [
        Row(group, name, cells[0]),
        Row(group, "the service", cells[1], name, aim),
    ]
