"""Revoking keys without a login: a key that is presented, keys that were found in public, all keys of an owner.

Revoking a key grants nothing, so the secret itself is proof enough (RFC 7009 demands no more of a public client). A caller
without the secret learns nothing: an unknown id and a wrong secret take the same path with the same I/O, and give the same
result. Only the application itself calls `forget_owner`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from .events import (
    KeyDeleted,
    KeyEvent,
    KeyLeaked,
    KeyRevocation,
    LeakLocation,
    RevocationCause,
)
from .model import ApiKey


@dataclass(frozen=True, slots=True)
class LeakedKey:
    """A key that was found in public.

    Attributes:
        key: The key. `repr` does not show it.
        location: Where it was found.
    """

    key: str = field(repr=False)
    location: LeakLocation


def leaks_of(
    record: ApiKey, leaked: Sequence[LeakedKey], held: Mapping[str, ApiKey], now: datetime
) -> list[KeyEvent]:
    """The events of one revoked key: one for each place where it was found.

    Args:
        record: As the revocation leaves it.
        leaked: All that was found.
        held: From each key with the right secret to its record.
        now: The moment.
    """
    return [
        KeyLeaked(now, record, found.location)
        for found in leaked
        if found.key in held and held[found.key].id == record.id
    ]


def forgotten(before: ApiKey, after: ApiKey, now: datetime) -> KeyRevocation | KeyDeleted:
    """What happened to a key when its owner was forgotten."""
    # Its owner may have revoked it since it was listed.
    if before.revoked_at is None and after.revoked_at == now:
        return KeyRevocation(now, None, after, RevocationCause.FORGOTTEN)
    return KeyDeleted(now, None, after)
