"""What an owner does with tasks, and the example task with which a new service begins.

A task belongs to the user who created it. Other users get 404, except that `tasks:read_all` lets them read it. The routes
check permissions; ownership is checked here.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from pydantic_core import to_json
from sqlalchemy import (
    ColumnElement,
    Integer,
    Select,
    bindparam,
    exists,
    func,
    insert,
    or_,
    select,
    update,
)

from msk_auth import Clock, KeyFormat, Principal
from msk_auth.errors import InputInvalid, KeyMalformed
from task_service.db.engine import Database, lock_table
from task_service.db.paging import Order, Paging, contains_text, count_rows
from task_service.db.schema import runs, tasks, users
from task_service.errors import TaskNotFound
from task_service.handlers import HandlerRegistry
from task_service.ids import is_id, new_id

from .interfaces import Change, OnChange, ignore_change
from .models import (
    ALL_TASKS,
    AcceptedWork,
    NewTask,
    Task,
    TaskChanges,
    TaskPage,
    TaskQuery,
    TaskSort,
    TaskWithRuns,
)
from .notifications import LocalEvents
from .queries import (
    DEFAULT_PAGE,
    MAX_PAGE,
    READ_ALL,
    as_task,
    latest_runs,
    members_of_task,
    newest_state,
    owned_by,
    recent_runs,
    visible_to,
    with_last_run,
)
from .runs import cancel_runs

MAX_RECENT: Final = 20
"""How many of its newest runs a listed task includes at most."""

EXAMPLE_NAME: Final = "Say hello"
EXAMPLE_HANDLER: Final = "command"
EXAMPLE_PARAMS: Final = {
    "argv": ["echo", "Hello! This is your first run: press Run, or start it with an API key."]
}
"""Runs on any machine, without a network, and with the commands that are allowed by default."""


_ORDERS: Final = {
    TaskSort.CREATED: Order.by_time(tasks.c.created_at, tasks.c.id),
    TaskSort.UPDATED: Order.by_time(tasks.c.updated_at, tasks.c.id),
    TaskSort.NAME: Order(func.lower(tasks.c.name, type_=tasks.c.name.type), tasks.c.id),
}


def _select_tasks(query: TaskQuery) -> Select[Any]:
    """The statement that selects the tasks of a query."""
    statement = select(tasks).where(tasks.c.deleted_at.is_(None))
    if query.search is not None:
        statement = statement.where(
            or_(contains_text(tasks.c.name, query.search), tasks.c.id == query.search)
        )
    if query.state is not None:
        statement = statement.where(newest_state() == query.state)
    if query.owner is not None:
        owner = select(users.c.id).where(users.c.username == query.owner).scalar_subquery()
        statement = statement.where(tasks.c.owner_id == owner)
    return statement


def _first_page_of(*conditions: ColumnElement[bool]) -> Select[Any]:
    """The newest `rows` tasks under these conditions, with their last runs."""
    paging = Paging(
        _ORDERS[ALL_TASKS.sort], ALL_TASKS, cursor=None, limit=DEFAULT_PAGE, max_limit=MAX_PAGE
    )
    page = paging.apply(_select_tasks(ALL_TASKS).where(*conditions))
    found = with_last_run(page.limit(bindparam("rows", type_=Integer)))
    columns = found.selected_columns
    return found.order_by(columns.sort_key.desc(), columns.id.desc())


class Tasks:
    """The tasks of all users, each seen through its principal.

    Args:
        db: The service's database.
        clock: Where to take the time from.
        registry: The handlers of this deployment.
        events: The events of this process.
        key_format: The format of this service's own API keys, which a task must not hold.
        on_change: Called with each change, in its transaction.

    Every method raises StoreUnavailable when the database does not answer.
    """

    def __init__(
        self,
        db: Database,
        clock: Clock,
        registry: HandlerRegistry,
        events: LocalEvents,
        *,
        key_format: KeyFormat | None = None,
        on_change: OnChange = ignore_change,
    ) -> None:
        self._on_change = on_change
        self._db = db
        self._clock = clock
        self._registry = registry
        self._events = events
        self._read_first_of_all = db.prepare(_first_page_of())
        self._read_first_of_owner = db.prepare(
            _first_page_of(tasks.c.owner_id == bindparam("owner_id"))
        )
        self._key_format = KeyFormat() if key_format is None else key_format
        self._key_like = re.compile(
            rf"{self._key_format.prefix}_[0-9A-Za-z]{{12}}_[0-9A-Za-z]{{38}}"
        )

    async def create(self, principal: Principal[Any], new: NewTask) -> Task:
        """Add a task that belongs to the principal.

        Raises:
            InputInvalid: There is no such handler, or it does not accept or allow the parameters.
        """
        params = (await self.accept(new.handler, new.params)).params
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
            details = {"name": new.name, "handler": new.handler}
            await self._on_change(connection, [Change(principal, "task.created", task_id, details)])
        return Task.model_validate({**values, "last_run": None})

    async def list(
        self,
        principal: Principal[Any],
        query: TaskQuery = ALL_TASKS,
        *,
        cursor: str | None = None,
        limit: int = DEFAULT_PAGE,
        recent: int = 0,
        count: bool = False,
    ) -> bytes:
        """A page of the principal's tasks, or of all tasks with `tasks:read_all`: the JSON of a :class:`TaskPage`.

        Args:
            principal: The caller.
            query: Which tasks, in which order.
            cursor: `next_cursor` of the previous page.
            limit: How many tasks at most, from 1 to 100.
            recent: How many of its newest runs each task includes, up to 20; 0 leaves them out.
            count: Also count the tasks of all pages.

        Raises:
            InputInvalid: Fields `cursor`, `limit` and `recent_runs`.
        """
        if not 0 <= recent <= MAX_RECENT:
            raise InputInvalid.of("recent_runs", f"Out of range. Allowed: 0 to {MAX_RECENT}.")
        paging = Paging(_ORDERS[query.sort], query, cursor=cursor, limit=limit, max_limit=MAX_PAGE)
        if query == ALL_TASKS and cursor is None and not recent and not count:
            return await self._first_page(principal, paging, limit)
        wanted = _select_tasks(query).where(visible_to(principal, tasks.c.owner_id))
        async with self._db.read() as connection:
            rows = (await connection.execute(paging.apply(wanted))).all()
            total = {"total": await count_rows(connection, wanted)} if count else {}
            shown, following = paging.cut(rows)
            ids = [row.id for row in shown]
            if recent:
                histories = await recent_runs(connection, ids, recent)
                last_runs = {task_id: history[0] for task_id, history in histories.items()}
            else:
                histories = {}
                last_runs = await latest_runs(connection, ids)
        items = [as_task(row, last_runs.get(row.id)) for row in shown]
        if recent:
            items = [
                TaskWithRuns(**dict(task), recent_runs=histories.get(task.id, [])) for task in items
            ]
        page = TaskPage(items=items, next_cursor=following, **total)
        # A total that was not asked for is left out.
        return page.model_dump_json(exclude_unset=True).encode()

    async def _first_page(self, principal: Principal[Any], paging: Paging, limit: int) -> bytes:
        """What programs and pages ask for most: one statement, prepared."""
        if READ_ALL in principal.permissions:
            rows = await self._read_first_of_all(rows=limit + 1)
        else:
            rows = await self._read_first_of_owner(rows=limit + 1, owner_id=principal.owner.id)
        shown, following = paging.cut(rows)
        return to_json({"items": [members_of_task(row) for row in shown], "next_cursor": following})

    async def get(self, principal: Principal[Any], task_id: str) -> Task:
        """One task that the principal may see.

        Raises:
            TaskNotFound: There is no such task, or the principal may not see it.
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
        """Change one of the principal's own tasks. Queued and running runs keep the parameters that they were requested with.

        Raises:
            TaskNotFound: The principal owns no such task.
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
                        # The parameters were validated for this handler.
                        tasks.c.handler == before.handler,
                    )
                    .values(updated_at=self._clock.now(), **values)
                    .returning(tasks)
                )
                row = result.one_or_none()
                if row is not None:
                    details = {"fields": sorted(changes.model_fields_set)}
                    await self._on_change(
                        connection, [Change(principal, "task.changed", task_id, details)]
                    )
                    last_runs = await latest_runs(connection, [task_id])
                    return as_task(row, last_runs.get(task_id))
            # It was changed or deleted meanwhile. Read it again.

    async def _changed(self, before: Task, changes: TaskChanges) -> dict[str, Any]:
        """The columns to write."""
        values: dict[str, Any] = changes.model_dump(include=changes.model_fields_set)
        handler: str = values.get("handler", before.handler)
        if handler != before.handler and "params" not in values:
            raise InputInvalid.of(
                "params",
                "The parameters of the previous handler do not apply. Send 'params' with the new 'handler'.",
            )
        if "handler" in values or "params" in values:
            work = await self.accept(handler, values.get("params", before.params))
            values["params"] = work.params
        return values

    async def delete(self, principal: Principal[Any], task_id: str) -> None:
        """Delete one of the principal's own tasks and cancel its runs.

        The runs stay readable by their ids until their retention ends.

        Raises:
            TaskNotFound: The principal owns no such task.
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
            await self._on_change(connection, [Change(principal, "task.deleted", task_id)])
        for run_id in ids:
            self._events.run_changed(run_id)
            # Has no effect on a run that was only queued.
            self._events.cancel_requested(run_id)

    async def accept(self, handler: str, params: dict[str, Any]) -> AcceptedWork:
        """Validate parameters; they are stored as the client sent them.

        Raises:
            InputInvalid: There is no such handler, or it does not accept or allow the parameters.
        """
        await self._registry.check(handler, params)
        for found in self._key_like.findall(json.dumps(params, ensure_ascii=False)):
            try:
                self._key_format.parse(found)
            except KeyMalformed:
                continue
            raise InputInvalid.of(
                "params",
                "The parameters contain an API key of this service, and other users may read tasks. Remove the key.",
            )
        return AcceptedWork(handler, params)


async def add_example_task(db: Database, clock: Clock, owner_id: str) -> None:
    """Give a user the example task, unless there are tasks already, deleted ones included.

    Args:
        db: The service's database.
        clock: Where to take the time from.
        owner_id: The first administrator.

    Raises:
        StoreUnavailable: The database does not answer.
    """
    now = clock.now()
    async with db.write() as connection:
        # Of several processes that start together, one adds it.
        await lock_table(connection, tasks)
        if await connection.scalar(select(exists().select_from(tasks))):
            return
        await connection.execute(
            insert(tasks).values(
                id=new_id("tsk"),
                owner_id=owner_id,
                name=EXAMPLE_NAME,
                handler=EXAMPLE_HANDLER,
                params=EXAMPLE_PARAMS,
                created_at=now,
                updated_at=now,
            )
        )
