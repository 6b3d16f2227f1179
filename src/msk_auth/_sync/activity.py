# Generated from src/msk_auth/_async/activity.py by tools/generate_sync.py: change that, and run this.
"""Writes what was counted about keys, and deletes what is older than it is kept."""

from __future__ import annotations

import logging
from datetime import date, datetime, timedelta
from typing import Final, cast

from msk_auth._failures import log_failure
from msk_auth.authenticator.activity import ActivityLog, Count, Place, entry_of
from msk_auth.core.activity import ActivitySettings, entry_to_keep
from msk_auth.core.store import ACTIVITY_BATCH

from .store import ActivityStore, KeyStore

DELETED_AT_ONCE: Final = 1_000
"""How many old rows one transaction deletes."""

MAX_DELETIONS: Final = 10
"""How many such transactions one flush makes at most: under Flask a response waits for it."""


def flush_activity(log: ActivityLog, store: KeyStore, now: datetime) -> None:
    """Write what was counted, and once a day delete what is older than it is kept.

    What cannot be written is kept for the next call. An error is logged and not raised, since no request depends on it. A
    cancellation or an interrupt is raised.
    """
    counts = log.take()
    try:
        # An authenticator with `activity` has checked that the store has the methods.
        _write(log, counts, cast("ActivityStore", store), now.date())
    except BaseException as error:
        log.put_back(counts)
        if not isinstance(error, Exception):
            raise
        log_failure(logging.WARNING, "could not write what keys did; will retry", error)


def _write(log: ActivityLog, counts: dict[Place, Count], store: ActivityStore, today: date) -> None:
    """Write counts, and remove from them what is written."""
    if not counts and log.cleaned_on == today:
        return
    given = log.settings
    settings: ActivitySettings = given if isinstance(given, ActivitySettings) else given()
    # In one order everywhere: two processes that write the same keys wait for each other instead of deadlocking.
    ordered = sorted(counts)
    for start in range(0, len(ordered), ACTIVITY_BATCH):
        batch = ordered[start : start + ACTIVITY_BATCH]
        store.record_activity(
            [entry_to_keep(entry_of(place, counts[place]), settings) for place in batch]
        )
        for place in batch:
            del counts[place]
    if log.cleaned_on != today and _delete_old(store, settings, today):
        log.cleaned_on = today


def _delete_old(store: ActivityStore, settings: ActivitySettings, today: date) -> bool:
    """Delete what is older than it is kept. Returns whether nothing is left to delete."""
    before = today - timedelta(days=settings.keep_days)
    for _ in range(MAX_DELETIONS):
        if not store.delete_activity(before=before, limit=DELETED_AT_ONCE):
            return True
    return False
