"""Routes to read and cancel runs, and to follow their logs."""

# No `from __future__ import annotations`: FastAPI reads the annotations of local names at run time.

import asyncio
import json
from contextlib import aclosing, suppress
from dataclasses import asdict
from typing import Annotated, Final

from fastapi import APIRouter, Body, Header, Query, Request, Response
from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event
from starlette.responses import PlainTextResponse

from msk_auth import Policy, Principal, any_credential
from msk_auth.errors import Problem
from msk_auth.integrations.fastapi import FastAPIAuth
from task_service.accounts.names import normalised_username
from task_service.accounts.users import User
from task_service.db.paging import Page
from task_service.errors import (
    IdempotencyConflict,
    RunNotCancellable,
    RunNotFound,
    RunQueueFull,
    TaskNotFound,
    TaskOwnerDisabled,
)
from task_service.handlers import Progress
from task_service.tasks.models import (
    ListedRun,
    LogLine,
    RerunOptions,
    Run,
    RunDetails,
    RunQuery,
    RunState,
)
from task_service.tasks.run_log import LogReader
from task_service.tasks.runs import Runs
from task_service.validation import Time

from .event_stream import EventStream, StreamLimit, Write
from .json_route import IdempotencyKey, JsonRoute, WantedPage
from .openapi import Responses, path_id, problems

RunId = Annotated[str, path_id("runId", "run", "run")]

_READ: Final[Policy] = any_credential()


def runs_router(
    auth: FastAPIAuth[User],
    runs: Runs,
    logs: LogReader,
    *,
    stopping: asyncio.Event,
) -> APIRouter:
    """The routes under `/api/runs`.

    Args:
        auth: Guards the routes.
        runs: The runs.
        logs: Reads their logs.
        stopping: Set when the service begins to stop; then streams end.
    """
    router = APIRouter(prefix="/api/runs", tags=["Runs"], route_class=JsonRoute)
    # `Runs` decides: a key that may run tasks reads the runs that it has started, and a key limited to tasks sees only their
    # runs.
    reader = auth.any_credential
    starter = auth.require("tasks:run", any_resource=True)
    streams = StreamLimit()

    @router.get("")
    async def search_runs(
        principal: Annotated[Principal[User], reader],
        page: WantedPage,
        state: Annotated[list[RunState] | None, Query()] = None,
        owner: str | None = None,
        task: str | None = None,
        key: str | None = None,
        since: Time | None = None,
        until: Time | None = None,
    ) -> Page[ListedRun]:
        """List the runs of all tasks that you may see, newest first.

        Repeat `state` for several states. `owner` is the name of a user or service account, `task` and `key` are ids, and
        `since` and `until` are times of the request. A key without `tasks:read` that may run tasks sees the runs that it has
        started. With `count` the answer has the number of all runs found. A cursor belongs to its filters.
        """
        query = RunQuery(
            states=None if state is None else tuple(state),
            owner=None if owner is None else normalised_username(owner),
            task_id=task,
            key_id=key,
            since=since,
            until=until,
        )
        return await runs.search(principal, query, page)

    @router.get("/{runId}", responses=problems(RunNotFound))
    async def get_run(principal: Annotated[Principal[User], reader], run_id: RunId) -> RunDetails:
        """Show a run, with its handler and parameters.

        Needs `tasks:read`; a key that may run tasks reads the runs that it has started.
        """
        return await runs.details(principal, run_id)

    @router.post(
        "/{runId}/rerun",
        status_code=202,
        responses=problems(
            RunNotFound, TaskNotFound, TaskOwnerDisabled, IdempotencyConflict, RunQueueFull
        ),
    )
    async def rerun(
        principal: Annotated[Principal[User], starter],
        run_id: RunId,
        response: Response,
        options: Annotated[RerunOptions, Body(default_factory=RerunOptions)],
        idempotency_key: IdempotencyKey = None,
    ) -> Run:
        """Run a task again with the parameters of an earlier run, or with others.

        Parameters that differ from the task's present ones require `tasks:write` too. The task stays as it is. A repeated
        request with the same `Idempotency-Key` gets the run of the first request.
        """
        run = await runs.rerun(
            principal,
            run_id,
            params=options.params,
            idempotency_key=idempotency_key,
            priority=options.priority,
        )
        response.headers["location"] = f"/api/runs/{run.id}"
        return run

    @router.post("/{runId}/cancel", responses=problems(RunNotFound, RunNotCancellable))
    async def cancel_run(principal: Annotated[Principal[User], starter], run_id: RunId) -> Run:
        """Cancel a run.

        A queued run is cancelled immediately. A running run is stopped, and has the state `cancelled` after it has ended.
        """
        return await runs.cancel(principal, run_id)

    @router.get(
        "/{runId}/log",
        response_class=PlainTextResponse,
        responses=_LOG_RESPONSES | problems(RunNotFound),
    )
    async def read_log(
        request: Request,
        principal: Annotated[Principal[User], reader],
        run_id: RunId,
        accept: Annotated[str, Header()] = "*/*",
        last_event_id: Annotated[str, Header(alias="Last-Event-ID", pattern="^[0-9]{0,10}$")] = "",
    ) -> Response:
        """Read the log of a run, or follow it.

        The first and the last 2 MiB of the output are kept. `log_missing_bytes` of the run is the size of the missing part
        between them. A text has a note in its place, and a stream of events has a gap in the ids.
        """
        run = await runs.get(principal, run_id)
        if "text/plain" in accept and "text/event-stream" not in accept:
            return PlainTextResponse(await _whole_log(logs, run), headers={"vary": "accept"})

        async def produce(write: Write) -> None:
            # A refusal, a deleted run or an unavailable database ends the stream. The client reconnects with its last
            # id, and then gets the error response.
            with suppress(Problem):
                async with (
                    auth.watch(principal),
                    aclosing(logs.follow(run_id, int(last_event_id or 0))) as items,
                ):
                    async for item in items:
                        await write(_event_of(item))
                run = await runs.get(await auth.verify_again(request, _READ), run_id)
                await write(format_sse_event(event="end", data_str=run.model_dump_json()))

        return EventStream(produce, stopping=stopping, held=streams.held(principal.owner.id))

    return router


_LOG_RESPONSES: Final[Responses] = {
    200: {
        "description": "The log: events `log`, `progress` and `end` as they happen, or the text so far with `Accept: text/plain`.",
        "content": {"text/event-stream": {}, "text/plain": {}},
    }
}


def _event_of(item: LogLine | Progress | None) -> bytes:
    match item:
        case LogLine():
            return format_sse_event(event="log", data_str=item.model_dump_json(), id=str(item.seq))
        case Progress():
            # Without an id: a client that reconnects resumes the log, and gets the latest progress again.
            return format_sse_event(event="progress", data_str=json.dumps(asdict(item)))
        case None:
            return KEEPALIVE_COMMENT


async def _whole_log(logs: LogReader, run: Run) -> str:
    texts: list[str] = []
    seq = 0
    while lines := await logs.read(run.id, seq):
        for line in lines:
            if line.seq != seq + 1:
                texts.append(f"\n[{run.log_missing_bytes:,} bytes of the output are not kept.]\n")
            texts.append(line.text)
            seq = line.seq
    return "".join(texts)
