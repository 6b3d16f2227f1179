"""The activity of keys: the numbers of accepted and refused requests on each day, and the last request.

A request adds to a count in memory, which is written once a minute and at the end. No decision depends on the counts, and a
crash loses at most the last minute.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Final

from sqlalchemy import case, delete, select

from msk_auth import Clock
from msk_auth.errors import StoreUnavailable
from task_service.background import Flushing
from task_service.db import schema
from task_service.db.engine import Database
from task_service.request_record import RequestRecord

from .config import ConfigStore

_log = logging.getLogger(__name__)

# The most rows of a transaction, for which other transactions wait on SQLite.
_BATCH: Final = 500

_DAYS = schema.key_activity.c
_LAST = schema.key_last_requests.c


@dataclass(frozen=True, slots=True)
class LastRequest:
    """The last request of a key, accepted or refused.

    Attributes:
        at: The time of its answer.
        route: Its method and the pattern of its route, such as `GET /api/tasks/{taskId}`.
        address: The client's address; None if it is not kept.
        user_agent: The client's `User-Agent`; None without one, or if it is not kept.
    """

    at: datetime
    route: str
    address: str | None
    user_agent: str | None


@dataclass(slots=True)
class _Count:
    last: LastRequest
    accepted: int = 0
    refused: int = 0


class KeyActivity(Flushing):
    """Counts requests of keys, and reads the counts.

    Args:
        db: The database of the counts.
        clock: The clock.
        config: The administrator's settings for the kept details and their retention.
    """

    def __init__(self, db: Database, clock: Clock, config: ConfigStore) -> None:
        self._db = db
        self._clock = clock
        self._config = config
        self._counts: dict[tuple[str, date], _Count] = {}

    def count(self, key_id: str, request: RequestRecord, *, is_refused: bool, route: str) -> None:
        """Count a request, in memory only.

        Args:
            key_id: The id of a key whose secret the request presented. A stranger could have guessed an id alone.
            request: The request's record.
            is_refused: True if the key was refused: ended, or without the permission or the network.
            route: See :class:`LastRequest`.
        """
        now = self._clock.now()
        last = LastRequest(now, route, request.address, request.user_agent)
        count = self._counts.setdefault((key_id, now.date()), _Count(last))
        count.last = last
        if is_refused:
            count.refused += 1
        else:
            count.accepted += 1

    async def flush(self) -> None:
        """Write the counts, or keep them for the next call if the database does not answer."""
        counts, self._counts = self._counts, {}
        # In the same order everywhere, so that two processes cannot deadlock.
        ordered = sorted(counts)
        try:
            while ordered:
                batch = ordered[:_BATCH]
                await self._write({place: counts[place] for place in batch})
                for place in batch:
                    del counts[place]
                del ordered[:_BATCH]
        except StoreUnavailable:
            _log.warning(
                "the database did not answer, so the activity of keys was not written; trying again later"
            )
        finally:
            for place, count in counts.items():
                newer = self._counts.setdefault(place, count)
                if newer is not count:
                    newer.accepted += count.accepted
                    newer.refused += count.refused

    async def days(self, key_id: str, *, since: date) -> Sequence[tuple[date, int, int]]:
        """Each day with requests of a key, the oldest first: the day in UTC, and the numbers of accepted and refused requests.

        Raises:
            StoreUnavailable: The database does not answer.
        """
        async with self._db.read() as connection:
            found = await connection.execute(
                select(_DAYS.day, _DAYS.accepted, _DAYS.refused)
                .where(_DAYS.key_id == key_id, _DAYS.day >= since)
                .order_by(_DAYS.day)
            )
        return [(row.day, row.accepted, row.refused) for row in found]

    async def last_request(self, key_id: str) -> LastRequest | None:
        """The last kept request of a key; None if there is none.

        Raises:
            StoreUnavailable: The database does not answer.
        """
        async with self._db.read() as connection:
            found = await connection.execute(
                select(_LAST.at, _LAST.route, _LAST.address, _LAST.user_agent).where(
                    _LAST.key_id == key_id
                )
            )
        row = found.one_or_none()
        return None if row is None else LastRequest(*row)

    async def purge(self) -> None:
        """Delete activity that is older than the administrator's retention time.

        Raises:
            StoreUnavailable: The database does not answer.
        """
        keep = timedelta(days=(await self._config.current()).key_activity_days)
        first = (self._clock.now() - keep).date()
        began = datetime.combine(first, time(), UTC)
        async with self._db.write() as connection:
            await connection.execute(delete(schema.key_activity).where(_DAYS.day < first))
            await connection.execute(delete(schema.key_last_requests).where(_LAST.at < began))

    async def _write(self, counts: dict[tuple[str, date], _Count]) -> None:
        config = await self._config.current()
        days = [
            {"key_id": key_id, "day": day, "accepted": count.accepted, "refused": count.refused}
            for (key_id, day), count in counts.items()
        ]
        # A key has a row for each day, and one last request; later days come last.
        last = {
            key_id: {
                "key_id": key_id,
                "at": count.last.at,
                "route": count.last.route,
                "address": count.last.address if config.keep_key_addresses else None,
                "user_agent": count.last.user_agent if config.keep_key_user_agents else None,
            }
            for (key_id, _), count in counts.items()
        }
        add = self._db.insert(schema.key_activity)
        add = add.on_conflict_do_update(
            index_elements=["key_id", "day"],
            set_={name: _DAYS[name] + add.excluded[name] for name in ("accepted", "refused")},
        )
        put = self._db.insert(schema.key_last_requests)
        put = put.on_conflict_do_update(
            index_elements=["key_id"],
            set_={
                name: case((put.excluded.at >= _LAST.at, put.excluded[name]), else_=_LAST[name])
                for name in ("at", "route", "address", "user_agent")
            },
        )
        async with self._db.write() as connection:
            await connection.execute(add, days)
            await connection.execute(put, list(last.values()))
