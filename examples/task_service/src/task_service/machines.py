"""What is different with several machines: a queue tells workers of runs, and who serves leaves the runs to them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from .db.engine import Database
from .settings import Settings
from .tasks.notifications import NullNotifier, WorkerNotifier
from .tasks.runner import Runner


@dataclass(frozen=True, slots=True)
class Queue:
    """What a process knows of workers elsewhere.

    Attributes:
        notifier: Notifies them of runs.
        should_acquire: Whether this process looks for runs itself now; None means always.
        count_live_workers: Counts them; None where there is no queue.
    """

    notifier: WorkerNotifier
    should_acquire: Callable[[], Awaitable[bool]] | None = None
    count_live_workers: Callable[[Database], Awaitable[int]] | None = None


def queue_of(settings: Settings, db: Database, *, serving: bool) -> Queue:
    """What this process knows of workers elsewhere.

    Args:
        settings: Which database there is, and what a process that serves shall do.
        db: Knows which workers are alive.
        serving: Whether this process serves.
    """
    if settings.on_sqlite:
        return Queue(NullNotifier())
    # SQLite does without the queue and what it loads.
    from .tasks.queue import QueueNotifier, count_live_workers

    async def no_worker_lives() -> bool:
        return await count_live_workers(db) == 0

    stands_in = serving and settings.execute_runs == "auto"
    notifier = QueueNotifier(settings.database_url)
    return Queue(notifier, no_worker_lives if stands_in else None, count_live_workers)


def listen_to_queue(
    settings: Settings, runner: Runner, stop: asyncio.Event, *, serving: bool
) -> asyncio.Task[None] | None:
    """Be a worker of the queue until `stop` is set, if this process is one.

    Who only stands in while there are no workers is none, and neither is anybody on SQLite.
    """
    if settings.on_sqlite or (serving and settings.execute_runs != "always"):
        return None
    from .tasks.queue import listen

    return asyncio.create_task(
        listen(
            settings.database_url,
            runner.handle_notification,
            concurrency=settings.workers,
            stop=stop,
        ),
        name="queue",
    )
