"""Decisions about an owner's operations on keys: create, rotate, edit and list.

The operations are in `_async.authenticator`. Each change checks the policy first, then its input, then the record; the write and
its event share a transaction.

With `on_behalf_of` a person manages the keys of another owner, such as a service account. The application's `may_act_for`
decides who may do this, and which permissions they may grant; one function of the authenticator calls it:

- Only an interactive login, which is verified again, acts for another owner. An API key cannot, not even to read.
- A key gets at most the owner's current permissions, limited to those that the person may grant, and to the grants of the
  person's token (G4). So the key always has scopes: no person can grant all of the owner's permissions, now and later, on the
  owner's behalf.
- A person who may grant nothing can only read and end keys. Making and editing a key needs a permission to grant, and
  changing its networks needs all of its scopes: without its networks, a key works from everywhere.
- Making a key, and changing its networks, calls `may_act_for` again just before the write. The person's own key would die
  with their account; this key outlives it, so a person who was disabled meanwhile must not get it.

Three operations revoke keys without a login: of presented keys, of leaked keys, and of a forgotten owner. Revoking grants
nothing, so the secret itself is proof enough (RFC 7009 requires no more of a public client). A caller without the secret learns
nothing: an unknown id and a wrong secret take the same path with the same I/O, and give the same result. Only the application
itself calls `forget_owner`.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

from .authentication import Rules
from .errors import (
    ConfigurationError,
    FieldError,
    InputInvalid,
    KeyNotActive,
    KeyNotFound,
    PermissionDenied,
)
from .events import (
    KeyEvent,
    LeakedKey,
)
from .fields import (
    EDITABLE,
    INPUTS,
    LABEL_FORM,
    MAX_OWNER_ID_LENGTH,
    KeyDetails,
    KeyEdit,
    KeyUpdate,
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
    is_same_id,
)
from .policy import is_permission, require_interactive

Lifetime: TypeAlias = timedelta | Literal["default", "unlimited"]
"""The lifetime of a new key: a duration, the application's default, or unlimited."""

MAX_PAGE: Final = 200
MAX_OVERLAP: Final = timedelta(days=90)
MAX_LIFETIME: Final = timedelta(days=36_500)

NOTICE_DAYS: Final = (1, 7, 30)
"""The days before its end at which a key is announced."""

MANAGE: Final = require_interactive()
"""Every change of keys needs an interactive login: keys cannot make keys (G3)."""

_KEY_ID: Final = r"[0-9A-Za-z]{1,64}"
_DAY: Final = timedelta(days=1)


class Authority(NamedTuple):
    """The owner whose keys a principal manages, and the permissions that it may give them.

    Attributes:
        owner: The owner of the keys.
        permissions: The owner's current permissions that the principal may grant.
        handed: All permissions that the principal may grant, even those that the owner lacks now. None: all of the owner's, now
            and later, for a principal's own keys, unless its token has grants.
    """

    owner: Owner[Any]
    permissions: frozenset[str]
    handed: frozenset[str] | None

    def check_handed(self, scopes: frozenset[str] | None) -> None:
        """Refuse to grant scopes, or None: all permissions of the owner.

        Raises:
            PermissionDenied: The principal may not grant all of them.
        """
        if self.handed is not None and (scopes is None or not scopes <= self.handed):
            raise PermissionDenied(scopes or ())


def own_authority(principal: Principal[Any]) -> Authority:
    """The authority of a principal over keys of its own owner."""
    return Authority(principal.owner, principal.permissions, principal.scopes)


def delegated_authority(
    acting: Principal[Any], owner: Owner[Any] | None, handed: frozenset[str] | None
) -> Authority:
    """The authority of a person over keys of another owner: never more than the grants of the person's token.

    Args:
        acting: The person, whose login was verified again.
        owner: None if no owner has the id.
        handed: The result of `may_act_for`.

    Raises:
        PermissionDenied: The owner does not exist, or the person may not act for them. One answer for both, so that callers
            cannot find out ids of owners.
    """
    if owner is None or handed is None:
        raise PermissionDenied((), "You may not act on behalf of this owner.")
    if acting.scopes is not None:
        handed &= acting.scopes
    return Authority(owner, owner.permissions & handed, handed)


def check_gives(authority: Authority) -> None:
    """Refuse to make or edit a key for another owner, if the person may give that owner's keys no permission.

    Raises:
        PermissionDenied: The person may give no permission.
    """
    if not authority.permissions:
        raise PermissionDenied(
            (),
            "You may give no permission to keys of this owner, so you may only list and revoke them.",
        )


@dataclass(frozen=True, slots=True)
class CreatedKey:
    """A new key.

    Attributes:
        record: The stored record.
        value: The key itself, which exists nowhere else. Answer with `value.reveal()` once, and
            do not keep it.
    """

    record: ApiKey
    value: KeyValue


def new_key(
    rules: Rules,
    authority: Authority,
    limits: KeyLimits,
    *,
    name: str,
    scopes: Iterable[str] | None,
    lifetime: Lifetime,
    details: KeyDetails,
    now: datetime,
) -> CreatedKey:
    """A new key, which is not stored yet.

    Raises:
        InputInvalid: With every invalid field.
        ConfigurationError: `lifetime` has the wrong type.
    """
    made_at = _made_at(authority.owner, now)
    wrong: list[FieldError] = []
    if scopes is None and authority.handed is not None:
        scopes = authority.permissions
    fields = clean_new({"name": name, "scopes": scopes, **details}, wrong)
    clean_scopes: frozenset[str] | None = fields["scopes"]
    if clean_scopes is not None and not clean_scopes <= authority.permissions:
        wrong.append(_too_much(clean_scopes - authority.permissions))
    expires_at = _end_of_life(lifetime, limits, made_at, wrong)
    if wrong:
        raise InputInvalid(wrong)
    return _make_key(rules, fields, authority.owner.id, made_at, expires_at)


def check_overlap(overlap: timedelta) -> None:
    """Refuse a rotation with a too long overlap.

    Raises:
        InputInvalid: The overlap is too long, or negative.
    """
    if not timedelta(0) <= overlap <= MAX_OVERLAP:
        raise InputInvalid.of(
            "overlap_seconds", f"Choose between 0 and {int(MAX_OVERLAP.total_seconds())} seconds."
        )


def successor_of(
    rules: Rules, record: ApiKey, authority: Authority, limits: KeyLimits, now: datetime
) -> CreatedKey:
    """A key with the same owner, scopes, lifetime, and all other fields that people set. It is not stored yet.

    Raises:
        KeyNotActive: The record is revoked, expired or rotated.
        PermissionDenied: The principal may not grant its scopes.
    """
    if record.status(now) is not KeyStatus.ACTIVE or record.replaced_by is not None:
        raise KeyNotActive
    scopes = record.scopes
    if authority.handed is not None:
        scopes = _scopes_of_successor(record, authority)
    made_at = _made_at(authority.owner, now)
    ends_at = _end_of_successor(record, limits, made_at)
    fields = {name: getattr(record, name) for name in INPUTS}
    return _make_key(rules, fields | {"scopes": scopes}, record.owner_id, made_at, ends_at)


def update_of(changes: KeyEdit) -> KeyUpdate:
    """The changes of an edit.

    Raises:
        InputInvalid: With every invalid field, or because no field is given.
    """
    wrong: list[FieldError] = []
    update = clean_changes(changes, wrong)
    if not update:
        wrong.append(FieldError("", f"Nothing to change. Give one of: {', '.join(EDITABLE)}."))
    if wrong:
        raise InputInvalid(wrong)
    return update


def page_query(
    owner: Owner[Any],
    now: datetime,
    *,
    status: KeyStatus | None,
    cursor: str | None,
    limit: int,
    label: str | None,
) -> KeyQuery:
    """The query for a page of an owner's keys. It finds one more key than the page, which shows whether there is a next page.

    Raises:
        InputInvalid: An argument is invalid.
    """
    if not 1 <= limit <= MAX_PAGE:
        raise InputInvalid.of("limit", f"Choose between 1 and {MAX_PAGE}.")
    if label is not None and not is_label(label):
        raise InputInvalid.of("label", LABEL_FORM)
    after = None if cursor is None else read_cursor(cursor)
    return KeyQuery(owner.id, now, status, after, limit + 1, label)


def page_of(found: Sequence[ApiKey], limit: int) -> KeyPage:
    """The page from the result of :func:`page_query`."""
    items = tuple(found[:limit])
    more = len(found) > limit
    return KeyPage(items, cursor_of(items[-1].created_at, items[-1].id) if more else None)


def check_delegation(rules: Rules, principal: Principal[Any], now: datetime) -> None:
    """Refuse a principal that cannot act on behalf of another owner.

    Raises:
        InteractiveRequired: The principal is not an interactive login.
        ConfigurationError: The application has no `may_act_for`.
    """
    MANAGE.check(principal, now)
    if not rules.delegates:
        raise ConfigurationError(
            "on_behalf_of needs a rule of your application: give the authenticator may_act_for=…, a function that returns"
            " the permissions that a person may grant for an owner, or None."
        )


def can_be_owner_id(text: str) -> bool:
    """True if a text can be the id of an owner. Other texts, such as a NUL or a megabyte, reach no look-up."""
    return 0 < len(text) <= MAX_OWNER_ID_LENGTH and text.isprintable()


def confirm_authority(authority: Authority, scopes: frozenset[str] | None) -> None:
    """Check, before a key is written on behalf of another owner, that the principal may still grant these scopes.

    Raises:
        InputInvalid: The owner is disabled.
        PermissionDenied: The principal may not grant them.
    """
    if authority.owner.disabled:
        raise InputInvalid.of("on_behalf_of", "This owner is disabled: no key of theirs works.")
    if scopes is None or not scopes <= authority.permissions:
        raise PermissionDenied(scopes or ())


def _scopes_of_successor(record: ApiKey, authority: Authority) -> frozenset[str]:
    """The key's scopes that the owner still has, all of which the acting person must be able to grant.

    Raises:
        PermissionDenied: The person may not grant all of them.
    """
    if record.scopes is None:
        raise PermissionDenied(
            (),
            "This key has all permissions of its owner, now and later, which is more than you may grant. Create a key with"
            " scopes.",
        )
    scopes = record.scopes & authority.owner.permissions
    if not scopes <= authority.permissions:
        raise PermissionDenied(scopes)
    return scopes


def of_owner(record: ApiKey | None, owner: Owner[Any]) -> ApiKey:
    """The record, if it is a key of this owner.

    Raises:
        KeyNotFound: The record is missing or another owner's.
    """
    if record is None or not is_same_id(record.owner_id, owner.id) or record.deleted_at is not None:
        raise KeyNotFound
    return record


def _made_at(owner: Owner[Any], now: datetime) -> datetime:
    # The clock that wrote `since` may be ahead, or its database may round: no key is older than its owner.
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
    """True if a key can have this id. Other texts, such as a NUL or a megabyte, are not looked up."""
    return re.fullmatch(_KEY_ID, text) is not None


def checked_id(key_id: str) -> str:
    """An id that may be looked up.

    Raises:
        KeyNotFound: No key can have it.
    """
    if not is_key_id(key_id):
        raise KeyNotFound
    return key_id


def present(record: ApiKey | None) -> ApiKey:
    """The record of a change.

    Raises:
        KeyNotFound: The key does not exist.
    """
    if record is None:
        raise KeyNotFound
    return record


def _too_much(scopes: frozenset[str]) -> FieldError:
    """The error of scopes that exceed the permissions."""
    # Only well-formed permissions are repeated: other texts may be anything.
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
        # The caller did not choose this lifetime, so the maximum limits it.
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


def notice_days(lifetime: timedelta) -> int | None:
    """The initial `announced_days`: a person who makes a key for a week needs no reminder at once.

    Returns:
        The least of :data:`NOTICE_DAYS` that is not shorter than the lifetime; None if all are shorter.
    """
    return next((days for days in NOTICE_DAYS if lifetime <= timedelta(days=days)), None)


def _end_of_successor(record: ApiKey, limits: KeyLimits, now: datetime) -> datetime | None:
    lived = None if record.expires_at is None else record.expires_at - record.created_at
    bounds = [length for length in (lived, limits.max_lifetime) if length is not None]
    return now + min(*bounds, MAX_LIFETIME) if bounds else None


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
# Twelve digits of seconds and six of microseconds: enough for every time up to the year 9999.
_DECODED = rb"(0|-?[1-9][0-9]{0,17})\.([0-9A-Za-z_-]{1,64})"


def cursor_of(created_at: datetime, key_id: str) -> str:
    """The cursor of a page that ended with this key: its position in keyset pagination."""
    raw = f"{(created_at - _EPOCH) // _MICROSECOND}.{key_id}"
    return base64.urlsafe_b64encode(raw.encode()).rstrip(b"=").decode()


def read_cursor(cursor: str) -> tuple[datetime, str]:
    """The position in a cursor.

    Raises:
        InputInvalid: :func:`cursor_of` did not make the cursor.
    """
    try:
        # No position has a `-` or `_` in base64: all of its bytes are ASCII, and none is `>`, `?` or `~`.
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), validate=True)
        match = re.fullmatch(_DECODED, raw)
        if match is not None:
            return _EPOCH + int(match[1]) * _MICROSECOND, match[2].decode()
    except (ValueError, OverflowError):
        pass
    raise not_a_cursor()


def not_a_cursor() -> InputInvalid:
    """The refusal of a text that is not a cursor of the listing."""
    return InputInvalid.of(
        "cursor", "This is not a cursor of this listing. Begin again without one."
    )


def leaks_of(
    record: ApiKey, leaked: Sequence[LeakedKey], held: Mapping[str, ApiKey], now: datetime
) -> list[KeyEvent]:
    """The events of a revoked key: one for each place where it was found.

    Args:
        record: The record after the revocation.
        leaked: All reported keys.
        held: Maps each key with the right secret to its record.
        now: The current time.
    """
    return [
        KeyEvent("leaked", now, record, location=found.location)
        for found in leaked
        if found.key in held and held[found.key].id == record.id
    ]


def forgotten(before: ApiKey, after: ApiKey, now: datetime) -> KeyEvent:
    """The event of a key whose owner was forgotten."""
    # Its owner may have revoked it since it was listed.
    if before.revoked_at is None and after.revoked_at == now:
        return KeyEvent("revoked", now, after, cause="forgotten")
    return KeyEvent("deleted", now, after)
