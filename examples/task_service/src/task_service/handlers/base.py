"""The interface of handlers: what they receive, and what they return."""

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
"""How many characters of a progress report's text are kept."""

Stream = Literal["stdout", "stderr", "system"]
"""The source of a line of a run's log; `system` is the service itself."""


class HandlerParams(BaseModel):
    """Base of every handler's parameters: unknown members are refused, and values are not converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


@dataclass(frozen=True, slots=True)
class HandlerEnvironment:
    """What the deployment provides. Each handler is constructed with it once, at start.

    Attributes:
        allowed_commands: Reads the commands that a run may execute now.
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
    """The worker may no longer act on the run: another one may execute it. Do not catch it; no outcome is written."""


class RunLease:
    """For how long the worker may act on a run; another worker executes it only after that.

    Attributes:
        until: On the monotonic side of the run's clock. It moves as long as the worker renews its lease.
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
        """Return when the end has moved the next time."""
        await self._extended.wait()


class LogSink(Protocol):
    """Where a run's output goes."""

    @property
    def full(self) -> bool:
        """True while more output waits to be saved than is kept."""
        ...

    def write(self, stream: Stream, text: str) -> None:
        """Append text."""
        ...


@dataclass(frozen=True, slots=True)
class RunContext:
    """What a handler may use while it runs.

    Attributes:
        run_id: The run's id, an idempotency key for other systems.
        attempt: 1 for the first attempt; one more after each worker that died in the middle of the run.
        clock: Where to take the time from.
        lease: Until when the worker may act on the run.
        traceparent: The trace to which the request for the run belongs (W3C Trace Context), to send along to other
            systems; None if it belongs to none.
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
        """Call this right before each step that other systems can see: a request, a message, a write elsewhere.

        A worker that was frozen (a paused virtual machine, SIGSTOP) or whose event loop was blocked continues where it
        stopped, although another worker may execute the run already. It may be called from any thread.

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
    """One kind of work that tasks can do.

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

        Called when a task is created or changed, and again before each run, since the administrator may change what is
        allowed.

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
