"""What a handler is, what it is given, and what it gives back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network
from typing import ClassVar, Generic, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict

from msk_auth import Clock

Stream = Literal["stdout", "stderr", "system"]
"""Where a piece of a run's log came from; `system` is the service's own voice."""


class HandlerParams(BaseModel):
    """Base of every handler's parameters: unknown members are refused and nothing is converted silently."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


@dataclass(frozen=True, slots=True)
class HandlerEnvironment:
    """What the deployment offers to handlers; each one is constructed with it, once, at start.

    Attributes:
        allowed_commands: Asks for the commands that the administrator allows now.
        allowed_networks: Internal networks that `http_request` may reach all the same.
    """

    allowed_commands: Callable[[], Awaitable[Sequence[str]]]
    allowed_networks: Sequence[IPv4Network | IPv6Network] = ()


@dataclass(frozen=True, slots=True)
class HandlerResult:
    """How a run ended by itself.

    Attributes:
        exit_code: The handler's own number for the outcome, 0 for success; None if it has none.
        error: One line that says what went wrong, for the task's owner. None means that the run succeeded.
    """

    exit_code: int | None = None
    error: str | None = None


class LogSink(Protocol):
    """Where a run's output goes."""

    @property
    def full(self) -> bool:
        """True once the log has reached its bound and drops what comes."""
        ...

    def write(self, stream: Stream, text: str) -> None:
        """Take some text."""
        ...


@dataclass(frozen=True, slots=True)
class RunContext:
    """What a handler may use while it runs.

    Attributes:
        run_id: The run's id, for idempotency towards other systems.
        attempt: 1 for the first time, more after a worker died in the middle of the run.
        clock: Where to take the time from.
    """

    run_id: str
    attempt: int
    clock: Clock
    sink: LogSink = field(repr=False)

    def log(self, stream: Stream, text: str) -> None:
        """Append text, with its own line ends, to the run's log. Never waits; what exceeds the bound is dropped."""
        self.sink.write(stream, text)

    @property
    def log_full(self) -> bool:
        """True once further output is dropped, so that a handler can stop producing it."""
        return self.sink.full


ParamsT = TypeVar("ParamsT", bound=HandlerParams)


class Handler(ABC, Generic[ParamsT]):
    """One kind of work that tasks can do.

    Attributes:
        name: What a task's `handler` says: lower-case letters, digits and underscores. Unique in a deployment.
        title: A few words for people.
        description: One or two sentences for people who choose a handler.
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

        Called when a task is created or changed and again before each run, since what is allowed may change.

        Args:
            params: The validated parameters.

        Raises:
            InputInvalid: With fields named `params.…`.
        """

    @abstractmethod
    async def run(self, params: ParamsT, context: RunContext) -> HandlerResult:
        """Do the work.

        Cancelling, a timeout and the stop of the service cancel the call (`asyncio.CancelledError`): clean up
        within three seconds and let the exception pass. Any other exception fails the run; its text goes to the
        service's log, not to the task's owner.

        Args:
            params: The validated parameters.
            context: The run's log and identity.
        """
