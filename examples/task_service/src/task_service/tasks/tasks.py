"""What an owner does with tasks.

A task belongs to whoever made it. Others do not find it (404), except that `tasks:read_all` lets them read it.
Permissions are the routes' business; ownership is decided here.
"""

from __future__ import annotations

import json
import re
from typing import Any

from sqlalchemy import insert, select, update

from msk_auth import Clock, InputInvalid, KeyFormat, KeyMalformed, Principal
from task_service.db.engine import Database
from task_service.db.schema import runs, tasks
from task_service.errors import TaskNotFound
from task_service.handlers import HandlerRegistry
from task_service.ids import is_id, new_id

from .cancellation import cancel_runs
from .queries import (
    DEFAULT_PAGE,
    as_task,
    latest_runs,
    next_cursor,
    owned_by,
    page,
    recent_runs,
    visible_to,
)
from .shapes import NewTask, Task, TaskChanges, TaskPage, TaskWithRuns
from .signals import Signals
from .witness import Witness, nobody

MAX_RECENT = 20
"""How many of its newest runs a listed task is shown with at most."""


class Tasks:
    """The tasks of all users, each seen through its principal.

    Args:
        db: The service's database.
        clock: Where to take the time from.
        registry: The handlers of this deployment.
        signals: The bells of this process.
        key_format: The format of this service's own API keys, which have no place in a task.
        witness: Told of each change.

    Every method raises StoreUnavailable when the database does not answer.
    """

    def __init__(
        self,
        db: Database,
        clock: Clock,
        registry: HandlerRegistry,
        signals: Signals,
        *,
        key_format: KeyFormat | None = None,
        witness: Witness = nobody,
    ) -> None:
        self._witness = witness
        self._db = db
        self._clock = clock
        self._registry = registry
        self._signals = signals
        self._key_format = KeyFormat() if key_format is None else key_format
        self._key_like = re.compile(
            rf"{self._key_format.prefix}_[0-9A-Za-z]{{12}}_[0-9A-Za-z]{{38}}"
        )

    async def create(self, principal: Principal[Any], new: NewTask) -> Task:
        """Add a task that belongs to the principal.

        Raises:
            InputInvalid: There is no such handler, or it does not accept or allow the parameters.
        """
        params = await self._accepted(new.handler, new.params)
        now = self._clock.now()
        task_id = new_id("tsk")
        values = {
            "id": task_id,
            "owner_id": principal.owner.id,
            "name": new.name,
            "handler": new.handler,
            "params": params,
            "timeout_seconds": new.timeout_seconds,
            "created_at": now,
            "updated_at": now,
        }
        async with self._db.write() as connection:
            await connection.execute(insert(tasks).values(values))
            await self._witness(
                connection,
                principal,
                "task.created",
                task_id,
                name=new.name,
                handler=new.handler,
            )
        return Task.model_validate({**values, "last_run": None})

    async def list(
        self,
        principal: Principal[Any],
        *,
        cursor: str | None = None,
        limit: int = DEFAULT_PAGE,
        recent: int = 0,
    ) -> TaskPage:
        """A page of the principal's tasks, or of everybody's with `tasks:read_all`, newest first.

        Args:
            principal: Who asks.
            cursor: Where the previous page ended.
            limit: How many tasks at most, from 1 to 100.
            recent: How many of its newest runs each task is shown with, up to 20; 0 leaves them out.

        Raises:
            InputInvalid: Fields `cursor`, `limit` and `recent_runs`.
        """
        if not 0 <= recent <= MAX_RECENT:
            raise InputInvalid.of("recent_runs", f"Ask for at most {MAX_RECENT} runs of each task.")
        statement = page(
            select(tasks).where(
                tasks.c.deleted_at.is_(None), visible_to(principal, tasks.c.owner_id)
            ),
            tasks,
            cursor=cursor,
            limit=limit,
        )
        async with self._db.read() as connection:
            rows = (await connection.execute(statement)).all()
            shown = rows[:limit]
            ids = [row.id for row in shown]
            if recent:
                histories = await recent_runs(connection, ids, recent)
                last_runs = {task_id: history[0] for task_id, history in histories.items()}
            else:
                histories = {}
                last_runs = await latest_runs(connection, ids)
        items = [as_task(row, last_runs.get(row.id)) for row in shown]
        following = next_cursor(rows, limit)
        if not recent:
            return TaskPage(items=items, next_cursor=following)
        return TaskPage(
            items=[
                TaskWithRuns(**dict(task), recent_runs=histories.get(task.id, [])) for task in items
            ],
            next_cursor=following,
        )

    async def get(self, principal: Principal[Any], task_id: str) -> Task:
        """One task that the principal may see.

        Raises:
            TaskNotFound: There is none with this id.
        """
        if not is_id(task_id, "tsk"):
            raise TaskNotFound
        async with self._db.read() as connection:
            result = await connection.execute(
                select(tasks).where(
                    tasks.c.id == task_id,
                    tasks.c.deleted_at.is_(None),
                    visible_to(principal, tasks.c.owner_id),
                )
            )
            row = result.one_or_none()
            if row is None:
                raise TaskNotFound
            last_runs = await latest_runs(connection, [task_id])
        return as_task(row, last_runs.get(task_id))

    async def patch(self, principal: Principal[Any], task_id: str, changes: TaskChanges) -> Task:
        """Change one of the principal's own tasks. Runs that are queued or running keep what they began with.

        Raises:
            TaskNotFound: The principal owns none with this id.
            InputInvalid: The handler does not accept or allow the parameters.
        """
        while True:
            before = await self.get(principal, task_id)
            if before.owner_id != principal.owner.id:
                raise TaskNotFound
            values = await self._changed(before, changes)
            async with self._db.write() as connection:
                result = await connection.execute(
                    update(tasks)
                    .where(
                        tasks.c.id == task_id,
                        tasks.c.deleted_at.is_(None),
                        # What the parameters were checked for must still be the handler.
                        tasks.c.handler == before.handler,
                    )
                    .values(updated_at=self._clock.now(), **values)
                    .returning(tasks)
                )
                row = result.one_or_none()
                if row is not None:
                    fields = sorted(changes.model_fields_set)
                    await self._witness(
                        connection, principal, "task.changed", task_id, fields=fields
                    )
                    last_runs = await latest_runs(connection, [task_id])
                    return as_task(row, last_runs.get(task_id))
            # It was changed or deleted in between. Look again.

    async def _changed(self, before: Task, changes: TaskChanges) -> dict[str, Any]:
        """The columns to write."""
        values: dict[str, Any] = changes.model_dump(include=changes.model_fields_set)
        handler: str = values.get("handler", before.handler)
        if handler != before.handler and "params" not in values:
            raise InputInvalid.of("params", "Another handler needs its own parameters.")
        if "handler" in values or "params" in values:
            values["params"] = await self._accepted(handler, values.get("params", before.params))
        return values

    async def delete(self, principal: Principal[Any], task_id: str) -> None:
        """Delete one of the principal's own tasks; its queued runs are cancelled, its running ones stopped.

        The runs stay readable by their ids until their retention ends.

        Raises:
            TaskNotFound: The principal owns none with this id.
        """
        if not is_id(task_id, "tsk"):
            raise TaskNotFound
        now = self._clock.now()
        async with self._db.write() as connection:
            result = await connection.execute(
                update(tasks)
                .where(
                    tasks.c.id == task_id,
                    tasks.c.deleted_at.is_(None),
                    owned_by(principal, tasks.c.owner_id),
                )
                .values(deleted_at=now)
            )
            if result.rowcount == 0:
                raise TaskNotFound
            ids = await cancel_runs(connection, runs.c.task_id == task_id, now)
            await self._witness(connection, principal, "task.deleted", task_id)
        for run_id in ids:
            self._signals.run_changed(run_id)
            # Where it was only queued, nobody listens to this.
            self._signals.cancel_requested(run_id)

    async def _accepted(self, handler: str, params: dict[str, Any]) -> dict[str, Any]:
        """The parameters as they are stored: what the client gave, found acceptable and allowed now."""
        await self._registry.check(handler, params)
        for found in self._key_like.findall(json.dumps(params, ensure_ascii=False)):
            try:
                self._key_format.parse(found)
            except KeyMalformed:
                continue
            raise InputInvalid.of(
                "params",
                "An API key of this service must not be stored in a task: tasks can be read by others.",
            )
        return params
