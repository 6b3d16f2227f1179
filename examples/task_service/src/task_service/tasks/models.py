"""The API's tasks, runs and log lines (times are RFC 3339 in UTC)."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic.json_schema import SkipJsonSchema

from task_service.db.paging import IfAny
from task_service.handlers import Stream

MAX_TIMEOUT_SECONDS = 86_400
"""The longest timeout that a task can name; the administrator's `run_timeout_seconds` limits it further."""

_Name = Annotated[
    str,
    Field(
        min_length=1,
        max_length=100,
        json_schema_extra={"pattern": r"^\s*[^\s\x00-\x1f\x7f-\x9f][^\x00-\x1f\x7f-\x9f]*\s*$"},
    ),
]
OwnerId = Annotated[str, Field(max_length=32, pattern="^[0-9A-Za-z_]+$")]
# The limits of any JSON object that the service reads.
_Params = Annotated[
    dict[str, Any],
    Field(json_schema_extra={"maxProperties": 200, "propertyNames": {"maxLength": 200}}),
]
_Timeout = Annotated[int, Field(ge=1, le=MAX_TIMEOUT_SECONDS)]


class RunState(StrEnum):
    """queued → running → one of the final states. A running run whose worker died is queued again."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """True if the run is over."""
        return self not in {RunState.QUEUED, RunState.RUNNING}

    @property
    def is_failure(self) -> bool:
        """True if the run failed or timed out; a cancelled run is no failure."""
        return self in {RunState.FAILED, RunState.TIMED_OUT}


class _Output(BaseModel):
    model_config = ConfigDict(frozen=True, from_attributes=True)


class RunPriority(StrEnum):
    """The order of an owner's own runs; of the same priority, the oldest starts first.

    Owners take turns, so `low`, `normal` and `high` change nothing for other owners. An `urgent` run, which requires a
    permission, goes before other owners' runs. Priorities do not change the number of an owner's concurrent runs.
    """

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"
    URGENT = "urgent"

    @property
    def rank(self) -> int:
        """The sort key: lower means sooner."""
        return {
            RunPriority.LOW: 10,
            RunPriority.NORMAL: 0,
            RunPriority.HIGH: -10,
            RunPriority.URGENT: -20,
        }[self]


class RequestedWith(_Output):
    """The credential that requested a run: an API key has its public id, and its name at that time."""

    kind: str
    key_id: str | None
    key_name: str | None = None


class RequestedBy(_Output):
    """The user who requested a run, with the name at that time."""

    user_id: str
    username: str
    credential: RequestedWith


class Run(_Output):
    """A run of a task.

    Attributes:
        number: 1 for the first run of its task, 2 for the second and so on. No number is used again. Runs of older versions
            of the service have no number.
        attempt: The number of workers that have started the run; more than 1 only after a worker died.
        started_at: The start of the present attempt.
        exit_code: The handler's exit code; None if it has none.
        error: One line with the reason of the failure.
        log_missing_bytes: The size of the missing middle of the output; the first and the last 2 MiB are kept.
        log_missing_lines: The number of missing lines.
    """

    id: str
    task_id: str
    number: int | None
    state: RunState
    attempt: int
    requested_by: RequestedBy
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    exit_code: int | None
    error: str | None
    log_missing_bytes: int
    log_missing_lines: int


class RunDetails(Run):
    """A run with its handler and parameters: those of its task at that time, or those of the rerun.

    In `params`, `{"secret": true}` stands for each secret.
    """

    handler: str
    params: dict[str, Any]


class Task(_Output):
    """A task with its latest run. In a list with `recent_runs`, it has its newest runs, newest first.

    In `params`, `{"secret": true}` stands for each secret.
    """

    id: str
    name: str
    handler: str
    params: dict[str, Any]
    timeout_seconds: int | None
    owner_id: str
    owner_name: str
    created_at: datetime
    updated_at: datetime
    last_run: Run | None
    recent_runs: Annotated[list[Run] | None, IfAny] = None


class ListedRun(Run):
    """A run in a list, with the names of its task and of its owner."""

    task_name: str
    owner_id: str
    owner_name: str


@dataclass(frozen=True, slots=True)
class RunQuery:
    """The runs to list; None means any.

    Attributes:
        states: Runs in one of these states.
        owner: Runs of the user or service account with this name.
        task_id: Runs of this task.
        key_id: Runs requested with this API key.
        since: Requested at this moment or later.
        until: Requested before this moment.
    """

    states: tuple[RunState, ...] | None = None
    owner: str | None = None
    task_id: str | None = None
    key_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None


class TaskSort(StrEnum):
    """The order of tasks: newest first, latest change first, or by name."""

    CREATED = "created"
    UPDATED = "updated"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class TaskQuery:
    """The tasks to list; None means any.

    Attributes:
        ids: Tasks with these ids.
        search: A part of the name, or a whole id.
        state: Tasks whose latest run is in this state.
        owner: Tasks of the user with this name.
        sort: The order.
    """

    ids: tuple[str, ...] | None = None
    search: str | None = None
    state: RunState | None = None
    owner: str | None = None
    sort: TaskSort = TaskSort.CREATED


ALL_TASKS = TaskQuery()


class LogLine(_Output):
    """A piece of a run's log. The log is the concatenation of all texts; they include line ends.

    Attributes:
        seq: Its number, beginning with 1. A missing number means output that is not kept.
    """

    seq: int
    at: datetime
    stream: Stream
    text: str


class _Input(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    @field_validator("name", check_fields=False)
    @classmethod
    def _one_line(cls, value: str | None) -> str | None:
        if value is None:
            raise ValueError("This cannot be null. Give the task a name.")
        stripped = value.strip()
        if not stripped or not stripped.isprintable():
            raise ValueError("The name must be one line of printable characters.")
        return stripped


class RunOptions(_Input):
    """The body of `POST /api/tasks/{taskId}/run`; optional."""

    # Not strict: JSON has no enumerations, only text.
    priority: Annotated[RunPriority, Field(strict=False)] = RunPriority.NORMAL


class RerunOptions(RunOptions):
    """The body of `POST /api/runs/{runId}/rerun`; optional.

    Without `params` the new run has those of the earlier run. Secrets stay as in a change of a task.
    """

    params: _Params | None = None


@dataclass(frozen=True, slots=True)
class AcceptedWork:
    """A handler with accepted parameters; see `TaskParameters.accept`."""

    handler: str
    params: dict[str, Any]


class NewTask(_Input):
    """The body of `POST /api/tasks`. `params` are validated by the handler's own model.

    `owner_id` gives the task to another user or a service account, which requires `tasks:manage_all`.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"name": "Say hello", "handler": "command", "params": {"argv": ["echo", "hello"]}}
            ]
        }
    )

    name: _Name
    handler: Annotated[str, Field(max_length=64)]
    params: _Params = Field(default_factory=dict)
    timeout_seconds: _Timeout | None = None
    owner_id: OwnerId | None = None


class TaskChanges(_Input):
    """The body of `PATCH /api/tasks/{taskId}`: only present members are changed (RFC 7396).

    A `timeout_seconds` of null removes the task's own timeout. A new `handler` needs new `params`. A secret stays if `params`
    leave its field out or have `{"secret": true}` there; with changed parameters, only for the user who entered the secret. A
    new `owner_id` hands the task over with its runs, which requires `tasks:manage_all`.
    """

    name: _Name | SkipJsonSchema[None] = None
    handler: Annotated[str, Field(max_length=64)] | SkipJsonSchema[None] = None
    params: _Params | SkipJsonSchema[None] = None
    timeout_seconds: _Timeout | None = None
    owner_id: OwnerId | SkipJsonSchema[None] = None

    @field_validator("handler", "params", "owner_id")
    @classmethod
    def _not_null(cls, value: Any) -> Any:
        if value is None:
            raise ValueError("This cannot be null.")
        return value
