"""Requests per second through each adapter, against the same route with no guard and with a hand-written dictionary.

Each way is a server of its own. All servers of a framework are there at the same time on one core, and all but one of
them rest; the client has the other core, and so has the database. A ratio comes from two that get requests by turns of a few
hundredths of a second. They are started several times, since how fast a process is depends on where its memory lies.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import URL

from msk_auth import KeyFormat
from msk_auth.stores.sqlalchemy import SQLAlchemyKeyStore

from . import load, subjects
from .applications import FRAMEWORKS, Way
from .machine import cores, describe
from .result import Aim, Chart, Column, Result, Row, Spread
from .serve import Setup
from .timing import Scale

ROOT = Path(__file__).parents[1]
LEASE_MS = 250
NONE = "no authentication"
DICTIONARY = "dictionary"
DIGESTS = "dictionary of digests"
LEASED = f"leased, {LEASE_MS} ms"
BY_HAND: dict[str, Way] = {NONE: "none", DICTIONARY: "dictionary", DIGESTS: "digests"}
DICTIONARY_REFUSES = "dictionary, refuses"


@dataclass(frozen=True, slots=True)
class Asked:
    """One row: which server is asked, and with which credential."""

    name: str
    server: str
    credential: str
    is_accepted: bool = True
    against: str = ""
    at_least: float | None = None


class Servers:
    """Servers that run until the end of the `with`."""

    def __enter__(self) -> Servers:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.serve"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *error: object) -> None:
        # They end when nothing more can come.
        self._process.communicate(timeout=60)

    def start(self, setup: Setup) -> int:
        """Serve this; the port.

        Raises:
            RuntimeError: It is not served.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(setup.to_json() + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{setup.framework} is not served")
        return int(line)


def fresh_key(url: URL) -> str:
    """A key that a database has."""
    with subjects.engine_of(url) as engine:
        store = SQLAlchemyKeyStore(engine)
        auth = subjects.authenticator(store)
        key = auth.create_key(subjects.interactive(), name="benchmark").value.reveal()
        store.close()
    return key


def measure(
    framework: str,
    urls: Mapping[str, URL],
    keys: Mapping[str, str],
    scale: Scale,
) -> list[Row]:
    """The rows of one framework."""
    ours, unknown = keys["SQLite"], KeyFormat().generate().reveal()
    ways = [
        Asked(NONE, NONE, ours),
        Asked(DICTIONARY, DICTIONARY, ours, against=NONE),
        Asked(DIGESTS, DIGESTS, ours, against=DICTIONARY),
        Asked(LEASED, LEASED, ours, against=DICTIONARY, at_least=0.95),
        *(Asked(f"reads {name}", name, keys[name], against=DICTIONARY) for name in urls),
        Asked(DICTIONARY_REFUSES, DICTIONARY, unknown, is_accepted=False, against=DICTIONARY),
        Asked("malformed key, refused", LEASED, "msk_not_a_key", False, LEASED, 1.0),
        # It is looked for, so it is compared with a key that is looked for.
        Asked("unknown key, refused", "SQLite", unknown, False, "reads SQLite", 1.0),
    ]
    by_name = {way.name: way for way in ways}
    loads: dict[str, list[load.Load]] = {way.name: [] for way in ways}
    ratios: dict[str, list[float]] = {way.name: [] for way in ways if way.against}
    for _ in range(scale.pick(1, 3)):
        with Servers() as servers:
            ports = {way.name: servers.start(_setup(framework, way, urls, keys)) for way in ways}
            # The first requests are not counted.
            for way in ways:
                _ask(way, ports, scale.pick(1, 30) / 100, scale)
            for way in ways:
                loads[way.name].append(_ask(way, ports, _seconds(scale), scale))
            for number in range(scale.pick(1, 3)):
                for name, found in ratios.items():
                    found.append(_compare(by_name[name], by_name, ports, number, scale))
    return [_row(framework, way, loads[way.name], ratios.get(way.name, ())) for way in ways]


def _setup(framework: str, way: Asked, urls: Mapping[str, URL], keys: Mapping[str, str]) -> Setup:
    database = way.server if way.server in urls else "SQLite"
    return Setup(
        framework=framework,
        way=BY_HAND.get(way.server, "msk_auth"),
        key=keys[database],
        url=urls[database].render_as_string(hide_password=False),
        lease_ms=LEASE_MS if way.server == LEASED else 0,
        cores=sorted(cores()[0]),
    )


def _compare(
    way: Asked, by_name: Mapping[str, Asked], ports: Mapping[str, int], number: int, scale: Scale
) -> float:
    """How many requests a way answers for each one of its yardstick."""
    pair = [way, by_name[way.against]]
    # Another one has the first turn each time.
    turned = pair[::-1] if number % 2 else pair
    asked = [(ports[each.name], each.credential) for each in turned]
    loads = load.compare(asked, _seconds(scale))
    totals = {
        each.name: _checked(each, found).total for each, found in zip(turned, loads, strict=True)
    }
    return totals[way.name] / totals[way.against]


def _seconds(scale: Scale) -> float:
    return 0.01 if scale.is_quick else 1.0


def _ask(way: Asked, ports: Mapping[str, int], seconds: float, scale: Scale) -> load.Load:
    connections = scale.pick(2, load.CONNECTIONS)
    return _checked(way, load.ask(ports[way.name], way.credential, seconds, connections))


def _checked(way: Asked, found: load.Load) -> load.Load:
    expected = 0 if way.is_accepted else found.total
    if found.refused != expected:
        raise RuntimeError(f"{way.name}: {found.refused} of {found.total} were refused")
    return found


def _row(framework: str, way: Asked, own: Sequence[load.Load], ratios: Sequence[float]) -> Row:
    cells = {
        "rate": Spread.of([each.per_second for each in own]),
        "p50": Spread.of([each.p50 for each in own]),
        "p99": Spread.of([each.p99 for each in own]),
    }
    aim = None
    if ratios:
        cells["ratio"] = Spread.of(ratios)
        if way.at_least is not None:
            aim = Aim("ratio", "at least", way.at_least)
    return Row(framework, way.name, cells, way.against, aim)


def run(scale: Scale, frameworks: Sequence[str] = FRAMEWORKS) -> Result:
    """Measure it."""
    measured = describe("fastapi", "starlette", "litestar", "flask", "uvicorn", "gunicorn")
    before = os.sched_getaffinity(0)
    with ExitStack() as stack:
        urls = {"SQLite": stack.enter_context(subjects.sqlite_url())}
        postgres = stack.enter_context(subjects.postgres_url())
        if postgres is not None:
            urls["PostgreSQL"] = postgres
        keys = {name: fresh_key(url) for name, url in urls.items()}
        # Inherited by whatever asks.
        os.sched_setaffinity(0, cores()[1])
        stack.callback(os.sched_setaffinity, 0, before)
        rows = [row for framework in frameworks for row in measure(framework, urls, keys, scale)]
    return Result(
        name="adapters",
        title="Requests per second",
        method=f"{load.CONNECTIONS} connections that ask again as soon as they are answered ({load.generator()}), on"
        " one core; the server on the other. ASGI under uvicorn with httptools and uvloop, Flask under gunicorn with"
        " four threads. Each is asked alone for its rate and its times. For its ratio it is asked by turns of"
        f" {load.MOMENT_SECONDS * 1e3:.0f} ms with what it is compared with, each alone on the core in its turn; all are"
        " started several times. More is better.",
        columns=[
            Column("rate", "Requests per second"),
            Column("p50", "p50", "ms"),
            Column("p99", "p99", "ms"),
            Column("ratio", "Ratio"),
        ],
        rows=rows,
        chart=Chart("bars", "requests per second", "rate"),
        measured=measured,
    )
