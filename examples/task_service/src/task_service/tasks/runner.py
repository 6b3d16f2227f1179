"""The worker of this process: acquires runs, executes them, and leaves none behind.

Five loops and one task for each run:

- *control* acquires what is queued, passes on cancellations and watches the leases of other workers. A doorbell wakes
  it at once, a poll once a second.
- *renewal* renews the leases of the runs that are being executed, three times in a lease's length.
- *fence* stops a run whose lease could not be renewed, well before another worker may take it over: a worker that is
  cut off from the database must not go on.
- *line* gives owners the place in the line that an older version of the service did not give them.
- *housekeeping* applies the retention.

A run's task waits for whatever comes first: the handler's end, its timeout, or a verdict from one of the loops. Then
it writes the outcome, and keeps trying while the database does not answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any, Final

from msk_auth import Clock, InputInvalid, StoreUnavailable
from task_service.db.engine import Database
from task_service.handlers import HandlerRegistry, HandlerResult, Progress, RunContext, RunLease
from task_service.ids import new_id

from .claims import Claims
from .config import RunConfig
from .doorbell import Doorbell
from .execution import Execution, Verdict, outcome_of
from .leases import Claim, LeaseWatch, Outcome
from .progress import RunProgress
from .retention import Retention
from .shapes import RunState
from .signals import Signals, wait_for_event

_log = logging.getLogger(__name__)

LEASE: Final = timedelta(seconds=15)
"""How long a dead worker's runs lie before others take them over. The same in every process of a deployment."""

_LOG_PAUSE: Final = 0.1
_CLEAN_UP: Final = 5.0
_MAX_BACKOFF: Final = 5.0
_RETENTION_PAUSE: Final = 600.0
# An older version of the service queues runs without giving their owners a place in the line.
_LINE_PAUSE: Final = 15.0


class Runner:
    """Executes runs until it is stopped. Several may work on one database, in one process or many.

    Args:
        db: The service's database.
        clock: Its monotonic side measures the leases.
        registry: The handlers of this deployment.
        config: The administrator's live settings.
        signals: The bells of this process, shared with `Tasks` and `Runs`.
        concurrency: How many runs are executed at once.
        worker_id: Unique for each start on all machines; made up if not given.
        lease: The length of a lease; see :data:`LEASE`.
        poll: How often to look when no bell rings.
        doorbell: Tells other workers of runs that wait again.
        on_duty: Asked before looking for work; while it says no, others do that.
    """

    def __init__(
        self,
        db: Database,
        clock: Clock,
        registry: HandlerRegistry,
        config: RunConfig,
        signals: Signals,
        *,
        concurrency: int = 4,
        worker_id: str | None = None,
        lease: timedelta = LEASE,
        poll: timedelta = timedelta(seconds=1),
        doorbell: Doorbell | None = None,
        on_duty: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self.worker_id = new_id("wrk") if worker_id is None else worker_id
        self._clock = clock
        self._registry = registry
        self._signals = signals
        self._concurrency = concurrency
        self._claims = Claims(
            db, clock, config, worker_id=self.worker_id, lease=lease, doorbell=doorbell
        )
        self._retention = Retention(db, clock, config)
        self._watch = LeaseWatch(clock, lease)
        self._lease = lease.total_seconds()
        # A third of the lease is left for the handler to stop.
        self._hold = self._lease * 2 / 3
        self._poll = poll.total_seconds()
        self._looked_at: float | None = None
        self._on_duty = on_duty
        self._executions: dict[str, Execution] = {}
        self._acquiring = 0
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
        """Claim nothing more, let what runs go on for `grace`, then put the rest back into the queue.

        :meth:`run` returns when that is done.
        """
        self._grace = grace
        self._stopping.set()
        self._signals.bell.set()
        self._room.set()

    async def run(self) -> None:
        """Work until :meth:`stop` is called. Cancelling it stops everything at once and writes nothing."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            loops = [
                group.create_task(self._again_and_again(self._renew, self._lease / 3)),
                group.create_task(self._again_and_again(self._fence, self._lease / 30)),
                group.create_task(self._again_and_again(self._complete_line, _LINE_PAUSE)),
                group.create_task(self._again_and_again(self._clean_up, _RETENTION_PAUSE)),
            ]
            await self._control()
            await self._wind_down()
            self._group = None
            self._over.set()
            for loop in loops:
                loop.cancel()

    async def answer(self, run_id: str) -> None:
        """Execute a run that waits, and come back when it is over, or when there is none for this process.

        While every place is taken this waits for one, so that whoever rings keeps further bells for workers with room.

        Args:
            run_id: Whose bell rang. Another run may be next.

        Raises:
            StoreUnavailable: The database does not answer. The run is found later.
        """
        while not self._stopping.is_set() and self._free <= 0:
            self._room.clear()
            await wait_for_event(self._room, self._poll)
        if self._stopping.is_set() or self._group is None:
            return
        # Whoever rings may be cancelled at any moment. A claim that is being committed just then must not belong to nobody.
        execution = await asyncio.shield(self._begin_to_acquire(rung=True))
        if execution is not None:
            await execution.over.wait()

    # The loops

    async def _control(self) -> None:
        backoff = 0.0
        while not self._stopping.is_set():
            self._signals.bell.clear()
            try:
                await self._pass_on_cancellations()
                await self._take_over()
                await self._acquire_all()
            except Exception as error:  # noqa: BLE001 - logged; a runner that stops helps nobody
                # Not on the bell: it may ring all the time, and the database needs the rest.
                backoff = min(_MAX_BACKOFF, max(self._poll, 2 * backoff))
                _complain("the runner cannot look for work", error)
                await wait_for_event(self._stopping, backoff)
            else:
                backoff = 0.0
                await wait_for_event(self._signals.bell, self._poll)

    async def _again_and_again(self, do: Callable[[], Awaitable[None]], pause: float) -> None:
        # Being cancelled ends it as a rule. A driver that loses its connection at that moment may swallow that.
        while not self._over.is_set():
            try:
                await do()
            except Exception as error:  # noqa: BLE001 - logged; a runner that stops helps nobody
                _complain("the runner failed to do something that it will try again", error)
                await wait_for_event(self._over, min(pause, 1.0))
            else:
                await wait_for_event(self._over, pause)

    async def _renew(self) -> None:
        executions = list(self._executions.values())
        if not executions:
            return
        # From before the statement: nobody can have seen the renewed lease earlier.
        began = self._clock.monotonic()
        held = await self._claims.renew([each.claim for each in executions])
        for each in executions:
            if each.claim.run_id in held:
                each.lease.extend(began + self._hold)
            else:
                each.stop(Verdict.LOST)

    async def _fence(self) -> None:
        now = self._clock.monotonic()
        for each in self._executions.values():
            if now >= each.lease.until:
                each.stop(Verdict.LOST)

    async def _complete_line(self) -> None:
        if await self._claims.complete_line():
            self._signals.bell.set()

    async def _clean_up(self) -> None:
        deleted = await self._retention.apply()
        if deleted:
            _log.info("deleted %d old runs", deleted)

    async def _pass_on_cancellations(self) -> None:
        for run_id in self._signals.take_cancelled():
            if run_id in self._executions:
                self._executions[run_id].stop(Verdict.CANCELLED)

    async def _take_over(self) -> None:
        """Once in a poll, whatever bells ring: hear of cancellations elsewhere, and of workers that died."""
        now = self._clock.monotonic()
        if self._looked_at is not None and now - self._looked_at < self._poll:
            return
        self._looked_at = now
        claims = [each.claim for each in self._executions.values()]
        if claims:
            for run_id in await self._claims.cancelled(claims):
                if run_id in self._executions:
                    self._executions[run_id].stop(Verdict.CANCELLED)
        expired = self._watch.expired(await self._claims.sightings(besides=claims))
        if expired:
            _log.warning("taking %d runs back from workers that stopped", len(expired))
            await self._claims.take_back(expired)

    @property
    def _free(self) -> int:
        return self._concurrency - len(self._executions) - self._acquiring

    async def _acquire_all(self) -> None:
        if self._on_duty is not None and not await self._on_duty():
            return
        while self._free > 0 and not self._stopping.is_set():
            if await self._begin_to_acquire() is None:
                return

    def _begin_to_acquire(self, *, rung: bool = False) -> asyncio.Task[Execution | None]:
        self._acquiring += 1
        acquiring = asyncio.create_task(self._acquire(rung=rung), name="acquire")
        self._keep(acquiring)
        return acquiring

    async def _acquire(self, *, rung: bool) -> Execution | None:
        began = self._clock.monotonic()
        try:
            claim = await self._claims.acquire(rung=rung)
        finally:
            self._acquiring -= 1
            # The place is free again unless there is a claim, and a bell may wait for it.
            self._room.set()
        if claim is None:
            return None
        if self._group is None or self._stopping.is_set():
            # It began to stop meanwhile, and so nobody executes this.
            await self._claims.give_back(claim, None)
            return None
        execution = Execution(claim, self._clock, RunLease(began + self._hold))
        self._executions[claim.run_id] = execution
        self._keep(self._group.create_task(self._execute(execution)))
        self._signals.run_changed(claim.run_id)
        return execution

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._let_go)

    def _let_go(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # Whoever waits for it is told of a failure; somebody who does not wait any more need not be.
            task.exception()

    async def _wind_down(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._grace.total_seconds())
        for each in self._executions.values():
            each.stop(Verdict.RELEASED)
        if self._tasks:
            # Time to stop, and a last chance for the database.
            await asyncio.wait(self._tasks, timeout=2 * _CLEAN_UP)
        for task in self._tasks:
            task.cancel()

    # One run

    async def _execute(self, execution: Execution) -> None:
        run_id = execution.claim.run_id
        writing = asyncio.create_task(self._write_log(execution))
        progress = RunProgress(partial(self._save_progress, execution.claim))
        reporting = asyncio.create_task(progress.keep_saving())
        try:
            end = await self._work(execution, progress)
            execution.log.close()
            await writing
            await self._settle(execution, end)
        except Exception as error:  # noqa: BLE001 - logged; other runs go on
            # Its lease runs out, and so it is taken over.
            _complain(f"the run {run_id} could not be brought to an end", error)
        finally:
            writing.cancel()
            reporting.cancel()
            del self._executions[run_id]
            execution.over.set()
            self._room.set()
            self._signals.run_changed(run_id)
            self._signals.bell.set()

    async def _work(self, execution: Execution, progress: RunProgress) -> Outcome | Verdict:
        """Let the handler work, and say how it ended or why it was stopped."""
        claim = execution.claim
        work = asyncio.create_task(self._handle(execution, progress))
        try:
            waited_for: set[asyncio.Future[Any]] = {work, execution.verdict}
            await asyncio.wait(
                waited_for, timeout=claim.timeout_seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if work.done():
                return outcome_of(claim, work)
        finally:
            work.cancel()
        await asyncio.wait({work}, timeout=_CLEAN_UP)
        if not work.done():
            _log.error("the handler %s of the run %s does not stop", claim.handler, claim.run_id)
        elif not work.cancelled() and (error := work.exception()) is not None:
            _log.warning("the run %s failed while it was stopped", claim.run_id, exc_info=error)
        if not execution.verdict.done():
            said = f"The run took longer than {claim.timeout_seconds} seconds."
            return Outcome(RunState.TIMED_OUT, error=said)
        verdict = execution.verdict.result()
        return Outcome(RunState.CANCELLED) if verdict is Verdict.CANCELLED else verdict

    async def _handle(self, execution: Execution, progress: RunProgress) -> HandlerResult:
        claim = execution.claim
        if claim.attempt > 1:
            execution.log.write(
                "system",
                f"Attempt {claim.attempt}: the worker stopped in the middle of the one before.\n",
            )
        try:
            # Again, because the deployment and the administrator's list may have changed since.
            handler, params = await self._registry.check(claim.handler, claim.params)
        except InputInvalid as refusal:
            return HandlerResult(error=refusal.detail)
        context = RunContext(
            run_id=claim.run_id,
            attempt=claim.attempt,
            clock=self._clock,
            sink=execution.log,
            progress=progress.report,
            lease=execution.lease,
        )
        return await handler.run(params, context)

    async def _write_log(self, execution: Execution) -> None:
        """Save what the handler prints, a tenth of a second later at most; the last batch goes with the outcome."""
        log = execution.log
        pause = _LOG_PAUSE
        while True:
            await log.written.wait()
            await wait_for_event(log.closed, pause)
            if log.closed.is_set():
                return
            try:
                await self._save_batch(execution)
            except StoreUnavailable:
                pause = min(_MAX_BACKOFF, 2 * pause)
            else:
                pause = _LOG_PAUSE

    async def _save_batch(self, execution: Execution) -> None:
        batch = execution.log.next_batch()
        if batch is not None:
            await self._claims.append(execution.claim, batch)
            execution.log.acknowledge()
            self._signals.run_changed(execution.claim.run_id)

    async def _save_progress(self, claim: Claim, progress: Progress) -> None:
        await self._claims.report(claim, progress)
        self._signals.run_changed(claim.run_id)

    async def _settle(self, execution: Execution, end: Outcome | Verdict) -> None:
        """Write down how it ended, for as long as it takes; a lost run is no longer ours to write about."""
        if end is Verdict.LOST:
            _log.warning("stopped the run %s: %s", execution.claim.run_id, end.value)
            return
        pause = _LOG_PAUSE
        while True:
            try:
                if not await self._try_to_settle(execution, end):
                    _log.warning("the run %s belongs to another worker now", execution.claim.run_id)
                return
            except StoreUnavailable:
                await asyncio.sleep(pause)
                pause = min(_MAX_BACKOFF, 2 * pause)

    async def _try_to_settle(self, execution: Execution, end: Outcome | Verdict) -> bool:
        log, claim = execution.log, execution.claim
        batch = log.next_batch()
        while log.has_more:
            await self._save_batch(execution)
            batch = log.next_batch()
        if isinstance(end, Verdict):
            return await self._claims.give_back(claim, batch)
        return await self._claims.finish(claim, end, batch)


def _complain(what: str, error: Exception) -> None:
    """A database that does not answer is no surprise; anything else is a mistake and comes with its traceback."""
    if isinstance(error, StoreUnavailable):
        _log.warning("%s: %s", what, error)
    else:
        _log.error("%s", what, exc_info=error)
