"""Revoking keys without a login: a key that is presented, keys that were found in public, all keys of an owner.

Revoking a key grants nothing, so the secret itself is proof enough (RFC 7009 demands no more of a public client). A caller
without the secret learns nothing: an unknown id and a wrong secret take the same path with the same I/O, and give the same
result. Only the application itself calls `forget_owner`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from . import steps
from .errors import KeyMalformed, KeyUnknown
from .events import (
    Event,
    KeyDeleted,
    KeyEvent,
    KeyLeaked,
    KeyRevocation,
    LeakLocation,
    RevocationCause,
)
from .key_management import MAX_PAGE
from .model import ApiKey, KeyQuery
from .steps import Flow
from .store import KeyChange


@dataclass(frozen=True, slots=True)
class LeakedKey:
    """A key that was found in public.

    Attributes:
        key: The key. `repr` does not show it.
        location: Where it was found.
    """

    key: str = field(repr=False)
    location: LeakLocation


class Ended(NamedTuple):
    """The outcome of an operation of this module.

    Attributes:
        records: What became of each key that was shown, None for what is no key of this application; of an owner who is
            forgotten, the keys that were revoked.
        events: What `on_event` gets, after the commit.
    """

    records: tuple[ApiKey | None, ...]
    events: tuple[Event, ...]


def revoke_presented_key(key: str, now: datetime) -> Flow[Ended]:
    """Revoke a presented key.

    Raises:
        KeyMalformed: It is not a well-formed key; the store was not read.
    """
    try:
        held = yield from steps.find_presented(key)
    except KeyUnknown:
        return Ended((None,), ())

    def events(record: ApiKey) -> tuple[KeyEvent, ...]:
        return (KeyRevocation(now, None, record, RevocationCause.POSSESSION),)

    (record,) = yield from _revoke([held], now, events)
    return Ended((record,), events(record))


def revoke_leaked(leaked: Sequence[LeakedKey], now: datetime) -> Flow[Ended]:
    """Revoke the keys that were found. Malformed and unknown ones are skipped."""
    held: dict[str, ApiKey] = {}
    for key in dict.fromkeys(found.key for found in leaked):
        try:
            held[key] = yield from steps.find_presented(key)
        except (KeyMalformed, KeyUnknown):
            continue

    def events_of(record: ApiKey) -> list[KeyEvent]:
        return [
            KeyLeaked(now, record, found.location)
            for found in leaked
            if found.key in held and held[found.key].id == record.id
        ]

    revoked = dict(
        zip(held, (yield from _revoke(list(held.values()), now, events_of)), strict=True)
    )
    records = tuple(revoked.get(found.key) for found in leaked)
    events = [
        KeyLeaked(now, record, found.location)
        for found, record in zip(leaked, records, strict=True)
        if record is not None
    ]
    return Ended(records, tuple(events))


def forget_owner(owner_id: str, now: datetime) -> Flow[Ended]:
    """Revoke every key of an owner, and take it off the list: the next owner of the id is to see none of them."""
    events = yield from _delete_all(owner_id, now)
    yield from steps.await_lease_expiry()
    # Until now a request may have had the owner's login under a lease, and made another key.
    while late := (yield from _delete_all(owner_id, now)):
        events += late
        yield from steps.await_lease_expiry()
    revoked = tuple(event.record for event in events if isinstance(event, KeyRevocation))
    return Ended(revoked, tuple(events))


def _delete_all(owner_id: str, now: datetime) -> Flow[list[KeyRevocation | KeyDeleted]]:
    """What happened to each key that was on the owner's list."""

    def event(before: ApiKey, after: ApiKey) -> KeyRevocation | KeyDeleted:
        # Its owner may have revoked it since it was listed.
        if before.revoked_at is None and after.revoked_at == now:
            return KeyRevocation(now, None, after, RevocationCause.FORGOTTEN)
        return KeyDeleted(now, None, after)

    def change_of(before: ApiKey) -> KeyChange:
        return lambda after: (event(before, after),)

    events: list[KeyRevocation | KeyDeleted] = []
    # What is deleted is on no list any more, so the next page is the first one again, with what was made meanwhile.
    while page := (yield from steps.list_keys(KeyQuery(owner_id, now, limit=MAX_PAGE))):
        deleted = yield from steps.delete_keys(page, now, change_of)
        events += [
            event(before, after)
            for before, after in zip(page, deleted, strict=True)
            if after is not None
        ]
    return events


def _revoke(held: Sequence[ApiKey], now: datetime, change: KeyChange) -> Flow[list[ApiKey]]:
    # Also those that are revoked already: the call that revoked them may still wait for leases to end, and this one must
    # not return earlier.
    changed = yield from steps.revoke_keys(held, now, change)
    # None means that its owner has deleted it, which revoked it.
    return [record if after is None else after for record, after in zip(held, changed, strict=True)]
