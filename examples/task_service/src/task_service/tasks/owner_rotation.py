"""Which owner's run is next: owners take turns (round robin), however many runs each of them has queued.

The rotation is the table `waiting_owners`. An owner who queues a run joins at its end. A worker that has room for one run
takes the first owner who may run more, acquires that owner's own first run (by priority, then by age), and moves the owner to
the end, or out of the rotation if nothing else of theirs is queued. An owner at their limit of concurrent runs keeps their
turn. So between two turns of an owner each other owner has one at most, and an owner's priorities reorder only their own runs.

A worker that has room for several runs does the same in one transaction: it takes the first owners, as many as it has room
for, and acquires the first run of each, then the second of each, until its room is used.

Urgent runs (a permission) have a lane of their own, which goes first.

The runs are the truth; the rotation finds the next of them without looking at all. An owner in the rotation without a run
leaves it when their turn comes. :func:`owners_not_in_rotation` finds those who have a run and no turn, which an older
version of the service does not write.

The transaction that acquires or adds a run locks the owner's turn (PostgreSQL; SQLite has one writer). That keeps owners
to their limit, and no worker removes an owner who is just adding a run. Workers skip the turns that others have locked, so
they cannot block each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    BigInteger,
    BindParameter,
    Delete,
    Integer,
    Row,
    ScalarSelect,
    Select,
    String,
    Subquery,
    Update,
    and_,
    bindparam,
    case,
    delete,
    func,
    literal,
    not_,
    select,
    text,
    union_all,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.elements import ColumnElement

from task_service.db.engine import Database
from task_service.db.schema import runs, to_microseconds, users, waiting_owners

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
    """An owner's turn as it was read."""

    owner_id: str
    lane: Lane
    number: int


_TURNS: Final = waiting_owners.c
# Statements and what they consist of are made once: that takes longer than to execute them.
_LIMIT: Final = bindparam("limit", type_=Integer)
_ROOM: Final = bindparam("room", type_=Integer)
_NOW: Final = bindparam("now", type_=BigInteger)
_OTHER_TURNS: Final = waiting_owners.alias("turns").c
_RUNNING: Final = runs.alias("running").c
_QUEUED: Final = runs.alias("queued").c
# In which the queued runs of one owner are next.
_OWN_ORDER: Final = (_QUEUED.rank, _QUEUED.created_at, _QUEUED.id)
_NEXT: Final = runs.alias("next")

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


class NextTurn:
    """Reads the first turn whose owner may run more. Locks nothing.

    Args:
        db: The service's database.
    """

    def __init__(self, db: Database) -> None:
        self._read = db.prepare(_NEXT_TURNS)

    async def __call__(self, limit: int) -> OwnerTurn | None:
        """The turn; None if there is none.

        Args:
            limit: How many runs of one owner may be running at once.

        Raises:
            StoreUnavailable: The database does not answer.
        """
        return next(map(_turn_of, await self._read(limit=limit, count=1)), None)


async def lock_next_turns(connection: AsyncConnection, limit: int, count: int) -> list[OwnerTurn]:
    """Lock the first turns whose owners may run more, except for those that other workers have locked.

    Args:
        connection: In a write transaction.
        limit: How many runs of one owner may be running at once.
        count: How many turns at most.

    Returns:
        The turns in their order.
    """
    found = await connection.execute(_LOCK_NEXT_TURNS, {"limit": limit, "count": count})
    return [_turn_of(row) for row in found]


async def lock_turn(connection: AsyncConnection, turn: OwnerTurn) -> list[OwnerTurn]:
    """Wait until no other worker has locked a turn, and lock it.

    Args:
        connection: In a write transaction that has locked no other turn, or two workers could wait for each other.
        turn: Was read before.

    Returns:
        No turn if it has moved or ended meanwhile.
    """
    found = await connection.execute(
        select(_TURNS.owner_id)
        .where(
            _TURNS.owner_id == turn.owner_id,
            _TURNS.lane == turn.lane.value,
            _TURNS.turn == turn.number,
        )
        .with_for_update()
    )
    return [turn for _ in found]


@lru_cache
def next_runs(lanes: tuple[Lane, ...]) -> Select[str]:
    """The ids of the runs that are next and may be started now: by their owners and by their keys.

    For the statement that starts them: what was true when the turns were found may have changed since. It locks the runs and
    skips those that are being cancelled, so a worker that starts several never waits for a transaction that waits for it.

    Args:
        lanes: Those of the turns, in their order. The other values are parameters: see :func:`next_runs_values`.
    """
    queued = [_queued_of(lane, position) for position, lane in enumerate(lanes)]
    if len(queued) == 1:
        first = select(queued[0].c.id)
    else:
        of_all = union_all(*(select(each) for each in queued)).subquery()
        first = select(of_all.c.id).order_by(of_all.c.nth, of_all.c.position).limit(_ROOM)
    run = _NEXT.c
    return (
        select(run.id)
        .where(
            run.id.in_(first),
            run.state == RunState.QUEUED.value,
            select(users.c.id)
            .where(users.c.id == run.owner_id, users.c.disabled_at.is_(None))
            .exists(),
            key_allows(run, _NOW),
        )
        .with_for_update(of=_NEXT, skip_locked=True)
    )


def next_runs_values(
    turns: Sequence[OwnerTurn], limit: int, room: int, now: datetime
) -> dict[str, object]:
    """The parameters of :func:`next_runs`.

    Args:
        turns: Locked, in their order.
        limit: How many runs of one owner may be running at once.
        room: How many runs at most.
        now: The time of the start.
    """
    return {**_owners(turns), "limit": limit, "room": room, "now": to_microseconds(now)}


async def end_turns(connection: AsyncConnection, turns: Sequence[OwnerTurn]) -> None:
    """Move the owners whose runs were acquired to the end of the rotation, or out of it if nothing else is queued.

    Args:
        connection: In the transaction that has locked the turns.
        turns: In their order, which the owners keep among themselves.
    """
    if not turns:
        return
    leave, to_the_end = _ends_of(len(turns))
    ended = await connection.execute(leave, _owners(turns))
    if ended.rowcount < len(turns):
        await connection.execute(to_the_end, _owners(turns))


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
            runs.c.id == _next_of(turn.owner_id, "id"),
            not_(key_allows(runs.c, to_microseconds(now))),
        )
    )
    if key_id is None:
        return None
    queued = and_(of_key(turn.owner_id, key_id), runs.c.state == RunState.QUEUED.value)
    return RefusedRuns(queued, await why_key_refuses(connection, key_id))


async def owners_not_in_rotation(connection: AsyncConnection) -> Sequence[str]:
    """Owners who have a queued run and no turn, at most a thousand."""
    return (await connection.execute(_MISSING)).scalars().all()


def _owners(turns: Sequence[OwnerTurn]) -> dict[str, object]:
    return {f"owner_{position}": turn.owner_id for position, turn in enumerate(turns)}


def _owner(position: int) -> BindParameter[str]:
    return bindparam(f"owner_{position}", type_=String)


def _turn_of(row: Row[str, int, int]) -> OwnerTurn:
    return OwnerTurn(row.owner_id, Lane(row.lane), row.turn)


def _queued_of(lane: Lane, position: int) -> Subquery:
    """The first queued runs of an owner, as many as may be started: the id of each, and which of them it is."""
    owner_id = _owner(position)
    conditions = [_QUEUED.state == RunState.QUEUED.value, _QUEUED.owner_id == owner_id]
    if lane is Lane.URGENT:
        conditions.append(_QUEUED.rank <= RunPriority.URGENT.rank)
    nth = func.row_number().over(order_by=_OWN_ORDER).label("nth")
    first = (
        select(_QUEUED.id, nth, literal(position).label("position"))
        .where(*conditions)
        .order_by(*_OWN_ORDER)
        .limit(_ROOM)
        .subquery()
    )
    return select(first).where(first.c.nth <= _LIMIT - _running_of(owner_id)).subquery()


@lru_cache
def _ends_of(count: int) -> tuple[Delete, Update]:
    """The statements that let the owners of so many turns leave the rotation, or move them to its end."""
    owners = [_owner(position) for position in range(count)]
    these = _TURNS.owner_id.in_(owners)
    rank = _next_of(_TURNS.owner_id, "rank")
    is_urgent = rank <= RunPriority.URGENT.rank
    last = case((is_urgent, _last_turn(Lane.URGENT)), else_=_last_turn(Lane.NORMAL))
    place = case(*((_TURNS.owner_id == each, nth) for nth, each in enumerate(owners, 1)))
    return (
        delete(waiting_owners).where(these, rank.is_(None)),
        update(waiting_owners)
        .where(these)
        .values(
            lane=case((is_urgent, Lane.URGENT.value), else_=Lane.NORMAL.value), turn=last + place
        ),
    )


def _last_turn(lane: Lane) -> ColumnElement[int]:
    last = (
        select(func.max(_OTHER_TURNS.turn)).where(_OTHER_TURNS.lane == lane.value).scalar_subquery()
    )
    return func.coalesce(last, 0)


def _running_of(owner_id: str | ColumnElement[str]) -> ScalarSelect[int]:
    return (
        select(func.count(_RUNNING.id))
        .where(_RUNNING.state == RunState.RUNNING.value, _RUNNING.owner_id == owner_id)
        .scalar_subquery()
    )


def _next_of(owner_id: str | ColumnElement[str], column: str) -> ScalarSelect[Any]:
    """A column of the owner's own first run."""
    return (
        select(_QUEUED[column])
        .where(_QUEUED.state == RunState.QUEUED.value, _QUEUED.owner_id == owner_id)
        .order_by(*_OWN_ORDER)
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


_NEXT_TURNS: Final = (
    select(_TURNS.owner_id, _TURNS.lane, _TURNS.turn)
    .where(_running_of(_TURNS.owner_id) < _LIMIT)
    .order_by(_TURNS.lane, _TURNS.turn, _TURNS.owner_id)
    .limit(bindparam("count", type_=Integer))
)
# PostgreSQL finds a turn as it was when the statement began, and locks it as it is now. One that another worker has moved
# to the end in between has a greater number than the last one had, and is skipped.
_LAST_OF_LANE: Final = (
    select(func.max(_OTHER_TURNS.turn)).where(_OTHER_TURNS.lane == _TURNS.lane).scalar_subquery()
)
_LOCK_NEXT_TURNS: Final = _NEXT_TURNS.where(_TURNS.turn <= _LAST_OF_LANE).with_for_update(
    of=waiting_owners, skip_locked=True
)
