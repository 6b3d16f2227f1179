"""Deletes what is over: sessions, links, windows of attempts, and old entries of the audit log."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Final

from msk_auth import Clock, StoreUnavailable

from .attempts import DatabaseAttempts
from .audit import Audit
from .sessions import Sessions

_log = logging.getLogger(__name__)

_PAUSE_SECONDS: Final = 3600.0


async def tidy_for_ever(
    sessions: Sessions,
    attempts: DatabaseAttempts,
    audit: Audit,
    clock: Clock,
    *,
    audit_retention_days: int | None,
) -> None:
    """Tidy once an hour, until it is cancelled.

    Args:
        sessions: Deletes sessions and links.
        attempts: Deletes windows.
        audit: Deletes entries.
        clock: Says how old an entry is.
        audit_retention_days: How long entries are kept; None keeps them.
    """
    while True:
        try:
            await sessions.purge()
            await attempts.purge()
            if audit_retention_days is not None:
                await _purge_audit(audit, clock, audit_retention_days)
        except StoreUnavailable:
            _log.warning("could not delete what is over; trying again later")
        await asyncio.sleep(_PAUSE_SECONDS)


async def _purge_audit(audit: Audit, clock: Clock, days: int) -> None:
    deleted = await audit.purge(before=clock.now() - timedelta(days=days))
    if deleted:
        _log.info("deleted %d entries of the audit log that are older than %d days", deleted, days)
