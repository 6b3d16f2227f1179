"""The execution of one run in this process: calls its handler, saves log and progress, and writes the outcome.

An execution ends at the handler's end, at the run's timeout, or for a reason to stop from the runner's
loops. Then it writes the outcome, and retries while the database does not answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from traceback import format_exception
from typing import Any, Final, TypeVar

from msk_auth.errors import InputInvalid, StoreUnavailable
from task_service import background
from task_service.handlers import HandlerResult, LeaseLost, Progress, RunContext, RunLease
from task_service.handlers.base import one_line

from .masked_output import MaskedOutput
from .models import RunState
from .notifications import wait_for_event
from .parameters import TaskParameters
from .run_log import RunLog
from .worker_runs import AcquiredRun, Outcome, WorkerRuns

_log = logging.getLogger(__name__)

T = TypeVar("T")

STOP_SECONDS: Final = 5.0
"""The time that a cancelled handler may take to stop."""
MAX_BACKOFF_SECONDS: Final = 5.0

_FIRST_PAUSE: Final = 0.1
_LOG_PAUSE: Final = 0.1
# Each save of a flood replaces the whole kept end.
_OVERFLOW_PAUSE: Final = 2.0
_PROGRESS_PAUSE: Final = 1.0
_MAX_ERROR: Final = 500


class StopReason(Enum):
    """The reason to stop a run; the value is for the log."""

    CANCELLED = "it was cancelled"
    LEASE_LOST = "its lease could not be renewed, or another worker holds it"
    RELEASED = "this process is stopping"


class HandlerError(Exception):
    """The traceback of a handler, without secrets."""


@dataclass(eq=False)
class Execution:
    """One attempt at a run in this process.

    Args:
        run: The run.
        worker_runs: Writes its log, progress and outcome.
        parameters: Opens the parameters of the run.
        lease: The time until which this process may act on the run.
    """

    run: AcquiredRun
    worker_runs: WorkerRuns
    parameters: TaskParameters
    lease: RunLease

    def __post_init__(self) -> None:
        self._clock = self.worker_runs.clock
        self._log = RunLog(self._clock, saved=self.run.log)
        self._progress: Progress | None = None
        self._has_progressed = asyncio.Event()
        self._stop_reason: asyncio.Future[StopReason] = asyncio.get_running_loop().create_future()

    def stop(self, reason: StopReason) -> None:
        """Stop the run, unless it is being stopped for another reason."""
        if not self._stop_reason.done():
            self._stop_reason.set_result(reason)

    async def execute(self) -> Outcome | None:
        """Execute the run and write its outcome. Errors are logged; the lease then expires and another worker takes over.

        Returns:
            The outcome; None if this worker did not end the run.
        """
        saving = [
            asyncio.create_task(self._save_log()),
            asyncio.create_task(self._save_progress()),
        ]
        try:
            end = await self._work()
            if end is StopReason.LEASE_LOST:
                # This worker must not write.
                _log.warning("stopped the run %s: %s", self.run.run_id, end.value)
                return None
            self._log.close()
            await saving[0]
            if await _until_answered(lambda: self._settle(end)):
                return None if isinstance(end, StopReason) else end
            _log.warning("another worker holds the run %s now", self.run.run_id)
        except Exception as error:  # noqa: BLE001 - logged; other runs go on
            log_failure(f"cannot finish the run {self.run.run_id}", error)
        finally:
            await background.end(*saving)
        return None

    async def _work(self) -> Outcome | StopReason:
        """Let the handler work, and return the outcome, or the reason to stop."""
        run = self.run
        work = asyncio.create_task(self._handle())
        try:
            waited_for: set[asyncio.Future[Any]] = {work, self._stop_reason}
            await asyncio.wait(
                waited_for, timeout=run.timeout_seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if work.cancelled():
                return Outcome(RunState.FAILED, error="The handler cancelled itself.")
            if work.done():
                return work.result()
        finally:
            work.cancel()
        await asyncio.wait({work}, timeout=STOP_SECONDS)
        if not work.done():
            _log.error("the handler %s of the run %s does not stop", run.handler, run.run_id)
        if not self._stop_reason.done():
            message = f"The run took longer than {run.timeout_seconds} seconds."
            return Outcome(RunState.TIMED_OUT, error=message)
        reason = self._stop_reason.result()
        return Outcome(RunState.CANCELLED) if reason is StopReason.CANCELLED else reason

    async def _handle(self) -> Outcome | StopReason:
        """Call the handler, and return the outcome, or the reason why there is none."""
        run = self.run
        if run.attempt > 1:
            self._log.write(
                "system",
                f"Attempt {run.attempt}: the worker of the previous attempt stopped.\n",
            )
        output = MaskedOutput(self._log, ())
        try:
            # Validated again, because the deployment and the administrator's list may have changed.
            work = await self.parameters.prepare(run.task_id, run.handler, run.params)
            output = MaskedOutput(self._log, work.secrets)
            result = await work.handler.run(work.params, self._context(output))
            return _outcome_of(result, output)
        except InputInvalid as refusal:
            return _outcome_of(HandlerResult(error=refusal.detail), output)
        except LeaseLost:
            return StopReason.LEASE_LOST
        except StoreUnavailable:
            # The settings could not be read, so the work has not begun.
            return StopReason.RELEASED
        except Exception as error:  # noqa: BLE001 - logged
            # The message of the handler, or of a library, may have secrets.
            trace = HandlerError(output.mask("".join(format_exception(error))))
            _log.error("the handler %s failed the run %s", run.handler, run.run_id, exc_info=trace)
            reason = "The handler failed. The reason is in the service's log."
            return Outcome(RunState.FAILED, error=reason)
        finally:
            output.flush()

    def _context(self, output: MaskedOutput) -> RunContext:
        def report(progress: Progress) -> None:
            text = None if progress.text is None else output.mask(progress.text)
            progress = replace(progress, text=text)
            if progress != self._progress:
                self._progress = progress
                self._has_progressed.set()

        run = self.run
        return RunContext(
            run_id=run.run_id,
            attempt=run.attempt,
            clock=self._clock,
            sink=output,
            progress=report,
            lease=self.lease,
            traceparent=None if run.request is None else run.request.traceparent,
        )

    async def _save_log(self) -> None:
        """Save the handler's output within a tenth of a second, until the log is closed and saved."""
        log = self._log
        while True:
            await log.written.wait()
            await wait_for_event(log.closed, _OVERFLOW_PAUSE if log.overflows else _LOG_PAUSE)
            batch = log.take()
            if batch is None:
                return
            await _until_answered(partial(self.worker_runs.append_log, self.run, batch))
            self.worker_runs.notifications.run_changed(self.run.run_id)

    async def _save_progress(self) -> None:
        """Save the handler's latest report, at most once a second."""
        while True:
            await self._has_progressed.wait()
            self._has_progressed.clear()
            assert self._progress is not None  # noqa: S101 - set before the event
            save = partial(self.worker_runs.report_progress, self.run, self._progress)
            await _until_answered(save)
            self.worker_runs.notifications.run_changed(self.run.run_id)
            await asyncio.sleep(_PROGRESS_PAUSE)

    async def _settle(self, end: Outcome | StopReason) -> bool:
        """Write the outcome, or release the run; False if this worker no longer holds the run."""
        if isinstance(end, StopReason):
            return await self.worker_runs.release(self.run)
        return await self.worker_runs.finish(self.run, end)


def _outcome_of(result: HandlerResult, output: MaskedOutput) -> Outcome:
    if result.error is None:
        return Outcome(RunState.SUCCEEDED, result.exit_code)
    reason = one_line(output.mask(result.error), _MAX_ERROR)
    return Outcome(RunState.FAILED, result.exit_code, reason)


async def _until_answered(write: Callable[[], Awaitable[T]]) -> T:
    """Repeat a write until the database answers."""
    pause = _FIRST_PAUSE
    while True:
        try:
            return await write()
        except StoreUnavailable:
            await asyncio.sleep(pause)
            pause = min(MAX_BACKOFF_SECONDS, 2 * pause)


def log_failure(what: str, error: Exception) -> None:
    """Log a database that does not answer as a warning, and anything else as an error with its traceback."""
    if isinstance(error, StoreUnavailable):
        _log.warning("%s: %s", what, error)
    else:
        _log.error("%s", what, exc_info=error)
