"""What the owner of keys does with them: create, rotate, revoke, expire, delete, edit, read.

Written once for both authenticators. Each change checks the policy first, then its input, then the record; the write and its
event share a transaction.

With `on_behalf_of` a person manages the keys of another owner, such as a service account. The application's `may_act_for`
decides who may, and what they may hand out; :func:`_authority` is the one place that calls it:

- Only an interactive login acts for another owner, and it is verified anew. No API key does, not even to read.
- A key gets at most the owner's permissions now, cut down to those that the person may hand out (G4). So it always has
  scopes of its own: "all that the owner may, now and later" is more than anyone could promise on the owner's behalf.
- A person who may hand out nothing reads keys and ends them. Making and editing one takes a permission to hand out, and
  changing its networks all of its scopes: without its networks, a key can be used from everywhere.
- Making a key, and changing its networks, takes a second call just before the write. A key of the person's own would die
  with their account; this one outlives it, so a person who was disabled meanwhile must not get it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import partial
from typing import Any, Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar, cast

from . import steps
from .activity import KeyActivity
from .authentication import Rules
from .cursor import PageCursor
from .errors import (
    ConfigurationError,
    FieldError,
    InputInvalid,
    KeyNotActive,
    KeyNotFound,
    PermissionDenied,
)
from .events import (
    Event,
    KeyCreated,
    KeyDeleted,
    KeyEvent,
    KeyExpirySet,
    KeyRevocation,
    KeyRotated,
    KeyUpdated,
    RevocationCause,
)
from .expiry import notice_days
from .fields import (
    EDITABLE,
    LABEL_FORM,
    MAX_OWNER_ID_LENGTH,
    KeyDetails,
    KeyEdit,
    clean_changes,
    clean_new,
    is_label,
)
from .keys import KeyValue
from .model import (
    ApiKey,
    KeyLimits,
    KeyPage,
    KeyQuery,
    KeyStatus,
    Owner,
    Principal,
)
from .policy import is_permission, require_interactive
from .steps import Flow
from .store import KeyChange

T = TypeVar("T")

Lifetime: TypeAlias = timedelta | Literal["default", "unlimited"]
"""How long a new key works: a time, the application's default, or without end."""

MAX_PAGE: Final = 200
MAX_OVERLAP: Final = timedelta(days=90)
MAX_LIFETIME: Final = timedelta(days=36_500)

_MANAGE: Final = require_interactive()
_KEY_ID: Final = r"[0-9A-Za-z]{1,64}"
_DAY: Final = timedelta(days=1)


class Changed(NamedTuple, Generic[T]):
    """The outcome of an operation that changed something.

    Attributes:
        value: What the caller gets.
        event: What `on_event` gets, after the commit. The store's `on_change` got an equal one before it.
    """

    value: T
    event: Event


class _Authority(NamedTuple):
    """Whose keys a principal manages, and which permissions it may give them.

    Attributes:
        owner: The owner.
        permissions: What a key can get now: the owner has them, and the principal may hand them out.
        handed: What the principal may hand out, whether the owner has it or not.
    """

    owner: Owner[Any]
    permissions: frozenset[str]
    handed: frozenset[str]


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
    details: KeyDetails,
    on_behalf_of: str | None,
    now: datetime,
) -> Flow[Changed[CreatedKey]]:
    """Make a key for the principal's owner, or the one on whose behalf it acts. Interactive only: no key makes keys."""
    _MANAGE.check(principal, now)
    owner, permissions, _ = yield from _authority_to_give(rules, principal, on_behalf_of, now)
    limits = yield from steps.find_key_limits()
    made_at = _made_at(owner, now)
    wrong: list[FieldError] = []
    if scopes is None and _is_limited(principal, on_behalf_of):
        scopes = permissions
    fields = clean_new({"name": name, "scopes": scopes, **details}, wrong)
    clean_scopes: frozenset[str] | None = fields["scopes"]
    if clean_scopes is not None and not clean_scopes <= permissions:
        wrong.append(_too_much(clean_scopes - permissions))
    expires_at = _end_of_life(lifetime, limits, made_at, wrong)
    if wrong:
        raise InputInvalid(wrong)
    created = _make_key(rules, fields, owner.id, made_at, expires_at)
    event = KeyCreated(now, principal, created.record)
    yield from _confirm_authority(rules, principal, on_behalf_of, clean_scopes, now)
    yield from steps.insert_key(created.record, limits.max_active, now, lambda _: (event,))
    return Changed(created, event)


def rotate_key(
    rules: Rules,
    principal: Principal[Any],
    key_id: str,
    *,
    overlap: timedelta,
    on_behalf_of: str | None,
    now: datetime,
) -> Flow[Changed[CreatedKey]]:
    """Make a successor with the same owner, scopes and length of life, and all that people edit. Interactive only."""
    _MANAGE.check(principal, now)
    authority = yield from _authority_to_give(rules, principal, on_behalf_of, now)
    if not timedelta(0) <= overlap <= MAX_OVERLAP:
        raise InputInvalid.of(
            "overlap_seconds", f"Choose between 0 and {int(MAX_OVERLAP.total_seconds())} seconds."
        )
    limits = yield from steps.find_key_limits()
    record = yield from _find_key_of(authority.owner, key_id)
    if record.status(now) is not KeyStatus.ACTIVE or record.replaced_by is not None:
        raise KeyNotActive
    scopes = record.scopes
    if _is_limited(principal, on_behalf_of):
        scopes = _scopes_of_successor(record, authority)
    made_at = _made_at(authority.owner, now)
    successor_ends = _end_of_successor(record, limits, made_at)
    fields = {name: getattr(record, name) for name in EDITABLE}
    created = _make_key(
        rules, fields | {"scopes": scopes}, record.owner_id, made_at, successor_ends
    )
    ends_at = now + overlap if record.expires_at is None else min(now + overlap, record.expires_at)
    rotated = partial(KeyRotated, now, principal, successor=created.record)
    step = steps.rotate_key(
        record.id, created.record, ends_at, limits.max_active, now, _change(rotated)
    )
    yield from _confirm_authority(rules, principal, on_behalf_of, scopes, now)
    return Changed(created, rotated(_present((yield from step))))


def revoke_key(
    rules: Rules, principal: Principal[Any], key_id: str, *, on_behalf_of: str | None, now: datetime
) -> Flow[Changed[ApiKey]]:
    """Revoke a key of the owner, for good. Revoking again changes nothing. Interactive only."""
    _MANAGE.check(principal, now)
    owner, *_ = yield from _authority(rules, principal, on_behalf_of, now)
    return (yield from _revoke(principal, (_checked_id(key_id), owner.id), on_behalf_of, now))


def _revoke(
    principal: Principal[Any], ours: tuple[str, str], on_behalf_of: str | None, now: datetime
) -> Flow[Changed[ApiKey]]:
    cause = RevocationCause.OWNER if on_behalf_of is None else RevocationCause.DELEGATE
    revoked = partial(KeyRevocation, now, principal, cause=cause)
    record = _present((yield from steps.revoke_key(*ours, now, _change(revoked))))
    return Changed(record, revoked(record))


def delete_key(
    rules: Rules, principal: Principal[Any], key_id: str, *, on_behalf_of: str | None, now: datetime
) -> Flow[Changed[None]]:
    """Revoke a key and remove it from the list. Interactive only."""
    _MANAGE.check(principal, now)
    owner, *_ = yield from _authority(rules, principal, on_behalf_of, now)
    ours = _checked_id(key_id), owner.id
    deleted = partial(KeyDeleted, now, principal)
    record = _present((yield from steps.delete_key(*ours, now, _change(deleted))))
    return Changed(None, deleted(record))


def expire_key(
    rules: Rules,
    principal: Principal[Any],
    key_id: str,
    *,
    at: datetime,
    on_behalf_of: str | None,
    now: datetime,
) -> Flow[Changed[ApiKey]]:
    """Make a key expire at `at`, or earlier if it does already; an end that is not in the future revokes it. Interactive only."""
    _MANAGE.check(principal, now)
    owner, *_ = yield from _authority(rules, principal, on_behalf_of, now)
    if at.utcoffset() is None:
        raise InputInvalid.of("expires_at", "Give the time with its offset from UTC.")
    ours = _checked_id(key_id), owner.id
    if at <= now:
        # Another process's clock may be behind this one's, and would accept the key for as long. Revoking reads no clock.
        return (yield from _revoke(principal, ours, on_behalf_of, now))
    expiry_set = partial(KeyExpirySet, now, principal)
    record = _present((yield from steps.expire_key(*ours, at, _change(expiry_set))))
    return Changed(record, expiry_set(record))


def update_key(
    rules: Rules,
    principal: Principal[Any],
    key_id: str,
    *,
    changes: KeyEdit,
    on_behalf_of: str | None,
    now: datetime,
) -> Flow[Changed[ApiKey]]:
    """Edit what a key is called, searched by and where it works from. Interactive only; never what it may do, and until when.

    In any state but deleted: a person names the key that was leaked, and finds the revoked ones of a label.
    """
    _MANAGE.check(principal, now)
    owner, *_ = yield from _authority_to_give(rules, principal, on_behalf_of, now)
    wrong: list[FieldError] = []
    update = clean_changes(changes, wrong)
    if not update:
        wrong.append(FieldError("", f"Nothing to change. Give one of: {', '.join(EDITABLE)}."))
    if wrong:
        raise InputInvalid(wrong)
    if "networks" in update and _is_limited(principal, on_behalf_of):
        edited = yield from _find_key_of(owner, key_id)
        yield from _confirm_wider_use(rules, principal, on_behalf_of, edited.scopes, now)
    ours = _checked_id(key_id), owner.id
    updated = partial(KeyUpdated, now, principal, fields=tuple(update))
    record = _present((yield from steps.update_key(*ours, update, _change(updated))))
    return Changed(record, updated(record))


def get_key(
    rules: Rules, principal: Principal[Any], key_id: str, *, on_behalf_of: str | None, now: datetime
) -> Flow[ApiKey]:
    """A key of the principal's owner, with any credential; interactive only on behalf of another."""
    owner, *_ = yield from _authority(rules, principal, on_behalf_of, now)
    return (yield from _find_key_of(owner, key_id))


def key_activity(
    rules: Rules,
    principal: Principal[Any],
    key_id: str,
    *,
    since: date | None,
    on_behalf_of: str | None,
    now: datetime,
) -> Flow[KeyActivity]:
    """What a key of the principal's owner did. It has addresses of people, so no API key reads it."""
    _MANAGE.check(principal, now)
    owner, *_ = yield from _authority(rules, principal, on_behalf_of, now)
    record = yield from _find_key_of(owner, key_id)
    return (yield from steps.find_activity(record.id, since))


def list_keys(
    rules: Rules,
    principal: Principal[Any],
    *,
    status: KeyStatus | None,
    cursor: str | None,
    limit: int,
    label: str | None,
    on_behalf_of: str | None,
    now: datetime,
) -> Flow[KeyPage]:
    """A page of the owner's keys, newest first, with any credential; interactive only on behalf of another."""
    owner, *_ = yield from _authority(rules, principal, on_behalf_of, now)
    if not 1 <= limit <= MAX_PAGE:
        raise InputInvalid.of("limit", f"Choose between 1 and {MAX_PAGE}.")
    if label is not None and not is_label(label):
        raise InputInvalid.of("label", LABEL_FORM)
    after = None if cursor is None else PageCursor.decode(cursor)
    # One item more than the page shows whether there is a next one.
    query = KeyQuery(owner.id, now, status, after, limit + 1, label)
    found = tuple((yield from steps.list_keys(query)))
    items = found[:limit]
    more = len(found) > limit
    return KeyPage(items, PageCursor.encode(items[-1].created_at, items[-1].id) if more else None)


def _authority(
    rules: Rules, principal: Principal[Any], on_behalf_of: str | None, now: datetime
) -> Flow[_Authority]:
    """Whose keys a principal manages: its own owner's, or another owner's if the application lets it act for them.

    Raises:
        ConfigurationError: The application has no `may_act_for`.
        InteractiveRequired: The principal is no interactive login.
        TokenExpired, TokenRevoked: The login of the principal would be refused now.
        PermissionDenied: There is no such owner, or the principal may not act for them. One answer for both: the ids of
            owners cannot be found out.
    """
    if on_behalf_of is None:
        granted = principal.permissions if principal.scopes is None else principal.scopes
        return _Authority(principal.owner, principal.permissions, granted)
    _MANAGE.check(principal, now)
    if not rules.delegates:
        raise ConfigurationError(
            "on_behalf_of needs the rule of your application: give the authenticator may_act_for=…, a function that returns"
            " the permissions that a person may hand out for an owner, or None."
        )
    acting = yield from steps.verify_again(principal, now)
    owner = None
    # A text that cannot be an id reaches no look-up: it may have a NUL, or a megabyte.
    if 0 < len(on_behalf_of) <= MAX_OWNER_ID_LENGTH and on_behalf_of.isprintable():
        owner = yield from steps.find_owner(on_behalf_of)
    handed = None if owner is None else (yield from steps.may_act_for(acting, owner))
    if owner is None or handed is None:
        raise PermissionDenied((), "You may not act on behalf of this owner.")
    return _Authority(owner, owner.permissions & handed, handed)


def _is_limited(principal: Principal[Any], on_behalf_of: str | None) -> bool:
    """Whether a principal may hand out less than all that the owner of the keys may do, now and later.

    On behalf of another owner the application's rule limits it, else what its own token was granted.
    """
    return on_behalf_of is not None or principal.scopes is not None


def _authority_to_give(
    rules: Rules, principal: Principal[Any], on_behalf_of: str | None, now: datetime
) -> Flow[_Authority]:
    """As :func:`_authority`, for a principal that makes or edits a key.

    Raises:
        PermissionDenied: As there; or the principal acts for another owner, and may give that owner's keys no permission.
    """
    authority = yield from _authority(rules, principal, on_behalf_of, now)
    if on_behalf_of is not None and not authority.permissions:
        raise PermissionDenied(
            (),
            "You may give no permission to keys of this owner, so you may only list and end them.",
        )
    return authority


def _confirm_authority(
    rules: Rules,
    principal: Principal[Any],
    on_behalf_of: str | None,
    scopes: frozenset[str] | None,
    now: datetime,
) -> Flow[None]:
    """Before a key is written on behalf of another owner: the principal may still give it these scopes."""
    if on_behalf_of is None:
        return
    owner, permissions, _ = yield from _authority_to_give(rules, principal, on_behalf_of, now)
    if owner.disabled:
        raise InputInvalid.of("on_behalf_of", "This owner is disabled: no key of theirs works.")
    if scopes is None or not scopes <= permissions:
        raise PermissionDenied(scopes or ())


def _confirm_wider_use(
    rules: Rules,
    principal: Principal[Any],
    on_behalf_of: str | None,
    scopes: frozenset[str] | None,
    now: datetime,
) -> Flow[None]:
    """Before the networks of a key are written: the principal may hand out all of its scopes.

    Also those that the owner does not have now: the owner may get them again, and so would the key.
    """
    *_, handed = yield from _authority_to_give(rules, principal, on_behalf_of, now)
    if scopes is None or not scopes <= handed:
        raise PermissionDenied(scopes or ())


def _scopes_of_successor(record: ApiKey, authority: _Authority) -> frozenset[str]:
    """What a key can do of its scopes now, all of which the acting person must be allowed to hand out.

    Raises:
        PermissionDenied: It is more than that.
    """
    if record.scopes is None:
        raise PermissionDenied(
            (),
            "This key may do all that its owner may, now and later, which is more than you may hand out. Create a key with"
            " scopes of its own.",
        )
    scopes = record.scopes & authority.owner.permissions
    if not scopes <= authority.permissions:
        raise PermissionDenied(scopes)
    return scopes


def _find_key_of(owner: Owner[Any], key_id: str) -> Flow[ApiKey]:
    record = yield from steps.find_key(_checked_id(key_id))
    if record is None or record.owner_id != owner.id or record.deleted_at is not None:
        raise KeyNotFound
    return record


def _change(event: Callable[[ApiKey], KeyEvent]) -> KeyChange:
    """A change that has this one event."""
    return lambda record: (event(record),)


def _made_at(owner: Owner[Any], now: datetime) -> datetime:
    # Whose clock wrote `since` may be ahead of this one, or its database may round: no key of an owner is older than they.
    return now if owner.since is None else max(now, owner.since)


def _make_key(
    rules: Rules,
    fields: Mapping[str, Any],
    owner_id: str,
    made_at: datetime,
    expires_at: datetime | None,
) -> CreatedKey:
    value = rules.key_format.generate()
    digest = rules.hasher.digest(value.reveal())
    record = ApiKey(
        id=value.id,
        owner_id=owner_id,
        digest=digest,
        created_at=made_at,
        expires_at=expires_at,
        announced_days=None if expires_at is None else notice_days(expires_at - made_at),
        **fields,
    )
    return CreatedKey(record, value)


def is_key_id(text: str) -> bool:
    """True if a key can have this id. Other texts are not looked up: the store never gets a NUL or a megabyte."""
    return re.fullmatch(_KEY_ID, text) is not None


def _checked_id(key_id: str) -> str:
    if not is_key_id(key_id):
        raise KeyNotFound
    return key_id


def _present(record: ApiKey | None) -> ApiKey:
    if record is None:
        raise KeyNotFound
    return record


def _too_much(scopes: frozenset[str]) -> FieldError:
    """The error of scopes that are more than the permissions they are taken from."""
    # Only what could be a permission is repeated: the rest may be anything.
    unknown = sorted(filter(is_permission, scopes))
    named = f": {', '.join(unknown)}" if unknown else ""
    return FieldError("scopes", f"You do not have all of these permissions yourself{named}.")


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
    elif isinstance(cast("object", lifetime), timedelta):
        chosen = lifetime
    else:
        raise ConfigurationError(
            f"lifetime={lifetime!r} does not work. Write a timedelta, such as timedelta(days=30), 'default' or 'unlimited'."
        )
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
