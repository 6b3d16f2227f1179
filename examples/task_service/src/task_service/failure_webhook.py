"""Reports failed and timed-out runs to one address, signed by the rules of Standard Webhooks (standardwebhooks.com).

The worker that ends a run writes the time of its report, in the same statement. A process that serves claims a due report,
posts it, and removes the time. So a report is sent at least once, by any process; the receiver recognises a
repetition by `webhook-id`.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

from httpx2 import AsyncClient, HTTPError, InvalidURL
from sqlalchemy import Row, select, update
from sqlalchemy.sql.elements import ColumnElement

from msk_auth import Clock
from msk_auth.errors import StoreUnavailable

from .db.engine import Database
from .db.schema import runs, tasks
from .tasks.notifications import wait_for_event

_log = logging.getLogger(__name__)

_PAUSE_SECONDS: Final = 5.0
_TIMEOUT_SECONDS: Final = 10.0
_AT_ONCE: Final = 20
_FIRST_RETRY: Final = timedelta(minutes=1)
_GIVE_UP: Final = timedelta(days=1)

Post: TypeAlias = Callable[[str, bytes, dict[str, str]], Awaitable[int]]
"""Posts a body with headers to a URL, and returns the status of the answer."""


async def post(url: str, body: bytes, headers: dict[str, str]) -> int:
    """Post a report: one bounded request, without redirects, whose answer is not read.

    Raises:
        HTTPError, InvalidURL, TimeoutError: The address does not answer.
    """
    async with (
        # The client's own limit is only for each read.
        asyncio.timeout(_TIMEOUT_SECONDS),
        AsyncClient(timeout=_TIMEOUT_SECONDS) as client,
        client.stream("POST", url, content=body, headers=headers) as response,
    ):
        return response.status_code


@dataclass(frozen=True, slots=True)
class FailureWebhook:
    """Posts the reports of a deployment.

    Args:
        db: The service's database.
        clock: The clock of reports.
        url: Their address.
        secret: The secret that signs reports.
        base_url: The service's origin, for the address of a run.
        post: Sends a report; tests replace it.
    """

    db: Database
    clock: Clock
    url: str = field(repr=False)
    secret: bytes = field(repr=False)
    base_url: str
    post: Post = post

    async def send_periodically(self, stopping: asyncio.Event) -> None:
        """:meth:`send_due` every few seconds, until the service stops."""
        while not stopping.is_set():
            try:
                await self.send_due()
            except StoreUnavailable:
                _log.warning("the database did not answer, so no failed run was reported")
            await wait_for_event(stopping, _PAUSE_SECONDS)

    async def send_due(self) -> None:
        """Send each due report, and drop reports of runs that ended more than a day ago.

        Raises:
            StoreUnavailable: The database does not answer.
        """
        now = self.clock.now()
        due = (
            select(runs, tasks.c.name.label("task_name"))
            .join(tasks, tasks.c.id == runs.c.task_id)
            .where(runs.c.report_due_at <= now)
            .order_by(runs.c.report_due_at)
            .limit(_AT_ONCE)
        )
        async with self.db.read() as connection:
            found = (await connection.execute(due)).all()
        last = now - _GIVE_UP
        if any(row.finished_at < last for row in found):
            await self._take_off(runs.c.finished_at < last)
            return
        for row in found:
            if await self._claim(row, now) and await self._send(row):
                await self._take_off(runs.c.id == row.id)

    async def _take_off(self, which: ColumnElement[bool]) -> None:
        await self.db.execute(
            update(runs)
            .where(runs.c.report_due_at.is_not(None), which)
            .values(report_due_at=None)
            .returning(runs.c.id)
        )

    async def _claim(self, row: Row[Any], now: datetime) -> bool:
        """True if this process claimed the report. Until it is sent, it is due again after longer and longer times."""
        again = now + max(_FIRST_RETRY, now - row.finished_at)
        claimed = await self.db.execute(
            update(runs)
            .where(runs.c.id == row.id, runs.c.report_due_at == row.report_due_at)
            .values(report_due_at=again)
            .returning(runs.c.id)
        )
        return bool(claimed)

    async def _send(self, row: Row[Any]) -> bool:
        body = json.dumps(self._report(row)).encode()
        message_id, sent_at = f"run_{row.id}", str(int(self.clock.now().timestamp()))
        signed = b".".join([message_id.encode(), sent_at.encode(), body])
        signature = base64.b64encode(hmac.digest(self.secret, signed, "sha256")).decode()
        headers = {
            "content-type": "application/json",
            "user-agent": "task-service",
            "webhook-id": message_id,
            "webhook-timestamp": sent_at,
            "webhook-signature": f"v1,{signature}",
        }
        try:
            status = await self.post(self.url, body, headers)
        except (HTTPError, InvalidURL, TimeoutError) as error:
            # The error's text may have the address, which people treat as a secret.
            _log.warning(
                "the webhook got no answer about the run %s: %s", row.id, type(error).__name__
            )
            return False
        if not 200 <= status < 300:
            _log.warning("the webhook answered %d about the run %s", status, row.id)
            return False
        return True

    def _report(self, row: Row[Any]) -> dict[str, Any]:
        return {
            "type": f"run.{row.state}",
            "timestamp": row.finished_at.isoformat().replace("+00:00", "Z"),
            "data": {
                "run_id": row.id,
                "task_id": row.task_id,
                "task_name": row.task_name,
                "owner_id": row.owner_id,
                "state": row.state,
                "attempt": row.attempt,
                "exit_code": row.exit_code,
                "error": row.error,
                "url": f"{self.base_url}/tasks/{row.task_id}?run={row.id}",
            },
        }
