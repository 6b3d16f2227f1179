"""What the owner of keys does with them: create, rotate, revoke, expire, delete, read. Written once for both authenticators.

Each change checks the policy first, then its input, then the record; the write and its event share a transaction.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from . import steps
from .authentication import Rules
from .cursor import PageCursor
from .errors import FieldError, InputInvalid, KeyNotActive, KeyNotFound
from .events import (
    Event,
    KeyCreated,
    KeyDeleted,
    KeyEvent,
    KeyExpirySet,
    KeyRevocation,
    KeyRotated,
)
from .keys import KeyValue
from .model import ApiKey, KeyLimits, KeyPage, KeyQuery, KeyStatus, Owner, Principal
from .policy import is_permission, require_interactive
from .steps import Flow
from .store import KeyChange

T = TypeVar("T")

Lifetime: TypeAlias = timedelta | Literal["default", "unlimited"]
"""How long a new key works: a time, the application's default, or without end."""

MAX_NAME_LENGTH: Final = 100
MAX_SCOPES: Final = 100
MAX_PAGE: Final = 200
MAX_OVERLAP: Final = timedelta(days=90)
MAX_LIFETIME: Final = timedelta(days=36_500)

_MANAGE: Final = require_interactive()
_KEY_ID: Final = r"[0-9A-Za-z]{1,64}"
_DAY: Final = timedelta(days=1)
# Invisible, although Unicode classes them as letters and symbols: fillers, joiners, a blank.
_INVISIBLE: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")


class Changed(NamedTuple, Generic[T]):
    """The outcome of an operation that changed something.

    Attributes:
        value: What the caller gets.
        event: What `on_event` gets, after the commit. The store's `on_change` got an equal one before it.
    """

    value: T
    event: Event


@dataclass(frozen=True, slots=True)
class CreatedKey:
    """A key just made.

    Attributes:
        record: What is stored.
        value: The key itself, which exists nowhere else. Answer with `value.reveal()` once, and
            forget it.
    """

    record: ApiKey
    value: KeyValue


def create_key(
    rules: Rules,
    principal: Principal[Any],
    *,
    name: str,
    scopes: Iterable[str] | None,
    lifetime: Lifetime,
    now: datetime,
) -> Flow[Changed[CreatedKey]]:
    """Make a key for the principal's owner. Interactive only: no key makes keys."""
    _MANAGE.check(principal, now)
    limits = yield from steps.find_key_limits()
    made_at = _made_at(principal.owner, now)
    wrong: list[FieldError] = []
    clean_name = _clean_name(name, wrong)
    clean_scopes = _clean_scopes(scopes, principal, wrong)
    expires_at = _end_of_life(lifetime, limits, made_at, wrong)
    if wrong:
        raise InputInvalid(wrong)
    created = _make_key(rules, clean_name, principal.owner.id, clean_scopes, made_at, expires_at)
    event = KeyCreated(now, principal, created.record)
    yield from steps.insert_key(created.record, limits.max_active, now, lambda _: (event,))
    return Changed(created, event)


def rotate_key(
    rules: Rules, principal: Principal[Any], key_id: str, *, overlap: timedelta, now: datetime
) -> Flow[Changed[CreatedKey]]:
    """Make a successor with the same name, owner, scopes and length of life. Interactive only."""
    _MANAGE.check(principal, now)
    if not timedelta(0) <= overlap <= MAX_OVERLAP:
        raise InputInvalid.of(
            "overlap_seconds", f"Choose between 0 and {int(MAX_OVERLAP.total_seconds())} seconds."
        )
    limits = yield from steps.find_key_limits()
    record = yield from get_key(principal, key_id)
    if record.status(now) is not KeyStatus.ACTIVE or record.replaced_by is not None:
        raise KeyNotActive
    made_at = _made_at(principal.owner, now)
    successor_ends = _end_of_successor(record, limits, made_at)
    created = _make_key(rules, record.name, record.owner_id, record.scopes, made_at, successor_ends)
    ends_at = now + overlap if record.expires_at is None else min(now + overlap, record.expires_at)
    rotated = partial(KeyRotated, now, principal, successor=created.record)
    step = steps.rotate_key(
        record.id, created.record, ends_at, limits.max_active, now, _change(rotated)
    )
    return Changed(created, rotated(_present((yield from step))))


def revoke_key(principal: Principal[Any], key_id: str, *, now: datetime) -> Flow[Changed[ApiKey]]:
    """Revoke a key of the principal's owner, for good. Revoking again changes nothing. Interactive only."""
    _MANAGE.check(principal, now)
    ours = _checked_id(key_id), principal.owner.id
    revoked = partial(KeyRevocation, now, principal)
    record = _present((yield from steps.revoke_key(*ours, now, _change(revoked))))
    return Changed(record, revoked(record))


def delete_key(principal: Principal[Any], key_id: str, *, now: datetime) -> Flow[Changed[None]]:
    """Revoke a key and remove it from the list. Interactive only."""
    _MANAGE.check(principal, now)
    ours = _checked_id(key_id), principal.owner.id
    deleted = partial(KeyDeleted, now, principal)
    record = _present((yield from steps.delete_key(*ours, now, _change(deleted))))
    return Changed(None, deleted(record))


def expire_key(
    principal: Principal[Any], key_id: str, *, at: datetime, now: datetime
) -> Flow[Changed[ApiKey]]:
    """Make a key expire at `at`, or earlier if it does already. Interactive only."""
    _MANAGE.check(principal, now)
    if at.utcoffset() is None:
        raise InputInvalid.of("expires_at", "Give the time with its offset from UTC.")
    ours = _checked_id(key_id), principal.owner.id
    expiry_set = partial(KeyExpirySet, now, principal)
    record = _present((yield from steps.expire_key(*ours, at, _change(expiry_set))))
    return Changed(record, expiry_set(record))


def get_key(principal: Principal[Any], key_id: str) -> Flow[ApiKey]:
    """A key of the principal's owner."""
    record = yield from steps.find_key(_checked_id(key_id))
    if record is None or record.owner_id != principal.owner.id or record.deleted_at is not None:
        raise KeyNotFound
    return record


def list_keys(
    principal: Principal[Any],
    *,
    status: KeyStatus | None,
    cursor: str | None,
    limit: int,
    now: datetime,
) -> Flow[KeyPage]:
    """A page of the keys of the principal's owner, newest first."""
    if not 1 <= limit <= MAX_PAGE:
        raise InputInvalid.of("limit", f"Choose between 1 and {MAX_PAGE}.")
    after = None if cursor is None else PageCursor.decode(cursor)
    # One item more than the page shows whether there is a next one.
    query = KeyQuery(principal.owner.id, now, status, after, limit + 1)
    found = tuple((yield from steps.list_keys(query)))
    items = found[:limit]
    more = len(found) > limit
    return KeyPage(items, PageCursor.encode(items[-1].created_at, items[-1].id) if more else None)


def _change(event: Callable[[ApiKey], KeyEvent]) -> KeyChange:
    """A change that has this one event."""
    return lambda record: (event(record),)


def _made_at(owner: Owner[Any], now: datetime) -> datetime:
    # Whose clock wrote `since` may be ahead of this one, or its database may round: no key of an owner is older than they.
    return now if owner.since is None else max(now, owner.since)


def _make_key(
    rules: Rules,
    name: str,
    owner_id: str,
    scopes: frozenset[str] | None,
    made_at: datetime,
    expires_at: datetime | None,
) -> CreatedKey:
    value = rules.key_format.generate()
    digest = rules.hasher.digest(value.reveal())
    return CreatedKey(ApiKey(value.id, name, owner_id, digest, scopes, made_at, expires_at), value)


def _checked_id(key_id: str) -> str:
    # A text that cannot be an id is not found. The store is not read, and never gets a NUL or a megabyte.
    if re.fullmatch(_KEY_ID, key_id) is None:
        raise KeyNotFound
    return key_id


def _present(record: ApiKey | None) -> ApiKey:
    if record is None:
        raise KeyNotFound
    return record


def _clean_name(name: str, wrong: list[FieldError]) -> str:
    import unicodedata  # a shared library of its own, and few programs make keys

    clean = name.strip()
    # Four code points compose to one at most, so what is longer is too long in any case; and
    # normalising takes time that grows with the square of the length.
    if len(clean) <= 4 * MAX_NAME_LENGTH:
        clean = unicodedata.normalize("NFC", clean)
    if not 1 <= len(clean) <= MAX_NAME_LENGTH:
        wrong.append(FieldError("name", f"Give a name of 1 to {MAX_NAME_LENGTH} characters."))
    elif not clean.isprintable() or not _INVISIBLE.isdisjoint(clean):
        wrong.append(
            FieldError("name", "The name contains control or invisible characters. Leave them out.")
        )
    return clean


def _clean_scopes(
    scopes: Iterable[str] | None, principal: Principal[Any], wrong: list[FieldError]
) -> frozenset[str] | None:
    if scopes is None:
        return None
    if isinstance(scopes, str):
        # Taken as an iterable it would be a set of letters.
        wrong.append(FieldError("scopes", "Give a list of scopes, not one text."))
        return None
    clean = frozenset(scopes)
    if len(clean) > MAX_SCOPES:
        wrong.append(FieldError("scopes", f"Choose at most {MAX_SCOPES} scopes."))
    elif not clean <= principal.permissions:
        # Only what could be a permission is repeated: the rest may be anything.
        unknown = sorted(scope for scope in clean - principal.permissions if is_permission(scope))
        named = f": {', '.join(unknown)}" if unknown else ""
        wrong.append(
            FieldError("scopes", f"You do not have all of these permissions yourself{named}.")
        )
    return clean


def _end_of_life(
    lifetime: Lifetime, limits: KeyLimits, now: datetime, wrong: list[FieldError]
) -> datetime | None:
    longest = limits.max_lifetime
    ceiling = MAX_LIFETIME if longest is None else min(longest, MAX_LIFETIME)
    days = f"{ceiling / _DAY:g}"
    if lifetime == "default":
        chosen = longest if limits.default_lifetime is None else limits.default_lifetime
        # The caller did not choose this length, so it gives way to the maximum.
        chosen = None if chosen is None else min(chosen, ceiling)
    elif lifetime == "unlimited":
        chosen = None
    else:
        chosen = lifetime
    if chosen is None:
        if longest is not None:
            wrong.append(
                FieldError("expires_in_days", f"Keys must expire here, after {days} days at most.")
            )
        return None
    if not timedelta(0) < chosen <= ceiling:
        wrong.append(FieldError("expires_in_days", f"Choose more than 0 and at most {days} days."))
        return None
    return now + chosen


def _end_of_successor(record: ApiKey, limits: KeyLimits, now: datetime) -> datetime | None:
    lived = None if record.expires_at is None else record.expires_at - record.created_at
    bounds = [length for length in (lived, limits.max_lifetime) if length is not None]
    return now + min(*bounds, MAX_LIFETIME) if bounds else None
