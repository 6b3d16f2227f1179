"""Tasks: list, create, read, change, delete and run them."""

# No `from __future__ import annotations`: FastAPI reads the annotations of local names at run time.

from typing import Annotated, Final

from fastapi import APIRouter, Body, Query, Response
from pydantic import BaseModel

from msk_auth import Principal
from msk_auth.integrations.fastapi import FastAPIAuth
from task_service.accounts.names import normalised_username
from task_service.accounts.users import User
from task_service.db.paging import Page
from task_service.errors import IdempotencyConflict, RunQueueFull, TaskNotFound, TaskOwnerDisabled
from task_service.handlers import HandlerDescription, HandlerRegistry
from task_service.tasks.models import (
    ListedRun,
    NewTask,
    Run,
    RunOptions,
    RunQuery,
    RunState,
    Task,
    TaskChanges,
    TaskQuery,
    TaskSort,
)
from task_service.tasks.runs import Runs
from task_service.tasks.tasks import Tasks
from task_service.validation import Search

from .json_route import IdempotencyKey, JsonRoute, WantedPage
from .openapi import path_id, problems

TaskId = Annotated[str, path_id("taskId", "tsk", "task")]

_TASK: Final = "task:{taskId}"


class HandlerList(BaseModel):
    """The handlers of this deployment."""

    items: list[HandlerDescription]


def tasks_router(
    auth: FastAPIAuth[User], tasks: Tasks, runs: Runs, registry: HandlerRegistry
) -> APIRouter:
    """The routes under `/api/tasks`, and the list of handlers."""
    router = APIRouter(prefix="/api", tags=["Tasks"], route_class=JsonRoute)
    # A key limited to tasks passes if it reaches the task of the path. It lists the tasks that it reaches, and creates none.
    lister = auth.require("tasks:read", any_resource=True)
    creator = auth.require("tasks:write")
    reader = auth.require("tasks:read", resource=_TASK)
    writer = auth.require("tasks:write", resource=_TASK)
    starter = auth.require("tasks:run", resource=_TASK)

    @router.get("/handlers", dependencies=[auth.any_credential])
    async def list_handlers() -> HandlerList:
        """List the handlers for tasks, with their parameters."""
        return HandlerList(items=registry.describe())

    @router.get("/tasks")
    async def list_tasks(
        principal: Annotated[Principal[User], lister],
        page: WantedPage,
        task_id: Annotated[list[str] | None, Query(alias="id", max_length=100)] = None,
        search: Search = None,
        state: RunState | None = None,
        owner: str | None = None,
        sort: TaskSort = TaskSort.CREATED,
        recent_runs: Annotated[int, Query(ge=0, le=20)] = 0,
    ) -> Page[Task]:
        """List tasks.

        Repeat `id` for several tasks. `search` is a part of a name, or an id; `state` is the state of a task's latest run;
        `owner` is a user's name. With `recent_runs` each task includes that many of its newest runs, and with `count` the
        answer has the number of all tasks found. A cursor belongs to its search, filters and order.
        """
        query = TaskQuery(
            ids=None if task_id is None else tuple(task_id),
            search=search,
            state=state,
            owner=None if owner is None else normalised_username(owner),
            sort=sort,
        )
        return await tasks.list(principal, query, page, recent=recent_runs)

    @router.post("/tasks", status_code=201)
    async def create_task(
        principal: Annotated[Principal[User], creator], new: NewTask, response: Response
    ) -> Task:
        """Create a task."""
        task = await tasks.create(principal, new)
        response.headers["location"] = f"/api/tasks/{task.id}"
        return task

    @router.get("/tasks/{taskId}", responses=problems(TaskNotFound))
    async def get_task(principal: Annotated[Principal[User], reader], task_id: TaskId) -> Task:
        """Show a task with its latest run."""
        return await tasks.get(principal, task_id)

    @router.patch("/tasks/{taskId}", responses=problems(TaskNotFound))
    async def change_task(
        principal: Annotated[Principal[User], writer], task_id: TaskId, changes: TaskChanges
    ) -> Task:
        """Change a task; missing members stay unchanged. Queued runs keep their parameters."""
        return await tasks.patch(principal, task_id, changes)

    @router.delete("/tasks/{taskId}", status_code=204, responses=problems(TaskNotFound))
    async def delete_task(principal: Annotated[Principal[User], writer], task_id: TaskId) -> None:
        """Delete a task with its runs and their logs."""
        await tasks.delete(principal, task_id)

    @router.post(
        "/tasks/{taskId}/run",
        status_code=202,
        responses=problems(TaskNotFound, TaskOwnerDisabled, IdempotencyConflict, RunQueueFull),
    )
    async def run_task(
        principal: Annotated[Principal[User], starter],
        task_id: TaskId,
        response: Response,
        options: Annotated[RunOptions, Body(default_factory=RunOptions)],
        idempotency_key: IdempotencyKey = None,
    ) -> Run:
        """Run a task.

        The run is queued with the task's present parameters. A repeated request with the same
        `Idempotency-Key` gets the run of the first request.
        """
        run = await runs.request(
            principal,
            task_id,
            idempotency_key=idempotency_key,
            priority=options.priority,
        )
        response.headers["location"] = f"/api/runs/{run.id}"
        return run

    @router.get("/tasks/{taskId}/runs", responses=problems(TaskNotFound))
    async def list_runs(
        principal: Annotated[Principal[User], reader],
        task_id: TaskId,
        page: WantedPage,
        state: RunState | None = None,
    ) -> Page[ListedRun]:
        """List the runs of a task, newest first.

        With `count` the answer has the number of all runs found.
        """
        await tasks.get(principal, task_id)
        states = None if state is None else (state,)
        return await runs.search(principal, RunQuery(states=states, task_id=task_id), page)

    return router
