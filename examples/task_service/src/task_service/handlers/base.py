"""The interface of handlers: their parameters, context and results."""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network
from typing import ClassVar, Generic, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict

from msk_auth import Clock

MAX_PROGRESS_TEXT = 200
"""The maximum length of a progress report's text; the rest is dropped."""

Stream = Literal["stdout", "stderr", "system"]
"""The source of a line of a run's log; `system` is the service itself."""


class HandlerParams(BaseModel):
    """Base of every handler's parameters: unknown members are refused, and values are not converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


@dataclass(frozen=True, slots=True)
class HandlerEnvironment:
    """The deployment's functions and settings for handlers. Each handler is constructed with it once, at start.

    Attributes:
        allowed_commands: Reads the presently allowed commands.
        allowed_networks: Internal networks that `http_request` may reach.
    """

    allowed_commands: Callable[[], Awaitable[Sequence[str]]]
    allowed_networks: Sequence[IPv4Network | IPv6Network] = ()


@dataclass(frozen=True, slots=True)
class HandlerResult:
    """The result of a run that was not stopped from outside.

    Attributes:
        exit_code: The handler's own number for the outcome, 0 for success; None if it has none.
        error: One line for the task's owner with the reason of the failure. None means that the run succeeded.
    """

    exit_code: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a run.

    Attributes:
        fraction: The part that is done, from 0 to 1.
        text: A few words on the present step, on one line; None if there are none.
    """

    fraction: float
    text: str | None = None


def _ignore_report(_progress: Progress) -> None:
    """For a context without readers."""


class LeaseLost(Exception):
    """The worker may no longer act on the run: another worker may execute it. Do not catch this; no outcome is written."""


class RunLease:
    """The time until which the worker may act on a run; another worker executes it only later.

    Attributes:
        until: The time on the monotonic side of the run's clock. It moves while the worker renews its lease.
    """

    def __init__(self, until: float = math.inf) -> None:
        self.until = until
        self._extended = asyncio.Event()

    def extend(self, until: float) -> None:
        """Move the end, and wake the tasks that wait in :meth:`extended`."""
        self.until = until
        extended, self._extended = self._extended, asyncio.Event()
        extended.set()

    async def extended(self) -> None:
        """Wait until the end moves."""
        await self._extended.wait()


class LogSink(Protocol):
    """The receiver of a run's output."""

    @property
    def full(self) -> bool:
        """True while more output is unsaved than will be kept."""
        ...

    def write(self, stream: Stream, text: str) -> None:
        """Append text."""
        ...


@dataclass(frozen=True, slots=True)
class RunContext:
    """The functions and facts of a run for its handler.

    Attributes:
        run_id: The run's id, an idempotency key for other systems.
        attempt: 1 for the first attempt; one more after each worker that died during the run.
        clock: The clock.
        lease: The time until which the worker may act on the run.
        traceparent: The trace of the request for the run (W3C Trace Context), to send to other systems, or None.
    """

    run_id: str
    attempt: int
    clock: Clock
    sink: LogSink = field(repr=False)
    progress: Callable[[Progress], None] = field(default=_ignore_report, repr=False)
    lease: RunLease = field(default_factory=RunLease, repr=False)
    traceparent: str | None = None

    def log(self, stream: Stream, text: str) -> None:
        """Append text, with its own line ends, to the run's log. Never waits; the end of the output is kept."""
        self.sink.write(stream, text)

    def report_progress(self, fraction: float, text: str | None = None) -> None:
        """Report progress. Never waits, and may be called at any rate: at most one report a second is stored.

        Args:
            fraction: The part that is done, from 0 to 1. It may decrease.
            text: A few words on the present step. Line breaks and other unprintable characters become spaces; at most
                200 characters are kept.

        Raises:
            ValueError: The fraction is not a number from 0 to 1.
        """
        if not (math.isfinite(fraction) and 0 <= fraction <= 1):
            raise ValueError(f"fraction is {fraction!r}; pass a number from 0 to 1")
        line = one_line(text or "", MAX_PROGRESS_TEXT) or None
        self.progress(Progress(float(fraction), line))

    def check_lease(self) -> None:
        """Call this directly before each step that other systems can see: a request, a message, a write elsewhere.

        A worker that was frozen (a paused virtual machine, SIGSTOP), or had a blocked event loop, continues where it
        stopped, although another worker may already execute the run. Any thread may call this.

        Raises:
            LeaseLost: Another worker may execute the run. Do not catch it.
        """
        if self.clock.monotonic() >= self.lease.until:
            raise LeaseLost

    @property
    def log_full(self) -> bool:
        """True while output comes faster than it is saved, so that a handler can pause."""
        return self.sink.full


def one_line(text: str, most: int) -> str:
    """The text on one line of printable characters, cut off after `most`."""
    clean = "".join(character if character.isprintable() else " " for character in text)
    return " ".join(clean.split())[:most]


ParamsT = TypeVar("ParamsT", bound=HandlerParams)


class Handler(ABC, Generic[ParamsT]):
    """A kind of work for tasks.

    Attributes:
        name: The value of a task's `handler`: lower-case letters, digits and underscores. Unique in a deployment.
        title: A few words, shown in the form.
        description: One or two sentences, shown in the form.
        Params: The model of the task's `params`.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    description: ClassVar[str]
    Params: type[ParamsT]

    def __init__(self, environment: HandlerEnvironment) -> None:
        self.environment = environment

    async def check(self, params: ParamsT) -> None:
        """Refuse well-formed parameters that the deployment does not allow.

        Called when a task is created or changed, and again before each run, since the administrator may change the
        limits.

        Args:
            params: The validated parameters.

        Raises:
            InputInvalid: With fields named `params.…`.
        """

    @abstractmethod
    async def run(self, params: ParamsT, context: RunContext) -> HandlerResult:
        """Do the work.

        A cancellation, a timeout and the stop of the service cancel the call (`asyncio.CancelledError`): clean up within
        three seconds and do not suppress the exception. Any other exception fails the run; its text goes to the
        service's log, not to the task's owner.

        Args:
            params: The validated parameters.
            context: The run's log and identity.
        """
