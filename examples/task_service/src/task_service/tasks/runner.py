"""The worker of this process: acquires runs, executes them, and leaves none behind.

Five loops, and one task for each run (:mod:`.execution`):

- *control* acquires what is queued, passes on cancellations and watches the leases of other workers. A notification wakes
  it at once, a poll once a second.
- *renewal* renews the leases of the runs that are being executed, three times in a lease's length.
- *fence* stops a run whose lease could not be renewed, well before another worker may reclaim it: a worker that is cut off
  from the database must not go on.
- *rotation* adds the owners whose runs an older version of the service has queued.
- *retention* deletes old runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from msk_auth import Clock
from task_service.db.engine import Database
from task_service.handlers import HandlerRegistry, RunLease
from task_service.ids import new_id
from task_service.request_record import current_request

from .execution import (
    MAX_BACKOFF_SECONDS,
    STOP_SECONDS,
    Execution,
    StopReason,
    log_failure,
)
from .interfaces import RunConfig, RunObserver
from .notifications import LocalEvents, WorkerNotifier, wait_for_event
from .retention import Retention
from .worker_runs import AcquiredRun, LeaseWatch, WorkerRuns

if TYPE_CHECKING:
    from task_service.tracing import Tracing

_log = logging.getLogger(__name__)

LEASE: Final = timedelta(seconds=15)
"""How long other workers wait before they reclaim a dead worker's runs. The same in every process of a deployment."""

_RETENTION_PAUSE: Final = 600.0
# An older version of the service queues runs without putting their owners into the rotation.
_ROTATION_PAUSE: Final = 15.0


class Runner:
    """Executes runs until it is stopped. Several may work on one database, in one process or many.

    Args:
        db: The service's database.
        clock: Its monotonic side measures the leases.
        registry: The handlers of this deployment.
        config: The administrator's live settings.
        events: The events of this process, shared with `Tasks` and `Runs`.
        concurrency: How many runs are executed at once.
        worker_id: Unique for each start on all machines; random if not given.
        lease: The length of a lease; see :data:`LEASE`.
        poll: How often to look without a notification.
        notifier: Notifies other workers of runs that are queued again.
        should_acquire: Called once in a poll. While it returns False, other workers acquire the runs.
        observer: Called with what this process executes.
        tracing: Begins and ends the spans of runs; None makes none.
    """

    def __init__(
        self,
        db: Database,
        clock: Clock,
        registry: HandlerRegistry,
        config: RunConfig,
        events: LocalEvents,
        *,
        concurrency: int = 4,
        worker_id: str | None = None,
        lease: timedelta = LEASE,
        poll: timedelta = timedelta(seconds=1),
        notifier: WorkerNotifier | None = None,
        should_acquire: Callable[[], Awaitable[bool]] | None = None,
        observer: RunObserver | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self.worker_id = new_id("wrk") if worker_id is None else worker_id
        self._clock = clock
        self._registry = registry
        self._events = events
        self._concurrency = concurrency
        self._worker_runs = WorkerRuns(
            db, clock, config, worker_id=self.worker_id, lease=lease, notifier=notifier
        )
        self._retention = Retention(db, clock, config)
        self._watch = LeaseWatch(clock, lease)
        self._lease = lease.total_seconds()
        # A third of the lease is left for the handler to stop.
        self._hold = self._lease * 2 / 3
        self._poll = poll.total_seconds()
        self._looked_at: float | None = None
        self._should_acquire = should_acquire
        self._may_acquire = should_acquire is None
        self._observer = observer
        self._tracing = tracing
        self._executions: dict[str, Execution] = {}
        # One search at a time, for as many runs as there is room for.
        self._acquiring = asyncio.Lock()
        self._room = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopping = asyncio.Event()
        self._over = asyncio.Event()
        self._grace = timedelta(0)

    @property
    def active(self) -> int:
        """How many runs are being executed now."""
        return len(self._executions)

    def stop(self, grace: timedelta) -> None:
        """Acquire nothing more, let what runs go on for `grace`, then queue the rest again.

        :meth:`run` returns when that is done.
        """
        self._grace = grace
        self._stopping.set()
        self._events.runner_wake.set()
        self._room.set()

    async def run(self) -> None:
        """Work until :meth:`stop` is called. Cancelling it stops everything at once and writes nothing."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            loops = [
                group.create_task(self._run_every(self._lease / 3, self._renew)),
                group.create_task(self._run_every(self._lease / 30, self._fence)),
                group.create_task(self._run_every(_ROTATION_PAUSE, self._complete_rotation)),
                group.create_task(self._run_every(_RETENTION_PAUSE, self._delete_old_runs)),
            ]
            await self._control()
            await self._wind_down()
            self._group = None
            self._over.set()
            for loop in loops:
                loop.cancel()

    async def handle_notification(self, run_id: str) -> None:
        """Execute the next runs, and return when this process has room for another one.

        Until then the caller leaves further notifications to workers with room.

        Args:
            run_id: The run that the notification announces. Other runs may be next.

        Raises:
            StoreUnavailable: The database does not answer. A worker finds the run later.
        """
        await self._wait_for_room()
        # The caller may be cancelled at any moment. Runs whose acquisition is being committed just then must be executed.
        await asyncio.shield(self._begin_to_acquire(announced=run_id))
        await self._wait_for_room()

    # The loops

    async def _control(self) -> None:
        backoff = 0.0
        while not self._stopping.is_set():
            self._events.runner_wake.clear()
            try:
                self._pass_on_cancellations()
                await self._look_at_others()
                if self._may_acquire:
                    await self._begin_to_acquire()
            except Exception as error:  # noqa: BLE001 - logged; a runner that stops helps no owner
                # Without regard to notifications: there may be many, and the database needs the rest.
                backoff = min(MAX_BACKOFF_SECONDS, max(self._poll, 2 * backoff))
                log_failure("the runner cannot look for runs; it will retry", error)
                await wait_for_event(self._stopping, backoff)
            else:
                backoff = 0.0
                await wait_for_event(self._events.runner_wake, self._poll)

    async def _run_every(self, pause: float, do: Callable[[], Awaitable[None]]) -> None:
        # Cancelling ends it as a rule, but a driver that loses its connection at that moment may swallow that.
        while not self._over.is_set():
            try:
                await do()
            except Exception as error:  # noqa: BLE001 - logged; a runner that stops helps no owner
                log_failure("a periodic job of the runner failed and will be retried", error)
                await wait_for_event(self._over, min(pause, 1.0))
            else:
                await wait_for_event(self._over, pause)

    async def _renew(self) -> None:
        executions = list(self._executions.values())
        if not executions:
            return
        # From before the statement: no other worker can have observed the renewed lease earlier.
        began = self._clock.monotonic()
        held = await self._worker_runs.renew([each.run for each in executions])
        for each in executions:
            if each.run.run_id in held:
                each.lease.extend(began + self._hold)
            else:
                each.stop(StopReason.LEASE_LOST)

    async def _fence(self) -> None:
        now = self._clock.monotonic()
        for each in self._executions.values():
            if now >= each.lease.until:
                each.stop(StopReason.LEASE_LOST)

    async def _complete_rotation(self) -> None:
        if await self._worker_runs.complete_rotation():
            self._events.runner_wake.set()

    async def _delete_old_runs(self) -> None:
        deleted = await self._retention.apply()
        if deleted:
            _log.info("deleted %d old runs", deleted)

    def _pass_on_cancellations(self) -> None:
        for run_id in self._events.take_cancelled():
            if run_id in self._executions:
                self._executions[run_id].stop(StopReason.CANCELLED)

    async def _look_at_others(self) -> None:
        """Once in a poll, even if many notifications arrive.

        Ask whether other workers acquire the runs, stop what was cancelled elsewhere, reclaim dead workers' runs.
        """
        now = self._clock.monotonic()
        if self._looked_at is not None and now - self._looked_at < self._poll:
            return
        self._looked_at = now
        if self._should_acquire is not None:
            self._may_acquire = await self._should_acquire()
        held = [each.run for each in self._executions.values()]
        if held:
            for run_id in await self._worker_runs.cancelled(held):
                if run_id in self._executions:
                    self._executions[run_id].stop(StopReason.CANCELLED)
        expired = self._watch.expired(await self._worker_runs.observed_leases(except_for=held))
        if expired:
            _log.warning("reclaiming %d runs from workers that stopped", len(expired))
            await self._worker_runs.reclaim(expired)

    @property
    def _free(self) -> int:
        return self._concurrency - len(self._executions)

    async def _wait_for_room(self) -> None:
        while not self._stopping.is_set() and self._free <= 0:
            self._room.clear()
            await wait_for_event(self._room, self._poll)

    def _begin_to_acquire(self, *, announced: str | None = None) -> asyncio.Task[None]:
        acquiring = asyncio.create_task(self._acquire(announced), name="acquire")
        self._keep(acquiring)
        return acquiring

    async def _acquire(self, announced: str | None) -> None:
        """Acquire runs until there is no room, or none that may be started."""
        async with self._acquiring:
            while self._group is not None and not self._stopping.is_set() and self._free > 0:
                began = self._clock.monotonic()
                room = self._free
                acquired = await self._worker_runs.acquire(room, announced=announced)
                for run in acquired:
                    await self._begin(run, began)
                if len(acquired) < room:
                    # What could be started was. The rest is found when it is announced, a run ends, or the poll is due.
                    return
                announced = None

    async def _begin(self, run: AcquiredRun, began: float) -> None:
        if self._group is None or self._stopping.is_set():
            # The runner began to stop meanwhile and executes nothing more.
            await self._worker_runs.release(run, None)
            return
        execution = Execution(
            run,
            self._worker_runs,
            self._registry,
            self._clock,
            self._events,
            lease=RunLease(began + self._hold),
        )
        self._executions[run.run_id] = execution
        self._keep(self._group.create_task(self._execute(execution)))
        self._events.run_changed(run.run_id)

    async def _execute(self, execution: Execution) -> None:
        run = execution.run
        span = None
        if self._tracing is not None:
            span = self._tracing.begin_run(
                run.request, run_id=run.run_id, attempt=run.attempt, handler=run.handler
            )
        # Of this task alone, as is what the handler logs.
        current_request.set(run.request)
        began = self._clock.monotonic()
        if self._observer is not None:
            self._observer.started(run.waited)
        try:
            await execution.execute()
            outcome = execution.outcome
            if self._observer is not None and outcome is not None:
                self._observer.ended(outcome.state, self._clock.monotonic() - began)
        finally:
            if self._tracing is not None and span is not None:
                outcome = execution.outcome
                self._tracing.end_run(span, None if outcome is None else outcome.state)
            del self._executions[run.run_id]
            self._room.set()
            self._events.run_changed(run.run_id)
            self._events.runner_wake.set()

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._discard)

    def _discard(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # Retrieved, so that asyncio does not log it: a caller that still waits receives the exception.
            task.exception()

    async def _wind_down(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._grace.total_seconds())
        for each in self._executions.values():
            each.stop(StopReason.RELEASED)
        if self._tasks:
            # Time to stop, and a last chance for the database.
            await asyncio.wait(self._tasks, timeout=2 * STOP_SECONDS)
        for task in self._tasks:
            task.cancel()
