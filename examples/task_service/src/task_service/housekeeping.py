"""The hourly work of a process that serves."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Final

from msk_auth.errors import StoreUnavailable

from .services import Services
from .tasks import retention
from .tasks.notifications import wait_for_event

_log = logging.getLogger(__name__)

_PAUSE_SECONDS: Final = 3600.0


async def purge(services: Services) -> None:
    """Delete expired sessions, links and throttle windows, and old runs, activity and audit entries."""
    await services.sessions.purge()
    await services.attempts.purge()
    await services.key_activity.purge()
    retention_days = (await services.config.current()).run_retention_days
    if deleted := await retention.purge(services.db, retention_days, services.clock.now()):
        _log.info("deleted %d old runs", deleted)
    days = services.settings.audit_retention_days
    if days is not None:
        before = services.clock.now() - timedelta(days=days)
        if deleted := await services.audit.purge(before=before):
            _log.info("deleted %d audit entries older than %d days", deleted, days)


async def announce(services: Services) -> None:
    """Announce keys that end soon; the audit log records each announcement.

    Every process that serves calls this, and one of them makes each announcement.
    """
    if count := await services.authenticator.announce_expiry():
        _log.info("announced the end of %d keys", count)


async def keep_house(services: Services) -> None:
    """:func:`purge` and :func:`announce` once an hour, until the service stops."""
    while not services.stopping.is_set():
        for work, undone in (
            (purge, "nothing was purged"),
            (announce, "no end of a key was announced"),
        ):
            try:
                await work(services)
            except StoreUnavailable:
                _log.warning("the database did not answer, so %s; trying again later", undone)
        await wait_for_event(services.stopping, _PAUSE_SECONDS)
