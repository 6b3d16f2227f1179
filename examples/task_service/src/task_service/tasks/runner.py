"""The worker of this process: acquires runs, executes them, and leaves none behind.

It has three loops, and one task for each run (:mod:`.execution`):

- *control* acquires queued runs. A notification wakes it immediately, and a poll once a second. The poll also stops
  cancelled runs and watches the leases of other workers.
- *renewal* renews the leases of executing runs, three times in a lease's length.
- *fence* stops a run whose lease could not be renewed, well before another worker may reclaim it: a worker without the
  database must not continue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from task_service import background
from task_service.handlers import RunLease
from task_service.observability import RunMetrics
from task_service.request_record import current_request

from .execution import MAX_BACKOFF_SECONDS, STOP_SECONDS, Execution, StopReason, log_failure
from .notifications import wait_for_event
from .parameters import TaskParameters
from .worker_runs import LeaseWatch, ObservedLease, WorkerRuns

if TYPE_CHECKING:
    from task_service.tracing import Tracing

_log = logging.getLogger(__name__)


@dataclass
class Runner:
    """Executes runs until it is stopped. Several runners may work on one database, in one process or many.

    Args:
        worker_runs: The operations of this worker, with its clock, its lease and the notifications of this process.
        parameters: Opens the parameters of runs.
        observer: Called with the executed runs.
        concurrency: The number of runs executed at once.
        poll: The time between checks without a notification.
        should_acquire: Called once in a poll. While it returns False, other workers acquire the runs.
        tracing: Begins and ends the spans of runs; None makes none.
    """

    worker_runs: WorkerRuns
    parameters: TaskParameters
    observer: RunMetrics
    concurrency: int = 4
    poll: timedelta = timedelta(seconds=1)
    should_acquire: Callable[[], Awaitable[bool]] | None = None
    tracing: Tracing | None = None

    def __post_init__(self) -> None:
        self._clock = self.worker_runs.clock
        self._notifications = self.worker_runs.notifications
        self._watch = LeaseWatch(self._clock, self.worker_runs.lease)
        self._lease = self.worker_runs.lease.total_seconds()
        # A third of the lease is left for the handler to stop.
        self._hold = self._lease * 2 / 3
        self._looked_at: float | None = None
        self._may_acquire = self.should_acquire is None
        # A run may have two: this worker lost the run and acquired it again before the earlier handler stopped.
        self._executions: dict[Execution, asyncio.Task[None]] = {}
        # Set when the control loop has looked for runs, and there is room for more.
        self._has_room = asyncio.Event()
        self._over = asyncio.Event()

    async def run(self, stop: asyncio.Event, grace: timedelta) -> None:
        """Work until `stop` is set. Then acquire no more runs, and queue those again that do not end within `grace`.

        Cancellation stops all runs immediately and writes nothing.
        """
        async with asyncio.TaskGroup() as group:
            loops = [
                group.create_task(self._wake_at(stop)),
                group.create_task(self._run_every(self._lease / 3, self._renew)),
                group.create_task(self._run_every(self._lease / 30, self._fence)),
            ]
            await self._control(group, stop)
            await self._wind_down(grace)
            self._over.set()
            await background.end(*loops, grace=1.0)

    async def handle_notification(self) -> None:
        """Look for runs now, and return when this process has room for another run.

        Until then the caller leaves further notifications to other workers.
        """
        self._has_room.clear()
        self._notifications.runner_wake.set()
        await self._has_room.wait()

    # The loops

    async def _wake_at(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._notifications.runner_wake.set()

    async def _control(self, group: asyncio.TaskGroup, stop: asyncio.Event) -> None:
        backoff = 0.0
        while not stop.is_set():
            self._notifications.runner_wake.clear()
            try:
                await self._look_at_leases()
                if self._may_acquire and not stop.is_set():
                    await self._acquire(group)
            except Exception as error:  # noqa: BLE001 - logged; a runner that stops helps no owner
                # Even if notifications arrive: there may be many, and the database needs the pause.
                backoff = min(MAX_BACKOFF_SECONDS, max(self.poll.total_seconds(), 2 * backoff))
                log_failure("the runner cannot look for runs; it will retry", error)
                await wait_for_event(stop, backoff)
            else:
                backoff = 0.0
                await wait_for_event(self._notifications.runner_wake, self.poll.total_seconds())

    async def _run_every(self, pause: float, do: Callable[[], Awaitable[None]]) -> None:
        # Cancellation usually ends the loop, but a driver that loses its connection at that moment may swallow it.
        while not self._over.is_set():
            try:
                await do()
            except Exception as error:  # noqa: BLE001 - logged; a runner that stops helps no owner
                log_failure("a periodic job of the runner failed and will be retried", error)
                await wait_for_event(self._over, min(pause, 1.0))
            else:
                await wait_for_event(self._over, pause)

    async def _renew(self) -> None:
        for each in list(self._executions):
            # Before the statement, since no other worker can observe the renewed lease earlier.
            began = self._clock.monotonic()
            if await self.worker_runs.renew(each.run):
                each.lease.extend(began + self._hold)
            else:
                each.stop(StopReason.LEASE_LOST)

    async def _fence(self) -> None:
        now = self._clock.monotonic()
        for each in self._executions:
            if now >= each.lease.until:
                each.stop(StopReason.LEASE_LOST)

    async def _look_at_leases(self) -> None:
        """Once in a poll, even if many notifications arrive.

        Check whether other workers acquire the runs, stop cancelled runs, reclaim dead workers' runs.
        """
        now = self._clock.monotonic()
        if self._looked_at is not None and now - self._looked_at < self.poll.total_seconds():
            return
        self._looked_at = now
        if self.should_acquire is not None:
            self._may_acquire = await self.should_acquire()
        others: list[ObservedLease] = []
        for lease in await self.worker_runs.observed_leases():
            own = next((each for each in self._executions if lease.is_of(each.run)), None)
            if own is None:
                others.append(lease)
            elif lease.cancel_requested:
                own.stop(StopReason.CANCELLED)
        expired = self._watch.expired(others)
        if expired:
            _log.warning("reclaiming %d runs from workers that stopped", len(expired))
            await self.worker_runs.reclaim(expired)

    async def _acquire(self, group: asyncio.TaskGroup) -> None:
        """Acquire as many runs as there is room for. Notifications, ends of runs and the poll find the rest."""
        if room := self.concurrency - len(self._executions):
            began = self._clock.monotonic()
            for run in await self.worker_runs.acquire(room):
                lease = RunLease(began + self._hold)
                execution = Execution(run, self.worker_runs, self.parameters, lease)
                self._executions[execution] = group.create_task(self._execute(execution))
                self._notifications.run_changed(run.run_id)
        if (
            len(self._executions) < self.concurrency
            and not self._notifications.runner_wake.is_set()
        ):
            self._has_room.set()

    async def _execute(self, execution: Execution) -> None:
        run = execution.run
        span = None
        if self.tracing is not None:
            span = self.tracing.begin_run(
                run.request, run_id=run.run_id, attempt=run.attempt, handler=run.handler
            )
        # Only in this task, like the handler's log lines.
        current_request.set(run.request)
        began = self._clock.monotonic()
        self.observer.started(run.waited)
        outcome = None
        try:
            outcome = await execution.execute()
            if outcome is not None:
                self.observer.ended(outcome.state, self._clock.monotonic() - began)
        finally:
            if self.tracing is not None and span is not None:
                self.tracing.end_run(span, None if outcome is None else outcome.state)
            del self._executions[execution]
            self._notifications.run_changed(run.run_id)
            self._notifications.runner_wake.set()

    async def _wind_down(self, grace: timedelta) -> None:
        await self._wait_for_executions(grace.total_seconds())
        for each in self._executions:
            each.stop(StopReason.RELEASED)
        # The handlers get time to stop, and the database a last chance.
        await self._wait_for_executions(2 * STOP_SECONDS)
        for task in self._executions.values():
            task.cancel()

    async def _wait_for_executions(self, seconds: float) -> None:
        if self._executions:
            await asyncio.wait(self._executions.values(), timeout=seconds)
