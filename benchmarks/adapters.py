"""Requests per second through each adapter, against the same route with no guard and with a hand-written dictionary.

Each way is a server of its own. All servers of a framework run at the same time on one core; whoever asks has the other
core, and so has the database. How fast each of them is, is asked in turns, so all but one of them rest. A ratio comes from
two that are asked at the same moment: they get equal shares of the core, so whatever else slows it slows both.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
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
    servers: Servers,
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
    ports: dict[str, int] = {}
    for way in ways:
        database = way.server if way.server in urls else "SQLite"
        setup = Setup(
            framework=framework,
            way=BY_HAND.get(way.server, "msk_auth"),
            key=keys[database],
            url=urls[database].render_as_string(hide_password=False),
            lease_ms=LEASE_MS if way.server == LEASED else 0,
            cores=sorted(cores()[0]),
        )
        # Each its own, so that two can be asked at the same moment.
        ports[way.name] = servers.start(setup)
    loads = in_turns(ways, ports, scale)
    ratios = side_by_side(ways, ports, scale)
    return [_row(framework, way, loads[way.name], ratios.get(way.name, ())) for way in ways]


def in_turns(
    ways: Sequence[Asked], ports: Mapping[str, int], scale: Scale
) -> dict[str, list[load.Load]]:
    """Every way in every round, after one round that is not counted."""
    loads: dict[str, list[load.Load]] = {way.name: [] for way in ways}
    for way in () if scale.is_quick else ways:
        _ask(way, ports, 0.3, scale)
    for number in range(scale.pick(1, 5)):
        # Another one begins each round.
        for way in (*ways[number:], *ways[:number]):
            loads[way.name].append(_ask(way, ports, _seconds(scale), scale))
    return loads


def side_by_side(
    ways: Sequence[Asked], ports: Mapping[str, int], scale: Scale
) -> dict[str, list[float]]:
    """How many requests each way answers for each one that its yardstick answers meanwhile, once for each round."""
    by_name = {way.name: way for way in ways}
    ratios: dict[str, list[float]] = {way.name: [] for way in ways if way.against}
    with ThreadPoolExecutor(2) as both:
        for number in range(scale.pick(1, 11)):
            for name, found in ratios.items():
                pair = [by_name[name], by_name[by_name[name].against]]
                # Whoever is asked first is ahead by a millisecond.
                turned = list(reversed(pair)) if number % 2 else pair
                asked = [both.submit(_ask, way, ports, _seconds(scale), scale) for way in turned]
                rates = {
                    way.name: future.result().per_second
                    for way, future in zip(turned, asked, strict=True)
                }
                found.append(rates[pair[0].name] / rates[pair[1].name])
    return ratios


def _seconds(scale: Scale) -> float:
    return 0.01 if scale.is_quick else 1.0


def _ask(way: Asked, ports: Mapping[str, int], seconds: float, scale: Scale) -> load.Load:
    connections = scale.pick(2, load.CONNECTIONS)
    found = load.ask(ports[way.name], way.credential, seconds, connections)
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
        servers = stack.enter_context(Servers())
        rows = [
            row
            for framework in frameworks
            for row in measure(servers, framework, urls, keys, scale)
        ]
    return Result(
        name="adapters",
        title="Requests per second",
        method=f"{load.CONNECTIONS} connections that ask again as soon as they are answered ({load.generator()}), on"
        " one core; the server on the other. ASGI under uvicorn with httptools and uvloop, Flask under gunicorn with"
        " four threads. Each is asked alone for its rate and its times, in turns. For its ratio it is asked at the same"
        " moment as what it is compared with, on the same core: more is better.",
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
