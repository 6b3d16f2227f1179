"""Which owner's run is next: owners take turns (round robin), however many runs each of them has queued.

The rotation is the table `waiting_owners`. An owner who queues a run joins at its end. The worker that has room takes the
first owner who may run more, acquires that owner's own first run (by priority, then by age), and moves the owner to the
end, or out of the rotation if nothing else of theirs is queued. An owner at their limit of concurrent runs keeps their
turn. So between two turns of an owner each other owner has one at most, and an owner's priorities reorder only their own
runs.

Urgent runs (a permission) have a lane of their own, which goes first.

The runs are the truth; the rotation finds the next of them without looking at all. An owner in the rotation without a run
leaves it when their turn comes. :func:`owners_not_in_rotation` finds those who have a run and no turn, which an older
version of the service does not write.

The transaction that acquires or adds a run locks the owner's turn (PostgreSQL; SQLite has one writer). That keeps owners
to their limit, and no worker removes an owner who is just adding a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from typing import Any, Final, NamedTuple

from sqlalchemy import ScalarSelect, Select, and_, case, delete, func, not_, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.elements import ColumnElement

from task_service.db.schema import runs, users, waiting_owners

from .models import RunPriority, RunState
from .run_keys import key_allows, key_of, of_key, why_key_refuses


class Lane(IntEnum):
    """The two lanes; the lower goes first."""

    URGENT = 0
    NORMAL = 1

    @classmethod
    def of(cls, rank: int) -> Lane:
        """The lane of an owner whose own first run has this rank."""
        return cls.URGENT if rank <= RunPriority.URGENT.rank else cls.NORMAL


@dataclass(frozen=True, slots=True)
class RotationEnd:
    """The last turn of each lane at the start of a search. Later turns are of owners who joined or were served since."""

    urgent: int
    normal: int


OWNER_DISABLED: Final = "The account of the run's owner was disabled."
"""The error of a run that ends because of that."""


class RefusedRuns(NamedTuple):
    """Runs that will never start.

    Attributes:
        which: A condition that selects them.
        error: The reason, shown with each.
    """

    which: ColumnElement[bool]
    error: str


@dataclass(frozen=True, slots=True)
class OwnerTurn:
    """An owner's turn, locked until the transaction ends."""

    owner_id: str
    lane: Lane


_TURNS: Final = waiting_owners.c

# The same SQL on both databases. An owner in the rotation keeps their turn, or moves to the urgent lane; the row is written
# in any case, and so locked.
_JOIN: Final = text(
    "INSERT INTO waiting_owners (owner_id, lane, turn)"
    " SELECT :owner_id, :lane, coalesce(max(turn), 0) + 1 FROM waiting_owners WHERE lane = :lane"
    " ON CONFLICT (owner_id) DO UPDATE SET"
    " turn = CASE WHEN excluded.lane < waiting_owners.lane THEN excluded.turn ELSE waiting_owners.turn END,"
    " lane = CASE WHEN excluded.lane < waiting_owners.lane THEN excluded.lane ELSE waiting_owners.lane END"
)

# From one owner to the next by the index, however many runs each of them has.
_MISSING: Final = text(
    "WITH RECURSIVE owners(id) AS ("
    " SELECT min(owner_id) FROM runs WHERE state = 'queued'"
    " UNION ALL"
    " SELECT (SELECT min(owner_id) FROM runs WHERE state = 'queued' AND owner_id > owners.id)"
    " FROM owners WHERE owners.id IS NOT NULL)"
    " SELECT owners.id FROM owners WHERE owners.id IS NOT NULL"
    " AND NOT EXISTS (SELECT 1 FROM waiting_owners WHERE owner_id = owners.id)"
    " LIMIT 1000"
)


async def join_rotation(connection: AsyncConnection, owner_id: str, rank: int) -> None:
    """Put an owner into the rotation, in the transaction that queues a run of theirs with this rank.

    Raises:
        StoreUnavailable: The database does not answer.
    """
    await connection.execute(_JOIN, {"owner_id": owner_id, "lane": Lane.of(rank).value})


async def rotation_end(connection: AsyncConnection, limit: int) -> RotationEnd | None:
    """The end of the rotation now; None if no owner in it may run more. Locks nothing.

    Args:
        connection: For reading.
        limit: How many runs of one owner may be running at once.
    """
    found = await connection.execute(
        select(_last_turn(Lane.URGENT), _last_turn(Lane.NORMAL)).where(_first_owner(limit).exists())
    )
    row = found.one_or_none()
    return None if row is None else RotationEnd(*row)


async def lock_next_turn(
    connection: AsyncConnection, limit: int, end: RotationEnd, *, skip_locked: bool
) -> OwnerTurn | None:
    """Lock the first turn whose owner may run more.

    Args:
        connection: In a write transaction.
        limit: How many runs of one owner may be running at once.
        end: Turns behind it are not considered: an owner whom another worker has served meanwhile has a new one.
        skip_locked: Skip the turns that other workers have locked; otherwise wait for the first one.
    """
    last = case((_TURNS.lane == Lane.URGENT.value, end.urgent), else_=end.normal)
    first = _first_owner(limit).where(_TURNS.turn <= last)
    if skip_locked:
        found = await connection.execute(first.with_for_update(of=waiting_owners, skip_locked=True))
    else:
        # By its key, so that one turn is locked and no other: `first` itself would keep the lock of each turn that has moved
        # while it waited, and two workers would wait for each other: a deadlock.
        owner_id = await connection.scalar(first.with_only_columns(_TURNS.owner_id))
        turn = select(_TURNS.owner_id, _TURNS.lane)
        found = await connection.execute(
            turn.where(_TURNS.owner_id == owner_id, _TURNS.turn <= last).with_for_update()
        )
    row = found.one_or_none()
    return None if row is None else OwnerTurn(row.owner_id, Lane(row.lane))


def may_start(turn: OwnerTurn, limit: int, now: datetime) -> ColumnElement[bool]:
    """That a run is the next of the owner whose turn is locked, and may be started now: by its owner and by its key.

    For the statement that starts it: what was true when the turn was found may have changed since.
    """
    conditions = [
        runs.c.id == _next_of(turn.owner_id, "id"),
        runs.c.state == RunState.QUEUED.value,
        _running_of(turn.owner_id) < limit,
        select(users.c.id)
        .where(users.c.id == turn.owner_id, users.c.disabled_at.is_(None))
        .exists(),
        key_allows(now),
    ]
    if turn.lane is Lane.URGENT:
        conditions.append(runs.c.rank <= RunPriority.URGENT.rank)
    return and_(*conditions)


async def end_turn(connection: AsyncConnection, turn: OwnerTurn) -> None:
    """Move the owner whose run was acquired to the end of the rotation, or out of it if nothing else is queued."""
    await _move(connection, turn.owner_id, await _next_rank(connection, turn.owner_id))


async def correct_turn(
    connection: AsyncConnection, turn: OwnerTurn, now: datetime
) -> RefusedRuns | None:
    """Correct a turn that led to no run.

    Returns:
        The queued runs that must end, if the owner is disabled, who has left the rotation then, or the key of their next run
        does not work any more; None otherwise.
    """
    is_disabled = await connection.scalar(
        select(users.c.disabled_at.is_not(None)).where(users.c.id == turn.owner_id)
    )
    if is_disabled:
        await _move(connection, turn.owner_id, None)
        return RefusedRuns(runs.c.owner_id == turn.owner_id, OWNER_DISABLED)
    rank = await _next_rank(connection, turn.owner_id)
    if rank is None or Lane.of(rank) is not turn.lane:
        await _move(connection, turn.owner_id, rank)
        return None
    key_id = await connection.scalar(
        select(key_of(runs.c)).where(
            runs.c.id == _next_of(turn.owner_id, "id"), not_(key_allows(now))
        )
    )
    if key_id is None:
        return None
    queued = and_(of_key(turn.owner_id, key_id), runs.c.state == RunState.QUEUED.value)
    return RefusedRuns(queued, await why_key_refuses(connection, key_id))


async def owners_not_in_rotation(connection: AsyncConnection) -> Sequence[str]:
    """Owners who have a queued run and no turn, at most a thousand."""
    return (await connection.execute(_MISSING)).scalars().all()


def _first_owner(limit: int) -> Select[str, int]:
    return (
        select(_TURNS.owner_id, _TURNS.lane)
        .where(_running_of(_TURNS.owner_id) < limit)
        .order_by(_TURNS.lane, _TURNS.turn, _TURNS.owner_id)
        .limit(1)
    )


def _last_turn(lane: Lane) -> ColumnElement[int]:
    turns = waiting_owners.alias("turns").c
    last = select(func.max(turns.turn)).where(turns.lane == lane.value).scalar_subquery()
    return func.coalesce(last, 0)


def _running_of(owner_id: str | ColumnElement[str]) -> ScalarSelect[int]:
    running = runs.alias("running").c
    return (
        select(func.count(running.id))
        .where(running.state == RunState.RUNNING.value, running.owner_id == owner_id)
        .scalar_subquery()
    )


def _next_of(owner_id: str, column: str) -> ScalarSelect[Any]:
    """A column of the owner's own first run."""
    queued = runs.alias("queued").c
    return (
        select(queued[column])
        .where(queued.state == RunState.QUEUED.value, queued.owner_id == owner_id)
        .order_by(queued.rank, queued.created_at, queued.id)
        .limit(1)
        .scalar_subquery()
    )


async def _next_rank(connection: AsyncConnection, owner_id: str) -> int | None:
    rank: int | None = await connection.scalar(select(_next_of(owner_id, "rank")))
    return rank


async def _move(connection: AsyncConnection, owner_id: str, next_rank: int | None) -> None:
    this = _TURNS.owner_id == owner_id
    if next_rank is None:
        await connection.execute(delete(waiting_owners).where(this))
        return
    lane = Lane.of(next_rank)
    await connection.execute(
        update(waiting_owners).where(this).values(lane=lane.value, turn=_last_turn(lane) + 1)
    )
