"""Notifications of queued runs for workers, and of new log lines for readers.

A notification is a hint. The row of the run is the truth, and every worker and reader also reads it about once a second:
a repeated notification has no effect, and a lost notification costs a second. The worker that receives a notification
acquires the next run (:mod:`.next_run`), which may be another run, so the order of notifications does not matter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager, suppress

from sqlalchemy.ext.asyncio import AsyncConnection


class Notifications:
    """The notifications of this process, for a database without other processes; see :class:`.queue.QueueNotifications`.

    The process's runner, repositories and readers share one instance.

    Attributes:
        runner_wake: Set when the runner should look for runs.
    """

    def __init__(self) -> None:
        self.runner_wake = asyncio.Event()
        self._subscribers: dict[str, set[asyncio.Event]] = {}

    async def announce(self, connection: AsyncConnection, run_id: str) -> None:
        """Notify workers in other processes of a queued run.

        Args:
            connection: The connection, in the transaction that queues the run: both are committed, or neither.
            run_id: The id of the run.

        Raises:
            StoreUnavailable: The database cannot answer.
        """

    async def withdraw(self, connection: AsyncConnection, run_ids: Sequence[str]) -> None:
        """Withdraw the announcements of runs that are no longer queued."""

    async def listen(
        self, handle_notification: Callable[[], Awaitable[None]], stop: asyncio.Event
    ) -> None:
        """Handle the announcements of other processes until `stop` is set.

        Args:
            handle_notification: Called for each announcement, one at a time. It returns when this worker has room for the
                next one.
            stop: Ends this method, and cancels the current call.
        """

    def run_changed(self, run_id: str) -> None:
        """Report that the run has more log, or another state."""
        for event in self._subscribers.get(run_id, ()):
            event.set()

    @contextmanager
    def subscribe(self, run_id: str) -> Generator[asyncio.Event]:
        """An event that is set whenever the run changes; the subscriber clears it."""
        event = asyncio.Event()
        self._subscribers.setdefault(run_id, set()).add(event)
        try:
            yield event
        finally:
            self._subscribers[run_id].discard(event)
            if not self._subscribers[run_id]:
                del self._subscribers[run_id]


async def wait_for_event(event: asyncio.Event, seconds: float) -> None:
    """Return when the event is set, or after `seconds`."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
