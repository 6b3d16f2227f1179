"""Tasks: list, create, read, change, delete and run them."""

# No `from __future__ import annotations`: FastAPI reads the annotations of local names at run time.

from typing import Annotated

from fastapi import APIRouter, Header, Path, Response
from pydantic import BaseModel

from msk_auth import Principal
from msk_auth.integrations.fastapi import FastAPIAuth
from task_service.accounts.users import User
from task_service.handlers import HandlerDescription, HandlerRegistry
from task_service.tasks.models import (
    NewTask,
    Run,
    RunOptions,
    RunPage,
    RunState,
    Task,
    TaskChanges,
    TaskPage,
)
from task_service.tasks.queries import DEFAULT_PAGE
from task_service.tasks.runs import Runs
from task_service.tasks.tasks import Tasks

from .json_route import JsonRoute, Limit

TaskId = Annotated[str, Path(alias="taskId")]


class HandlerList(BaseModel):
    """The handlers of this deployment."""

    items: list[HandlerDescription]


def tasks_router(
    auth: FastAPIAuth[User], tasks: Tasks, runs: Runs, registry: HandlerRegistry
) -> APIRouter:
    """The routes under `/api/tasks`, and the list of handlers that a task can name."""
    router = APIRouter(prefix="/api", tags=["Tasks"], route_class=JsonRoute)
    reader = auth.require("tasks:read")
    writer = auth.require("tasks:write")
    starter = auth.require("tasks:run")

    @router.get("/handlers", dependencies=[auth.principal])
    async def list_handlers() -> HandlerList:
        return HandlerList(items=registry.describe())

    @router.get("/tasks")
    async def list_tasks(
        principal: Annotated[Principal[User], reader],
        cursor: str | None = None,
        limit: Limit = DEFAULT_PAGE,
        recent_runs: Limit = 0,
    ) -> TaskPage:
        """The tasks; with `recent_runs` each one includes that many of its newest runs."""
        return await tasks.list(principal, cursor=cursor, limit=limit, recent=recent_runs)

    @router.post("/tasks", status_code=201)
    async def create_task(
        principal: Annotated[Principal[User], writer], new: NewTask, response: Response
    ) -> Task:
        task = await tasks.create(principal, new)
        response.headers["location"] = f"/api/tasks/{task.id}"
        return task

    @router.get("/tasks/{taskId}")
    async def get_task(principal: Annotated[Principal[User], reader], task_id: TaskId) -> Task:
        return await tasks.get(principal, task_id)

    @router.patch("/tasks/{taskId}")
    async def change_task(
        principal: Annotated[Principal[User], writer], task_id: TaskId, changes: TaskChanges
    ) -> Task:
        return await tasks.patch(principal, task_id, changes)

    @router.delete("/tasks/{taskId}", status_code=204)
    async def delete_task(principal: Annotated[Principal[User], writer], task_id: TaskId) -> None:
        await tasks.delete(principal, task_id)

    @router.post("/tasks/{taskId}/run", status_code=202)
    async def run_task(
        principal: Annotated[Principal[User], starter],
        task_id: TaskId,
        response: Response,
        options: RunOptions | None = None,
        idempotency_key: Annotated[str | None, Header()] = None,
    ) -> Run:
        """Queue a run of the task, with its parameters as they are now."""
        run = await runs.request(
            principal,
            task_id,
            idempotency_key=idempotency_key,
            priority=(options or RunOptions()).priority,
        )
        response.headers["location"] = f"/api/runs/{run.id}"
        return run

    @router.get("/tasks/{taskId}/runs")
    async def list_runs(
        principal: Annotated[Principal[User], reader],
        task_id: TaskId,
        cursor: str | None = None,
        limit: Limit = DEFAULT_PAGE,
        state: RunState | None = None,
    ) -> RunPage:
        return await runs.list(principal, task_id, cursor=cursor, limit=limit, state=state)

    return router
