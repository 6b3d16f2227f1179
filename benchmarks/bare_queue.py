"""Procrastinate alone, with jobs that do nothing."""

from __future__ import annotations

import asyncio
import sys

from procrastinate import App, PsycopgConnector

TASK = "nothing"


def bare_app(conninfo: str) -> App:
    """An application with one task that does nothing."""
    app = App(connector=PsycopgConnector(conninfo=conninfo, min_size=1, max_size=4))

    async def nothing() -> None:
        return

    app.task(name=TASK)(nothing)
    return app


async def work(conninfo: str, concurrency: int) -> None:
    """Until SIGTERM."""
    app = bare_app(conninfo)
    async with app.open_async():
        print("working", flush=True)
        await app.run_worker_async(concurrency=concurrency)


def main() -> None:
    """A worker, told on the command line where its database is and how many jobs it does at once."""
    asyncio.run(work(sys.argv[1], int(sys.argv[2])))
