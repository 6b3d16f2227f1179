"""The choice of the next run: owners take turns, and an owner with many queued runs gets no more turns than others.

Among the owners who have a queued run and may run more, the next owner is the one with the oldest latest turn, with that
owner's own first run (by priority, then by age). So between two turns of an owner each other owner has at most one turn, and
priorities reorder only their owner's runs. Urgent runs (a permission) go before all others.

One statement, :data:`NEXT_RUNS`, finds this run among all runs. It reads a few entries of indexes for each waiting owner,
and no more if the owner has many runs. :func:`note_turns` numbers the turns, because clocks differ, and are set.

A run acts for its owner later than its request, so the statement checks the owner and the key again. Their rows are in the
same database, so a worker needs no pepper. After a revocation the key's runs continue. A leak, or the owner's request, also
ends the runs: :data:`REQUESTED_WITH`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import (
    CTE,
    BigInteger,
    Column,
    ColumnElement,
    Integer,
    Row,
    ScalarSelect,
    Select,
    Subquery,
    and_,
    bindparam,
    case,
    exists,
    func,
    literal,
    null,
    select,
    text,
    tuple_,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from task_service.db.schema import api_keys, owner_turns, runs, users

from .models import RunPriority, RunState

OWNER_DISABLED: Final = "The account of the run's owner was disabled."
"""The error of a run that ends because of that."""
KEY_REVOKED: Final = "The API key that requested the run was revoked before it started."
"""The error of a run that was not started because of that."""
KEY_EXPIRED: Final = "The API key that requested the run expired before it started."
"""The error of a run that was not started because of that."""
KEY_LEAKED: Final = "The API key that requested the run was found in public."
"""The error of a run that ends because of that."""

# Without it, two workers at the same moment would not count each other's runs of an owner. The lock ends with the
# transaction; a frozen worker loses it after some seconds.
_ONE_WORKER_AT_A_TIME: Final = text(
    "SELECT pg_advisory_xact_lock(827573785), set_config('idle_in_transaction_session_timeout', '5s', true)"
)


async def lock_acquiring(connection: AsyncConnection) -> None:
    """Let no other worker look for the next run until this transaction ends.

    Args:
        connection: The connection, in a write transaction. On SQLite this is always the only one.
    """
    if connection.dialect.name == "postgresql":
        await connection.execute(_ONE_WORKER_AT_A_TIME)


REQUESTED_WITH: Final = runs.c.requested_by[("credential", "key_id")].as_string()
"""The key that requested a run; NULL without one."""


def refused_with(row: Row[*tuple[Any, ...]]) -> ColumnElement[bool]:
    """The queued runs refused for the same reason as this row of :data:`NEXT_RUNS`."""
    queued = and_(runs.c.owner_id == row.owner_id, runs.c.state == RunState.QUEUED)
    return queued if row.refusal == OWNER_DISABLED else and_(queued, row.key_id == REQUESTED_WITH)


# The most owners that may be skipped because their first run is being cancelled.
_PASSED_OVER: Final = 10
_QUEUED: Final = runs.alias("queued").c
_RUNNING: Final = runs.alias("running").c
_OWN_ORDER: Final = (_QUEUED.rank, _QUEUED.created_at, _QUEUED.id)
_ROOM: Final = bindparam("room", type_=Integer)
_LIMIT: Final = bindparam("limit", type_=Integer)
# An owner's turn has the next number.
_NOTE_TURN: Final = text(
    "INSERT INTO owner_turns (owner_id, turn) SELECT :owner_id, coalesce(max(turn), 0) + 1 FROM owner_turns WHERE true"
    " ON CONFLICT (owner_id) DO UPDATE SET turn = excluded.turn"
)


async def note_turns(connection: AsyncConnection, owner_ids: Sequence[str]) -> None:
    """Put the owners of started runs behind all others.

    Args:
        connection: The connection, in the transaction of :func:`lock_acquiring`.
        owner_ids: The owner of each run, in the order of :data:`NEXT_RUNS`.
    """
    await connection.execute(_NOTE_TURN, [{"owner_id": owner_id} for owner_id in owner_ids])


def _owners() -> CTE:
    """The owners with a queued run, each found from the one before by the index; the last row is NULL."""
    is_queued = _QUEUED.state == RunState.QUEUED.value
    first = select(func.min(_QUEUED.owner_id).label("id")).where(is_queued)
    owners = first.cte("owners", recursive=True)
    following = select(func.min(_QUEUED.owner_id)).where(is_queued, _QUEUED.owner_id > owners.c.id)
    return owners.union_all(
        select(following.scalar_subquery()).select_from(owners).where(owners.c.id.is_not(None))
    )


def _own_first(owner_id: ColumnElement[str], column: Column[Any]) -> ScalarSelect[Any]:
    """A column of the owner's own first run."""
    queued = (_QUEUED.state == RunState.QUEUED.value, _QUEUED.owner_id == owner_id)
    return select(column).where(*queued).order_by(*_OWN_ORDER).limit(1).scalar_subquery()


def _first_runs() -> Subquery:
    """The first run of each of the next owners, its place among that owner's runs, and the number of runs that may start."""
    owners = _owners()
    running = (
        select(func.count(_RUNNING.id))
        .where(_RUNNING.state == RunState.RUNNING.value, _RUNNING.owner_id == owners.c.id)
        .scalar_subquery()
    )
    turn = func.coalesce(owner_turns.c.turn, 0).label("turn")
    return (
        select(
            _own_first(owners.c.id, _QUEUED.id).label("id"),
            literal(1).label("place"),
            turn,
            (_LIMIT - running).label("allowed"),
        )
        .select_from(owners.outerjoin(owner_turns, owner_turns.c.owner_id == owners.c.id))
        .where(owners.c.id.is_not(None), running < _LIMIT)
        .order_by(
            _lane(_own_first(owners.c.id, _QUEUED.rank)),
            turn,
            _own_first(owners.c.id, _QUEUED.created_at),
        )
        .limit(_ROOM + _PASSED_OVER)
        .subquery("first")
    )


def _next_runs() -> Select[*tuple[Any, ...]]:
    first = _first_runs()
    queue = select(first).cte("queue", recursive=True)
    before = runs.alias("before").c
    own_next = (
        select(_QUEUED.id)
        .where(
            _QUEUED.state == RunState.QUEUED.value,
            _QUEUED.owner_id == before.owner_id,
            tuple_(*_OWN_ORDER) > tuple_(before.rank, before.created_at, before.id),
        )
        .order_by(*_OWN_ORDER)
        .limit(1)
        .scalar_subquery()
    )
    queue = queue.union_all(
        select(own_next, queue.c.place + 1, queue.c.turn, queue.c.allowed)
        .join_from(queue, before.id.table, before.id == queue.c.id)
        .where(queue.c.place < _ROOM, queue.c.place < queue.c.allowed)
    )
    return (
        select(runs, REQUESTED_WITH.label("key_id"), _refusal().label("refusal"))
        .join_from(queue, runs, runs.c.id == queue.c.id)
        .where(runs.c.state == RunState.QUEUED.value)
        .order_by(_lane(runs.c.rank), queue.c.place, queue.c.turn, runs.c.created_at, runs.c.id)
        .limit(_ROOM)
        # A run that is being cancelled is skipped, so that neither side waits for the other.
        .with_for_update(of=runs, skip_locked=True)
    )


def _lane(rank: ColumnElement[int]) -> ColumnElement[int]:
    return case((rank <= RunPriority.URGENT.rank, 0), else_=1)


def _refusal() -> ColumnElement[str | None]:
    """The reason to refuse the run; NULL if it may start."""
    enabled = exists().where(users.c.id == runs.c.owner_id, users.c.disabled_at.is_(None))
    # A key without a row was deleted, which counts like a revocation.
    valid = exists().where(api_keys.c.id == REQUESTED_WITH, api_keys.c.revoked_at.is_(None))
    expired = exists().where(
        api_keys.c.id == REQUESTED_WITH, api_keys.c.expires_at <= bindparam("now", type_=BigInteger)
    )
    return case(
        (~enabled, OWNER_DISABLED),
        (REQUESTED_WITH.is_(None), null()),
        (~valid, KEY_REVOKED),
        (expired, KEY_EXPIRED),
        else_=null(),
    )


NEXT_RUNS: Final = _next_runs()
"""Locks the next runs, first one of each owner, then a second, and selects them with their `key_id` and the `refusal`, an error
if the run must not start.

Parameters: `room`, the maximum number of runs, `limit`, the maximum number of an owner's concurrent runs, and `now`, in
microseconds since 1970.
"""
