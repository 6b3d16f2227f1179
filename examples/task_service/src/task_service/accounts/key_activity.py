"""The activity of keys: the numbers of accepted and refused requests on each day, and the last request.

A request adds to a count in memory, which is written once a minute and at the end. No decision depends on the counts, and a
crash loses at most the last minute.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Final

from pydantic import BaseModel
from sqlalchemy import delete, select

from msk_auth import Clock
from msk_auth.errors import StoreUnavailable
from task_service.background import Flushing
from task_service.db import schema
from task_service.db.engine import Database
from task_service.request_record import RequestRecord

from .config import ConfigStore

_log = logging.getLogger(__name__)

# The most days of keys in a transaction, for which other transactions wait on SQLite.
_BATCH: Final = 500

_DAYS = schema.key_activity.c
_LAST = schema.key_last_requests.c


class DailyRequests(BaseModel):
    """The requests of a key on one day, in UTC."""

    day: date
    accepted: int
    refused: int


class LastRequest(BaseModel):
    """The last request of a key, accepted or refused; `address` and `user_agent` are null if they are not kept.

    `route` is its method and the pattern of its route, such as `GET /api/tasks/{taskId}`.
    """

    at: datetime
    route: str | None
    address: str | None
    user_agent: str | None


class ActivityReport(BaseModel):
    """A key's activity, up to a minute ago. Days without requests are left out."""

    days: list[DailyRequests]
    last_request: LastRequest | None


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
        # By key, day, and whether the requests were refused.
        self._counts: Counter[tuple[str, date, bool]] = Counter()
        self._last: dict[str, dict[str, Any]] = {}

    def count(self, key_id: str, request: RequestRecord, *, is_refused: bool, route: str) -> None:
        """Count a request, in memory only.

        Args:
            key_id: The id of a key whose secret the request presented. A stranger could have guessed an id alone.
            request: The request's record.
            is_refused: True if the key was refused: ended, or without the permission or the network.
            route: See :class:`LastRequest`.
        """
        now = self._clock.now()
        self._counts[key_id, now.date(), is_refused] += 1
        self._last[key_id] = {
            "key_id": key_id,
            "at": now,
            "route": route,
            "address": request.address,
            "user_agent": request.user_agent,
        }

    async def flush(self) -> None:
        """Write the counts, or keep them for the next call if the database does not answer."""
        counts, self._counts = self._counts, Counter()
        last, self._last = self._last, {}
        # In the same order everywhere, so that two processes cannot deadlock.
        places = sorted({(key_id, day) for key_id, day, _ in counts})
        try:
            for start in range(0, len(places), _BATCH):
                batch = places[start : start + _BATCH]
                await self._write(batch, counts, last)
                for place in batch:
                    del counts[*place, False], counts[*place, True]
            last.clear()
        except StoreUnavailable:
            _log.warning(
                "the database did not answer, so the activity of keys was not written; trying again later"
            )
        finally:
            self._counts.update(counts)
            self._last = last | self._last

    async def report(self, key_id: str, days: int) -> ActivityReport:
        """The activity of a key on the last days, including today, the oldest day first.

        Raises:
            StoreUnavailable: The database does not answer.
        """
        since = self._clock.now().date() - timedelta(days=days - 1)
        of_day = select(schema.key_activity).where(_DAYS.key_id == key_id, _DAYS.day >= since)
        of_key = select(schema.key_last_requests).where(_LAST.key_id == key_id)
        async with self._db.read() as connection:
            counted = (await connection.execute(of_day.order_by(_DAYS.day))).all()
            last = (await connection.execute(of_key)).one_or_none()
        found = {"days": counted, "last_request": last}
        return ActivityReport.model_validate(found, from_attributes=True)

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

    async def _write(
        self,
        places: Sequence[tuple[str, date]],
        counts: Counter[tuple[str, date, bool]],
        last: dict[str, dict[str, Any]],
    ) -> None:
        config = await self._config.current()
        kept = {"address": config.keep_key_addresses, "user_agent": config.keep_key_user_agents}
        left_out = dict.fromkeys(name for name, is_kept in kept.items() if not is_kept)
        days = [
            {
                "key_id": key_id,
                "day": day,
                "accepted": counts[key_id, day, False],
                "refused": counts[key_id, day, True],
            }
            for key_id, day in places
        ]
        requests = [last[key_id] | left_out for key_id in sorted({key_id for key_id, _ in places})]
        add = self._db.insert(schema.key_activity)
        add = add.on_conflict_do_update(
            index_elements=["key_id", "day"],
            set_={name: _DAYS[name] + add.excluded[name] for name in ("accepted", "refused")},
        )
        put = self._db.insert(schema.key_last_requests)
        put = put.on_conflict_do_update(
            index_elements=["key_id"],
            set_={name: put.excluded[name] for name in ("at", "route", "address", "user_agent")},
            # Another process may have written a later request.
            where=put.excluded.at >= _LAST.at,
        )
        async with self._db.write() as connection:
            await connection.execute(add, days)
            await connection.execute(put, requests)
