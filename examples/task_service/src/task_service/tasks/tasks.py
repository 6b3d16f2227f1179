"""Owners' operations on tasks, and the example task of a new service.

A task has an owner, a user or a service account. Other users get 404, except that `tasks:read_all` lets them read the task,
and `tasks:manage_all` permits every operation. The routes check the other permissions; this module checks ownership.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from sqlalchemy import (
    Row,
    ScalarSelect,
    Select,
    bindparam,
    exists,
    func,
    insert,
    or_,
    select,
    union_all,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from msk_auth import Clock, Principal
from msk_auth.errors import InputInvalid
from task_service.accounts.changes import Accounts
from task_service.db.engine import Database, lock_table
from task_service.db.paging import FIRST_PAGE, Order, Page, PageRequest, Paging, contains_text
from task_service.db.schema import runs, tasks, users
from task_service.errors import TaskNotFound
from task_service.ids import is_id, new_id

from .models import ALL_TASKS, NewTask, Task, TaskChanges, TaskQuery, TaskSort
from .parameters import TaskParameters, changed_secrets
from .runs import RUN_COLUMNS, cancel_runs, check_may_manage, give_runs, visible_tasks

EXAMPLE_NAME: Final = "Say hello"
EXAMPLE_HANDLER: Final = "command"
EXAMPLE_PARAMS: Final = {
    "argv": ["echo", "Hello! This is your first run: press Run, or start it with an API key."]
}
"""A task that runs on any machine, without a network, and with the default commands."""


_ORDERS: Final = {
    TaskSort.CREATED: Order.by_time(tasks.c.created_at, tasks.c.id),
    TaskSort.UPDATED: Order.by_time(tasks.c.updated_at, tasks.c.id),
    TaskSort.NAME: Order(func.lower(tasks.c.name, type_=tasks.c.name.type), tasks.c.id),
}


def _select_tasks(principal: Principal[Any], query: TaskQuery = ALL_TASKS) -> Select[Any]:
    """A statement for the tasks of a query that the principal may see, with the names of their owners."""
    statement = (
        select(tasks, users.c.username.label("owner_name"))
        .join_from(tasks, users)
        .where(visible_tasks(principal))
    )
    if query.ids is not None:
        statement = statement.where(tasks.c.id.in_(query.ids))
    if query.search is not None:
        statement = statement.where(
            or_(contains_text(tasks.c.name, query.search), tasks.c.id == query.search)
        )
    if query.state is not None:
        statement = statement.where(of_newest_run("state") == query.state)
    if query.owner is not None:
        owner = select(_OWNERS.c.id).where(_OWNERS.c.username == query.owner).scalar_subquery()
        statement = statement.where(tasks.c.owner_id == owner)
    return statement


# Built once, like the statements below: building an alias costs more than executing the statement.
_NEWEST: Final = runs.alias("newest")
_OWNERS: Final = users.alias("owners")


def of_newest_run(column: str, *, after: int = 0) -> ScalarSelect[Any]:
    """In a query of tasks: a column of each task's newest run, after `after` newer runs. The index finds the run."""
    return (
        select(_NEWEST.c[column])
        .where(_NEWEST.c.task_id == tasks.c.id)
        .order_by(_NEWEST.c.created_at.desc(), _NEWEST.c.id.desc())
        .limit(1)
        .offset(after)
        .correlate(tasks)
        .scalar_subquery()
    )


@cache
def _select_newest(count: int) -> Select[Any]:
    of_these = tasks.c.id.in_(bindparam("task_ids", expanding=True))
    ids = (select(of_newest_run("id", after=after)).where(of_these) for after in range(count))
    newest_first = (runs.c.created_at.desc(), runs.c.id.desc())
    return select(*RUN_COLUMNS).where(runs.c.id.in_(union_all(*ids))).order_by(*newest_first)


async def _newest_runs(
    connection: AsyncConnection, task_ids: Sequence[str], count: int
) -> dict[str, list[Row[Any]]]:
    """The newest runs of each task, newest first. The index finds each run."""
    found: dict[str, list[Row[Any]]] = {}
    for row in await connection.execute(_select_newest(count), {"task_ids": task_ids}):
        found.setdefault(row.task_id, []).append(row)
    return found


@dataclass(frozen=True, slots=True)
class Tasks:
    """The tasks of all users, each seen through its principal.

    Args:
        accounts: The database and the audit log.
        parameters: Accepts their parameters, and masks secrets.

    Every method raises StoreUnavailable when the database does not answer.
    """

    accounts: Accounts
    parameters: TaskParameters

    async def create(self, principal: Principal[Any], new: NewTask) -> Task:
        """Add a task of the principal, or of the owner that it names.

        Raises:
            InputInvalid: The handler is unknown, or does not accept or allow the parameters, or the owner is unknown.
            PermissionDenied: The task names another owner, and the principal lacks `tasks:manage_all`.
        """
        owner_id = principal.owner.id if new.owner_id is None else new.owner_id
        check_may_manage(principal, owner_id)
        task_id = new_id("tsk")
        params = await self.parameters.accept(principal, task_id, new.handler, new.params)
        async with self.accounts.change(principal) as change:
            values = {
                **dict(new),
                "id": task_id,
                "owner_id": owner_id,
                "params": params,
                "created_at": change.now,
                "updated_at": change.now,
            }
            await _lock_owner(change.connection, owner_id)
            await change.connection.execute(insert(tasks).values(values))
            details: dict[str, Any] = {}
            if owner_id != principal.owner.id:
                details["owner_id"] = owner_id
            await change.record(
                "task.created", task_id, name=new.name, handler=new.handler, **details
            )
            return await self._written(change.connection, principal, task_id)

    async def list(
        self,
        principal: Principal[Any],
        query: TaskQuery = ALL_TASKS,
        page: PageRequest = FIRST_PAGE,
        *,
        recent: int = 0,
    ) -> Page[Task]:
        """A page of the principal's tasks, or of all tasks with `tasks:read_all`.

        Args:
            principal: The caller.
            query: The filter and order.
            page: The page, of at most 100 tasks.
            recent: The number of newest runs in each task, up to 20; 0 leaves them out.

        Raises:
            InputInvalid: Field `cursor`.
        """
        paging = Paging(_ORDERS[query.sort], query, page)
        async with self.accounts.db.read() as connection:
            found = await paging.read(connection, _select_tasks(principal, query), lambda row: row)
            task_ids = [row.id for row in found.items]
            newest = await _newest_runs(connection, task_ids, max(1, recent))
        items = [
            self._as_task(row, newest.get(row.id, []), listed=recent > 0) for row in found.items
        ]
        return Page(items=items, next_cursor=found.next_cursor, total=found.total)

    async def get(self, principal: Principal[Any], task_id: str) -> Task:
        """One task that the principal may see.

        Raises:
            TaskNotFound: There is no such task, or the principal may not see it.
        """
        row = await self._find(principal, task_id)
        newest = await self.accounts.db.prepare(_select_newest(1))(task_ids=[task_id])
        return self._as_task(row, newest)

    async def _written(
        self, connection: AsyncConnection, principal: Principal[Any], task_id: str
    ) -> Task:
        """A task that this transaction has written. After the commit the database may not answer."""
        found = await connection.execute(_select_tasks(principal).where(tasks.c.id == task_id))
        newest = await _newest_runs(connection, [task_id], 1)
        return self._as_task(found.one(), newest.get(task_id, []))

    async def _find(self, principal: Principal[Any], task_id: str) -> Row[Any]:
        if not is_id(task_id, "tsk"):
            raise TaskNotFound
        statement = _select_tasks(principal).where(tasks.c.id == task_id)
        rows = await self.accounts.db.prepare(statement)()
        if not rows:
            raise TaskNotFound
        row: Row[Any] = rows[0]
        return row

    def _as_task(self, row: Row[Any], newest: Sequence[Row[Any]], *, listed: bool = False) -> Task:
        """Convert a row of `tasks` with its newest runs. A list shows them all, otherwise only the latest is shown."""
        columns = row._asdict()  # pyright: ignore[reportPrivateUsage] - public, as that of a named tuple
        shown = {
            "params": self.parameters.mask(row.handler, row.params),
            "last_run": newest[0] if newest else None,
            "recent_runs": newest if listed else None,
        }
        return Task.model_validate({**columns, **shown})

    async def patch(self, principal: Principal[Any], task_id: str, changes: TaskChanges) -> Task:
        """Change a task, or hand it over. Queued and running runs keep their parameters.

        Raises:
            TaskNotFound: There is no such task, or the principal may not see it.
            PermissionDenied: The present or new owner is another, and the principal lacks `tasks:manage_all`.
            InputInvalid: The handler does not accept or allow the parameters, or the owner is unknown.
        """
        while True:
            before = await self._find(principal, task_id)
            check_may_manage(principal, before.owner_id)
            new_owner = before.owner_id if changes.owner_id is None else changes.owner_id
            check_may_manage(principal, new_owner)
            values = await self._changed(principal, before, changes)
            details: dict[str, Any] = {"fields": sorted(changes.model_fields_set)}
            if secrets := changed_secrets(before.params, values.get("params", before.params)):
                details["secrets"] = secrets
            async with self.accounts.change(principal) as change:
                connection = change.connection
                if new_owner != before.owner_id:
                    await _lock_owner(connection, new_owner)
                    details |= {"owner_id": [before.owner_id, new_owner]}
                # The principal was admitted for this owner, and the parameters were validated for this handler with
                # these secrets.
                if await _is_as_before(connection, before):
                    await connection.execute(
                        update(tasks)
                        .where(tasks.c.id == task_id)
                        .values(updated_at=change.now, **values)
                    )
                    if new_owner != before.owner_id:
                        await give_runs(connection, [task_id], new_owner)
                    await change.record("task.changed", task_id, **details)
                    return await self._written(connection, principal, task_id)
            # The task was changed or deleted meanwhile. Read it again.

    async def _changed(
        self, principal: Principal[Any], before: Row[Any], changes: TaskChanges
    ) -> dict[str, Any]:
        """The columns to write."""
        values: dict[str, Any] = changes.model_dump(include=changes.model_fields_set)
        handler: str = values.get("handler", before.handler)
        if handler != before.handler and "params" not in values:
            raise InputInvalid.of(
                "params",
                "The parameters of the previous handler do not apply. Send 'params' with the new 'handler'.",
            )
        if "handler" in values or "params" in values:
            values["params"] = await self.parameters.accept(
                principal, before.id, handler, values.get("params"), before=before
            )
        return values

    async def delete(self, principal: Principal[Any], task_id: str) -> None:
        """Delete a task and cancel its runs.

        The runs stay readable by their ids until their retention ends.

        Raises:
            TaskNotFound: There is no such task, or the principal may not see it.
            PermissionDenied: The task is another owner's, and the principal lacks `tasks:manage_all`.
        """
        if not is_id(task_id, "tsk"):
            raise TaskNotFound
        async with self.accounts.change(principal) as change:
            found = await change.connection.execute(
                select(tasks.c.owner_id)
                .where(tasks.c.id == task_id, visible_tasks(principal))
                .with_for_update()
            )
            owner_id = found.scalar_one_or_none()
            if owner_id is None:
                raise TaskNotFound
            check_may_manage(principal, owner_id)
            await change.connection.execute(
                update(tasks).where(tasks.c.id == task_id).values(deleted_at=change.now)
            )
            await cancel_runs(change.connection, runs.c.task_id == task_id, change.now)
            await change.record("task.deleted", task_id)


async def _is_as_before(connection: AsyncConnection, before: Row[Any]) -> bool:
    """Lock a task, and return True if it still has this owner, this handler and these parameters."""
    found = await connection.execute(
        select(tasks.c.owner_id, tasks.c.handler, tasks.c.params)
        .where(tasks.c.id == before.id, tasks.c.deleted_at.is_(None))
        .with_for_update()
    )
    row = found.one_or_none()
    return row is not None and tuple(row) == (before.owner_id, before.handler, before.params)


async def _lock_owner(connection: AsyncConnection, owner_id: str) -> None:
    """Lock an owner who gets a task, so that an owner disabled meanwhile gets no task."""
    found = await connection.scalar(
        select(users.c.id)
        .where(users.c.id == owner_id, users.c.disabled_at.is_(None))
        .with_for_update(key_share=True)
    )
    if found is None:
        raise InputInvalid.of(
            "owner_id", "There is no such user or service account, or it is disabled."
        )


async def hand_over(
    connection: AsyncConnection, from_owner_id: str, to_owner_id: str
) -> Sequence[str]:
    """Give all tasks of an owner to another owner, with their runs.

    Args:
        connection: The connection, in a write transaction.
        from_owner_id: The id of the present owner.
        to_owner_id: The id of an enabled user or service account.

    Returns:
        The ids of the tasks.

    Raises:
        InputInvalid: Field `owner_id`: there is no such owner.
    """
    await _lock_owner(connection, to_owner_id)
    given = await connection.scalars(
        update(tasks)
        .where(tasks.c.owner_id == from_owner_id, tasks.c.deleted_at.is_(None))
        .values(owner_id=to_owner_id)
        .returning(tasks.c.id)
    )
    ids = given.all()
    await give_runs(connection, ids, to_owner_id)
    return ids


async def add_example_task(db: Database, clock: Clock, owner_id: str) -> None:
    """Give a user the example task, unless there are tasks already, deleted ones included.

    Args:
        db: The service's database.
        clock: The clock.
        owner_id: The id of the first administrator.

    Raises:
        StoreUnavailable: The database does not answer.
    """
    now = clock.now()
    async with db.write() as connection:
        # Only one of several processes that start together adds the task.
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
