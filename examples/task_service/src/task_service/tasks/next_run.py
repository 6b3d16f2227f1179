"""The choice of the next run: owners take turns, and an owner with many queued runs gets no more turns than others.

Among the owners who have a queued run and may run more, the next owner is the one with the oldest latest turn, with that
owner's own first run (by priority, then by age). So between two turns of an owner each other owner has at most one turn, and
priorities reorder only their owner's runs. Urgent runs (a permission) go before all others.

One statement, :data:`NEXT_RUNS`, finds this run: it numbers each owner's queued runs, which it reads from an index.
:func:`note_turns` numbers the turns, because clocks differ, and are set.

A run acts for its owner later than its request, so the statement checks the owner and the key again. Their rows are in the
same database, so a worker needs no pepper. After a revocation the key's runs continue. A leak, or the owner's request, also
ends the runs: :data:`REQUESTED_WITH`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Integer,
    Select,
    bindparam,
    case,
    exists,
    func,
    null,
    select,
    text,
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


def _next_runs() -> Select[*tuple[Any, ...]]:
    of_owner = runs.alias("of_owner").c
    place = func.row_number().over(
        partition_by=of_owner.owner_id, order_by=(of_owner.rank, of_owner.created_at, of_owner.id)
    )
    queued = (
        select(of_owner.id, place.label("place"))
        .where(of_owner.state == RunState.QUEUED)
        .subquery("queued")
    )
    active = runs.alias("active").c
    running = (
        select(active.owner_id, func.count().label("count"))
        .where(active.state == RunState.RUNNING)
        .group_by(active.owner_id)
        .subquery("running")
    )
    is_urgent = runs.c.rank <= RunPriority.URGENT.rank
    turn = func.coalesce(owner_turns.c.turn, 0)
    return (
        select(runs, _refusal().label("refusal"))
        .join_from(queued, runs, runs.c.id == queued.c.id)
        .outerjoin(running, running.c.owner_id == runs.c.owner_id)
        .outerjoin(owner_turns, owner_turns.c.owner_id == runs.c.owner_id)
        .where(
            runs.c.state == RunState.QUEUED,
            # With this condition, the database numbers only the first runs of each owner.
            queued.c.place <= _ROOM,
            queued.c.place <= _LIMIT - func.coalesce(running.c.count, 0),
        )
        .order_by(is_urgent.desc(), queued.c.place, turn, runs.c.created_at, runs.c.id)
        .limit(_ROOM)
        # A run that is being cancelled is skipped, so that neither side waits for the other.
        .with_for_update(of=runs, skip_locked=True)
    )


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
"""Locks the next runs, first one of each owner, then a second, and selects them with their `refusal`, an error if the run must
not start.

Parameters: `room`, the maximum number of runs, `limit`, the maximum number of an owner's concurrent runs, and `now`, in
microseconds since 1970.
"""
