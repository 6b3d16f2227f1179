"""A task service on PostgreSQL at half the highest rate, for as long as is asked: what grows, and what does not.

Only when it is named: `python -m benchmarks soak --minutes 30`.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import create_engine, text
from tests.databases import postgres_database

from .deployed import Deployed, deployed
from .machine import cpu_seconds, describe
from .result import Aim, Chart, Column, Result, Row, Spread
from .timing import Scale
from .traffic import Connection

CONNECTIONS = 16
_READS = ("/api/tasks", "/api/auth/me", "/api/keys")

TOLERANCES = {
    "memory, serving": ("MiB", 8.0),
    "memory, worker": ("MiB", 8.0),
    "open files, serving": ("", 4.0),
    "open files, worker": ("", 4.0),
    "connections to PostgreSQL": ("", 4.0),
    "median time of a request": ("ms", 5.0),
    "99 of 100 requests within": ("ms", 50.0),
    "processor time of a request, serving": ("ms", 0.5),
}
"""How much each may have grown at the end of it all, and still be called flat."""


@dataclass(frozen=True, slots=True)
class Slope:
    """A straight line through a figure of each minute.

    Attributes:
        growth: How much it rises from the first minute to the last.
        low: The lower end of what the growth may be with a probability of 95 percent.
        high: The upper end.
    """

    growth: float
    low: float
    high: float


def slope(figures: Sequence[float]) -> Slope:
    """By least squares; with fewer than three figures nothing is known of its bounds, and they are the growth itself."""
    count = len(figures)
    if count < 2:
        return Slope(0.0, 0.0, 0.0)
    middle = (count - 1) / 2
    spread = sum((x - middle) ** 2 for x in range(count))
    mean = statistics.fmean(figures)
    rise = sum((x - middle) * (y - mean) for x, y in enumerate(figures)) / spread
    span = count - 1
    if count < 3:
        return Slope(rise * span, rise * span, rise * span)
    rest = sum((y - mean - rise * (x - middle)) ** 2 for x, y in enumerate(figures))
    error = math.sqrt(rest / (count - 2) / spread)
    # Student's t for 95 percent, by an approximation that is right to a percent from three figures on.
    freedom = count - 2
    t = 1.96 + 2.4 / freedom + (8.3 / freedom**3 if freedom < 4 else 0)
    return Slope(rise * span, (rise - t * error) * span, (rise + t * error) * span)


class Traffic:
    """Requests of every kind: nine of ten read, the others start runs, and create and revoke keys."""

    def __init__(self, it: Deployed) -> None:
        self._it = it
        self._numbers = itertools.count()
        self.seconds: list[float] = []
        """How long each answer took since the moment when it was due."""
        self.wrong: dict[int, int] = {}

    async def one(self, program: Connection, person: Connection, due: float) -> None:
        """One request, or two that belong together."""
        number = next(self._numbers)
        if number % 20 == 0:
            status, made = await person.ask("POST", "/api/keys", {"name": "soak"})
            if status == 201:
                status, _ = await person.ask("DELETE", f"/api/keys/{made['id']}")
        elif number % 20 == 10:
            status, _ = await program.ask("POST", f"/api/tasks/{self._it.task_id}/run")
        else:
            status, _ = await program.ask("GET", _READS[number % len(_READS)])
        self.seconds.append(time.perf_counter() - due)
        if status >= 300:
            self.wrong[status] = self.wrong.get(status, 0) + 1

    async def flow(self, seconds: float, rate: float | None) -> float:
        """Ask for so long, so many times a second or as fast as is answered. How many were answered in a second."""
        began = time.perf_counter()
        before = len(self.seconds)
        places = itertools.count()

        async def client() -> None:
            port = self._it.ports[0]
            program, person = Connection(port, self._it.key), Connection(port, self._it.login)
            try:
                while (now := time.perf_counter()) < began + seconds:
                    due = now
                    if rate is not None:
                        # What comes late is counted from when it was due: waiting in line is waiting, too.
                        due = began + next(places) / rate
                        if due > began + seconds:
                            return
                        await asyncio.sleep(max(0.0, due - now))
                    await self.one(program, person, due)
            finally:
                program.close()
                person.close()

        await asyncio.gather(*(client() for _ in range(CONNECTIONS)))
        return (len(self.seconds) - before) / (time.perf_counter() - began)


def look(it: Deployed, seconds: Sequence[float], used: float) -> dict[str, float]:
    """Every figure of :data:`TOLERANCES`, now.

    Args:
        it: What is looked at.
        seconds: How long each answer of the last minute took.
        used: The processor time in seconds that the process which serves has taken for them.
    """
    (serving,), (worker,) = [api.process.pid for api in it.apis], [each.pid for each in it.workers]
    ordered = sorted(seconds)
    engine = create_engine(it.url)
    try:
        with engine.connect() as connection:
            # All but the one that asks.
            query = "SELECT count(*) - 1 FROM pg_stat_activity WHERE datname = current_database()"
            connections = float(connection.execute(text(query)).scalar_one())
    finally:
        engine.dispose()
    return {
        "memory, serving": _memory(serving),
        "memory, worker": _memory(worker),
        "open files, serving": _files(serving),
        "open files, worker": _files(worker),
        "connections to PostgreSQL": connections,
        "median time of a request": ordered[len(ordered) // 2] * 1e3,
        "99 of 100 requests within": ordered[int(len(ordered) * 0.99)] * 1e3,
        "processor time of a request, serving": used / len(seconds) * 1e3,
    }


def _memory(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"the process {pid} is gone")


def _files(pid: int) -> float:
    try:
        return float(sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()))
    except PermissionError:
        # Processes of the service are not dumpable.
        raise RuntimeError(
            "Only root can count the open files of the service's processes. Run this benchmark as root."
        ) from None


async def soak(it: Deployed, scale: Scale) -> tuple[float, list[dict[str, float]]]:
    """The highest rate, and what was seen in each minute at half of it."""
    traffic = Traffic(it)
    await traffic.flow(scale.pick(1, 20), None)
    highest = await traffic.flow(scale.pick(1, 20), None)
    rate = highest / 2
    length = 1.0 if scale.is_quick else 60.0
    minutes: list[dict[str, float]] = []
    count = 3 if scale.is_quick else max(3, round(scale.minutes))
    print(f"{highest:.0f} requests a second at most; {rate:.0f} for {count} minutes", flush=True)
    (serving,) = [api.process.pid for api in it.apis]
    for number in range(1, count + 1):
        traffic.seconds.clear()
        before = cpu_seconds(serving)
        await traffic.flow(length, rate)
        used = cpu_seconds(serving) - before
        seen = await asyncio.to_thread(look, it, traffic.seconds, used)
        minutes.append(seen)
        figures = ", ".join(f"{name} {value:.1f}" for name, value in seen.items())
        print(f"minute {number}: {figures}", file=sys.stderr, flush=True)
    if traffic.wrong:
        raise RuntimeError(f"not every request was accepted: {traffic.wrong}")
    return rate, minutes


def rows(minutes: Sequence[Mapping[str, float]]) -> list[Row]:
    """What each figure was like in the first and in the last third, and how much it has grown."""
    # What is made once (pools, caches, threads) is made in the first fifth.
    settled = minutes[len(minutes) // 5 :] if len(minutes) > 5 else minutes
    third = max(1, len(settled) // 3)
    made: list[Row] = []
    for name, (unit, tolerance) in TOLERANCES.items():
        figures = [minute[name] for minute in settled]
        line = slope(figures)
        begin, end = Spread.of(figures[:third]), Spread.of(figures[-third:])
        against = [each / begin.median for each in figures[-third:]]
        made.append(
            Row(
                "",
                f"{name}, {unit}" if unit else name,
                {
                    "begin": begin,
                    "end": end,
                    "ratio": Spread.of(against),
                    "growth": Spread(line.growth, line.low, line.high),
                },
                aim=Aim("growth", "at most", tolerance),
            )
        )
    return made


def run(scale: Scale) -> Result:
    """Measure it."""
    measured = describe("task-service", "procrastinate", "psycopg", "uvicorn")
    with postgres_database() as url, deployed(url, apis=1) as it:
        it.set_workers(1)
        rate, minutes = asyncio.run(soak(it, scale))
        it.set_workers(0)
    return Result(
        name="soak",
        title=f"{len(minutes)} minutes at half the highest rate",
        method=f"One process that serves, one worker, {rate:.0f} requests a second: nine of ten read, the others start"
        " runs, and create and delete keys. The figures of each minute, without the first fifth of them: in the first"
        " third, in the last, and the growth of a straight line through all of them, between the bounds that hold with a"
        " probability of 95 percent.",
        columns=[
            Column("begin", "First third"),
            Column("end", "Last third"),
            Column("ratio", "Last against first"),
            Column("growth", "Growth"),
        ],
        rows=rows(minutes),
        chart=Chart("bars", "last third against the first", "ratio"),
        measured=measured,
    )
