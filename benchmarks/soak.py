"""A task service on PostgreSQL under a steady load, for as long as is asked: what grows, and what does not.

Only when it is named, and as root, who alone may count the open files of the service's processes:
`python -m benchmarks soak --minutes 60`.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.databases import postgres_database

from .deployed import Deployed, deployed
from .machine import describe
from .result import Aim, Column, Result, Row, Spread
from .timing import Scale
from .traffic import Connection

CONNECTIONS = 4
RATE = 20
TOLERANCES = {"memory (MiB)": 8.0, "open files": 4.0, "threads": 4.0}
"""How much the last third may exceed the first one and still be called flat."""

_READS = ("/api/tasks", "/api/auth/me", "/api/keys")


async def flow(it: Deployed, seconds: float) -> None:
    """Send :data:`RATE` requests a second: nine of ten read, the others start runs, and create and delete keys.

    Raises:
        RuntimeError: A request was refused.
    """
    began = time.perf_counter()
    numbers = itertools.count()

    async def client() -> None:
        program, person = (Connection(it.ports[0], each) for each in (it.key, it.login))
        while (number := next(numbers)) < seconds * RATE:
            await asyncio.sleep(max(0.0, began + number / RATE - time.perf_counter()))
            if number % 20 == 0:
                status, made = await person.ask("POST", "/api/keys", {"name": "soak"})
                if status == 201:
                    status, _ = await person.ask("DELETE", f"/api/keys/{made['id']}")
            elif number % 20 == 10:
                status, _ = await program.ask("POST", f"/api/tasks/{it.task_id}/run")
            else:
                status, _ = await program.ask("GET", _READS[number % len(_READS)])
            if status >= 300:
                raise RuntimeError(f"the request {number} got {status}")
        program.close()
        person.close()

    await asyncio.gather(*(client() for _ in range(CONNECTIONS)))


def look(pid: int) -> dict[str, float]:
    """Every figure of :data:`TOLERANCES` of a process, now."""
    process = Path(f"/proc/{pid}")
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    return {
        "memory (MiB)": int(status["VmRSS"].split()[0]) / 1024,
        "open files": float(sum(1 for _ in (process / "fd").iterdir())),
        "threads": float(status["Threads"]),
    }


def rows(process: str, minutes: Sequence[Mapping[str, float]]) -> list[Row]:
    """What each figure of a process was like in the first and in the last third, and how much it has grown."""
    # What is made once (pools, caches, threads) is made in the first fifth.
    settled = minutes[len(minutes) // 5 :]
    third = max(1, len(settled) // 3)
    made: list[Row] = []
    for name, tolerance in TOLERANCES.items():
        figures = [minute[name] for minute in settled]
        begin, end = figures[:third], figures[-third:]
        growth = statistics.median(end) - statistics.median(begin)
        cells = {"begin": Spread.of(begin), "end": Spread.of(end), "growth": Spread.of([growth])}
        made.append(Row(process, name, cells, aim=Aim("growth", "at most", tolerance)))
    return made


def run(scale: Scale) -> Result:
    """Measure it."""
    minutes: list[dict[str, dict[str, float]]] = []
    with postgres_database() as url, deployed(url, apis=1) as it:
        it.set_workers(1)
        pids = {"serving": it.apis[0].process.pid, "worker": it.workers[0].pid}
        for number in range(3 if scale.is_quick else round(scale.minutes)):
            asyncio.run(flow(it, scale.pick(1, 60)))
            minutes.append({process: look(pid) for process, pid in pids.items()})
            print(f"minute {number + 1}: {minutes[-1]}", file=sys.stderr, flush=True)
        it.set_workers(0)
    return Result(
        name="soak",
        title=f"{len(minutes)} minutes at {RATE} requests a second",
        method="One process that serves and one worker on PostgreSQL: nine of ten requests read, the others start runs,"
        " and create and delete keys. The figures of each minute, without the first fifth of them.",
        columns=[
            Column("begin", "First third"),
            Column("end", "Last third"),
            Column("growth", "Growth"),
        ],
        rows=[row for each in pids for row in rows(each, [minute[each] for minute in minutes])],
        measured=describe("task-service", "procrastinate", "psycopg", "uvicorn"),
    )
