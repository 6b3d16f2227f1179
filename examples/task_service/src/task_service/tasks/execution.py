"""A run while a worker executes it, and how it ends."""

from __future__ import annotations

import asyncio
import logging
from enum import Enum
from typing import Final

from msk_auth import Clock, StoreUnavailable
from task_service.handlers import HandlerResult, LeaseLost, RunLease

from .leases import Claim, Outcome
from .run_log import RunLog
from .shapes import RunState

_log = logging.getLogger(__name__)

_MAX_ERROR: Final = 500


class Verdict(Enum):
    """Why a run is stopped from outside."""

    CANCELLED = "somebody cancelled it"
    LOST = "its lease could not be renewed, or another worker has it"
    RELEASED = "this process is stopping"


class Execution:
    """A run that this process executes.

    Attributes:
        lease: Until when this process may act on the run.
        verdict: Set when it shall stop.
        over: Set when this process has nothing to do with it any more.
    """

    def __init__(self, claim: Claim, clock: Clock, lease: RunLease) -> None:
        self.claim = claim
        self.lease = lease
        self.log = RunLog(
            clock, last_seq=claim.last_seq, size=claim.log_bytes, truncated=claim.log_truncated
        )
        self.verdict: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self.over = asyncio.Event()

    def stop(self, verdict: Verdict) -> None:
        """Decide, unless it is decided."""
        if not self.verdict.done():
            self.verdict.set_result(verdict)


def outcome_of(claim: Claim, work: asyncio.Task[HandlerResult]) -> Outcome | Verdict:
    """What a handler that has stopped working made of its run."""
    if work.cancelled():
        return Outcome(RunState.FAILED, error="The handler gave up.")
    error = work.exception()
    match error:
        case None:
            result = work.result()
            if result.error is None:
                return Outcome(RunState.SUCCEEDED, result.exit_code)
            return Outcome(RunState.FAILED, result.exit_code, _one_line(result.error))
        case LeaseLost():
            return Verdict.LOST
        case StoreUnavailable():
            # What is allowed could not be asked: nothing was begun.
            return Verdict.RELEASED
        case _:
            _log.error(
                "the handler %s failed the run %s", claim.handler, claim.run_id, exc_info=error
            )
            return Outcome(RunState.FAILED, error="The handler failed. The service's log says why.")


def _one_line(text: str) -> str:
    clean = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(clean.split())[:_MAX_ERROR]
