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
from .events import Event, KeyLeaked, KeyRevocation, LeakLocation, RevocationCause
from .flows import MAX_PAGE, Rules, find_presented
from .model import ApiKey, KeyQuery
from .steps import Flow


@dataclass(frozen=True, slots=True)
class LeakedKey:
    """A key that was found in public.

    Attributes:
        key: The key. `repr` does not show it.
        sighting: Where it was found.
    """

    key: str = field(repr=False)
    sighting: LeakLocation


class Ended(NamedTuple):
    """The outcome of an operation of this module.

    Attributes:
        records: What became of each key that was shown, None for what is no key of this application; of an owner who is
            forgotten, the keys that were revoked.
        events: What the application's hook is told.
    """

    records: tuple[ApiKey | None, ...]
    events: tuple[Event, ...]


def revoke_presented_key(rules: Rules, key: str, now: datetime) -> Flow[Ended]:
    """Revoke a presented key.

    Raises:
        KeyMalformed: It is not a well-formed key; the store was not read.
    """
    try:
        held = yield from find_presented(rules, key)
    except KeyUnknown:
        return Ended((None,), ())
    (record,) = yield from _revoke([held], now)
    return Ended((record,), (KeyRevocation(now, None, record, RevocationCause.POSSESSION),))


def revoke_leaked(rules: Rules, leaked: Sequence[LeakedKey], now: datetime) -> Flow[Ended]:
    """Revoke the keys that were found. Malformed and unknown ones are skipped."""
    held: dict[str, ApiKey] = {}
    for key in dict.fromkeys(found.key for found in leaked):
        try:
            held[key] = yield from find_presented(rules, key)
        except (KeyMalformed, KeyUnknown):
            continue
    revoked = dict(zip(held, (yield from _revoke(list(held.values()), now)), strict=True))
    records = tuple(revoked.get(found.key) for found in leaked)
    events = [
        KeyLeaked(now, record, found.sighting)
        for found, record in zip(leaked, records, strict=True)
        if record is not None
    ]
    return Ended(records, tuple(events))


def forget_owner(owner_id: str, now: datetime) -> Flow[Ended]:
    """Revoke every key of an owner, and take it off the list: the next owner of the id is to see none of them."""
    ended = yield from _delete_all(owner_id, now)
    yield from steps.await_lease_expiry()
    # Until now a request may have had the owner's login under a lease, and made another key.
    while late := (yield from _delete_all(owner_id, now)):
        ended += late
        yield from steps.await_lease_expiry()
    revoked = [after for before, after in ended if before.revoked_at is None]
    return Ended(
        tuple(revoked),
        tuple(KeyRevocation(now, None, key, RevocationCause.FORGOTTEN) for key in revoked),
    )


def _delete_all(owner_id: str, now: datetime) -> Flow[list[tuple[ApiKey, ApiKey]]]:
    """Each key that was on the owner's list, before and after."""
    deleted: list[tuple[ApiKey, ApiKey]] = []
    # What is deleted is on no list any more, so the next page is the first one again, with what was made meanwhile.
    while page := (yield from steps.list_keys(KeyQuery(owner_id, now, limit=MAX_PAGE))):
        after = yield from steps.delete_keys(page, now)
        deleted += [
            (before, changed)
            for before, changed in zip(page, after, strict=True)
            if changed is not None
        ]
    return deleted


def _revoke(held: Sequence[ApiKey], now: datetime) -> Flow[list[ApiKey]]:
    # Also those that are revoked already: the call that revoked them may still wait for leases to end, and this one must
    # not return earlier.
    changed = yield from steps.revoke_keys(held, now)
    # None means that its owner has deleted it, which revoked it.
    return [record if after is None else after for record, after in zip(held, changed, strict=True)]
