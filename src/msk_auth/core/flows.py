"""Every operation, written once for both authenticators: the order of its checks and of its I/O.

Authentication takes these steps in this order. A failed check ends the request:

1. Read the header (`credentials.read_bearer`).
2. Distinguish a key from a token, and check its form: no I/O for a malformed one.
3. A key: find the record, compare the digest, and only then look at revoked and expired.
   A token: its issuer checks signature and claims; then that its session is open.
4. Find the owner, read anew. Refuse a disabled owner, and a credential that is older than its owner: it belongs to a
   predecessor with the same id. Under a lease refuse an owner that a request could change.
5. The effective permissions are the owner's permissions now, cut down to the key's scopes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, Generic, Literal, NamedTuple, TypeAlias, TypeGuard, TypeVar

from . import steps
from .compact import ParsedToken
from .credentials import read_bearer
from .cursor import PageCursor
from .digest import KeyHasher
from .errors import (
    ConfigurationError,
    CredentialsMissing,
    FieldError,
    InputInvalid,
    KeyExpired,
    KeyNotActive,
    KeyNotFound,
    KeyRevoked,
    KeyUnknown,
    OwnerDisabled,
    TokenExpired,
    TokenInvalid,
    TokenRevoked,
)
from .events import (
    Event,
    KeyCreated,
    KeyDeleted,
    KeyEvent,
    KeyExpirySet,
    KeyRevocation,
    KeyRotated,
)
from .immutability import check_shareable
from .issuer import TokenIssuer, VerifiedToken
from .keys import KeyFormat, KeyValue
from .model import (
    ApiKey,
    CredentialKind,
    ExternalIdentity,
    KeyLimits,
    KeyPage,
    KeyQuery,
    KeyStatus,
    Owner,
    Principal,
    Session,
)
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
_REST_OF_SECOND: Final = timedelta(microseconds=999_999)
# Invisible, although Unicode classes them as letters and symbols: fillers, joiners, a blank.
_INVISIBLE: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")


class Rules(NamedTuple):
    """What an application configured, as far as decisions depend on it.

    Attributes:
        key_format: The prefixes of the keys.
        hasher: How keys are digested.
        issuers: Those whose JWTs are accepted.
        checks_sessions: Whether the application has a `find_session`.
        shares_principals: Whether several requests may get the same principal, as they do under a lease.
    """

    key_format: KeyFormat
    hasher: KeyHasher
    issuers: Sequence[TokenIssuer]
    checks_sessions: bool
    shares_principals: bool

    def check(self) -> Rules:
        """These rules.

        Raises:
            ConfigurationError: They contradict each other.
        """
        names = [name for issuer in self.issuers for name in issuer.names]
        if len(set(names)) != len(names):
            raise ConfigurationError(f"Two token profiles have the same issuer: {names}.")
        return self


class Authenticated(NamedTuple):
    """The outcome of `authenticate`.

    Attributes:
        principal: Who the request acts as.
        valid_until: When the credential itself ends, however it is cached; None means it does not.
        upgrade: The stored digest and the one that should take its place, if the scheme or the
            pepper changed.
    """

    principal: Principal[Any]
    valid_until: datetime | None
    upgrade: tuple[str, str] | None = None


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


def read_credential(rules: Rules, authorization: Sequence[str | bytes]) -> KeyValue | ParsedToken:
    """What a request presents, by its form alone (steps 1 and 2): garbage costs no look-up and no cryptography.

    Raises:
        CredentialsMissing: Nothing of our kind.
        RequestMalformed: The header cannot be read.
        KeyMalformed, TokenInvalid: It cannot be a credential.
    """
    credential = read_bearer(authorization)
    if credential is None:
        raise CredentialsMissing
    # A JWT has dots and a key never has. What is neither was most likely meant as a key.
    if "." in credential and not rules.key_format.claims(credential):
        return ParsedToken(credential)
    return rules.key_format.parse(credential)


def authenticate(
    rules: Rules, presented: KeyValue | ParsedToken, now: datetime
) -> Flow[Authenticated]:
    """Turn what a request presents into a principal (steps 3 to 5)."""
    if isinstance(presented, KeyValue):
        return _authenticate_key(rules, presented, now)
    return _authenticate_token(rules, presented, now)


def _authenticate_key(rules: Rules, presented: KeyValue, now: datetime) -> Flow[Authenticated]:
    record = yield from verify_key(rules, presented)
    # From here on the caller holds the right secret and may learn why it does not work.
    principal = yield from _act_by_key(rules, record, now)
    upgrade: tuple[str, str] | None = None
    if rules.hasher.needs_rehash(record.digest):
        upgrade = (record.digest, rules.hasher.digest(presented.reveal()))
    return Authenticated(principal, record.expires_at, upgrade)


def _act_by_key(rules: Rules, record: ApiKey, now: datetime) -> Flow[Principal[Any]]:
    """The principal of a key whose secret was presented."""
    status = record.status(now)
    if status is KeyStatus.REVOKED:
        raise KeyRevoked(key_id=record.id)
    if status is not KeyStatus.ACTIVE:
        raise KeyExpired(key_id=record.id)
    owner = yield from steps.find_owner(record.owner_id)
    if not _stands(owner, rules, record.created_at):
        raise OwnerDisabled(key_id=record.id)
    permissions = owner.permissions if record.scopes is None else owner.permissions & record.scopes
    return Principal(
        owner,
        CredentialKind.API_KEY,
        permissions,
        authenticated_at=now,
        key_id=record.id,
        expires_at=record.expires_at,
    )


def find_presented(rules: Rules, credential: str) -> Flow[ApiKey]:
    """The record of a presented key with the right secret, in any state.

    Raises:
        KeyMalformed: The form or the checksum is wrong; the store was not read.
        KeyUnknown: There is no such key, or the secret is wrong.
    """
    return (yield from verify_key(rules, rules.key_format.parse(credential)))


def verify_key(rules: Rules, presented: KeyValue) -> Flow[ApiKey]:
    """As :func:`find_presented`, for a key that was parsed already.

    An unknown id and a wrong secret take the same path, which branches only at its end. So neither the answer nor its time
    reveals which of the two it was.
    """
    credential = presented.reveal()
    record = yield from steps.find_key(presented.id)
    digest = rules.hasher.decoy if record is None else record.digest
    if rules.hasher.is_slow(digest):
        matches = yield from steps.verify_off_loop(credential, digest)
    else:
        matches = rules.hasher.verify(credential, digest)
    if record is None or matches is not True:
        raise KeyUnknown(key_id=presented.id)
    return record


def _authenticate_token(rules: Rules, token: ParsedToken, now: datetime) -> Flow[Authenticated]:
    verified = yield from _verify_token(rules, token, now)
    valid_until = verified.expires_at
    if rules.checks_sessions and verified.has_session:
        # Another issuer has no sessions here, so this subject is the id of an owner.
        if verified.session_id is None or not isinstance(verified.subject, str):
            raise TokenInvalid
        session = yield from _find_open_session(verified.session_id, verified.subject, now)
        if session.expires_at is not None:
            valid_until = min(valid_until, session.expires_at)
    owner = yield from _find_owner_of_login(rules, verified.subject, verified.authenticated_at)
    principal = Principal(
        owner,
        CredentialKind.INTERACTIVE if verified.interactive else CredentialKind.TOKEN,
        owner.permissions,
        authenticated_at=verified.authenticated_at,
        session_id=verified.session_id,
        expires_at=verified.expires_at,
        identity=None if isinstance(verified.subject, str) else verified.subject,
    )
    return Authenticated(principal, valid_until)


def _verify_token(rules: Rules, token: ParsedToken, now: datetime) -> Flow[VerifiedToken]:
    """What the first issuer returns whose token it is."""
    for issuer in rules.issuers:
        verified = yield from issuer.authenticate(token, now)
        if verified is not None:
            return verified
    raise TokenInvalid


def _find_open_session(session_id: str, owner_id: str, now: datetime) -> Flow[Session]:
    session = yield from steps.find_session(session_id)
    if session is None or session.owner_id != owner_id or session.ended_at is not None:
        raise TokenRevoked
    if session.expires_at is not None and now >= session.expires_at:
        raise TokenRevoked(
            "This login was idle for too long or has reached its longest time. Log in again."
        )
    return session


def verify_again(rules: Rules, principal: Principal[Any], now: datetime) -> Flow[Principal[Any]]:
    """The principal, now, of a credential that was verified before (steps 3 to 5).

    This needs no secret: it was right, and the public ids find all that has changed since.

    Raises:
        CredentialRefused: A request with the same credential would be refused now.
    """
    if principal.key_id is not None:
        record = yield from steps.find_key(principal.key_id)
        if record is None or record.owner_id != principal.owner.id:
            raise KeyUnknown(key_id=principal.key_id)
        return (yield from _act_by_key(rules, record, now))
    if principal.expires_at is not None and now >= principal.expires_at:
        raise TokenExpired
    if rules.checks_sessions and principal.session_id is not None:
        yield from _find_open_session(principal.session_id, principal.owner.id, now)
    subject = principal.owner.id if principal.identity is None else principal.identity
    owner = yield from _find_owner_of_login(rules, subject, principal.authenticated_at)
    return replace(principal, owner=owner, permissions=owner.permissions)


def _find_owner_of_login(
    rules: Rules, subject: str | ExternalIdentity, authenticated_at: datetime | None
) -> Flow[Owner[Any]]:
    made_at: datetime | None = None
    if isinstance(subject, str):
        owner = yield from steps.find_owner(subject)
        if authenticated_at is not None:
            # A token's times are whole seconds: the login was within the one that follows, and the owner may have begun
            # in it.
            made_at = authenticated_at + _REST_OF_SECOND
    else:
        # No issuer gives a subject to another person later (OpenID Connect Core, section 2), and the owner may have been
        # made by this very look-up, after the login.
        owner = yield from steps.find_external_owner(subject)
    if not _stands(owner, rules, made_at):
        raise TokenRevoked
    return owner


def _stands(
    owner: Owner[Any] | None, rules: Rules, made_at: datetime | None
) -> TypeGuard[Owner[Any]]:
    """Whether there is an owner, who is not disabled and was there when the credential was made.

    Args:
        owner: What was found.
        rules: What the application configured.
        made_at: When the credential was made; None if that is no question.

    Raises:
        NotShareable: Several requests would share the owner, and one of them could change it.
    """
    if owner is None or owner.disabled:
        return False
    if made_at is not None and not owner.existed_at(made_at):
        return False
    if rules.shares_principals:
        check_shareable(owner, "owner")
    return True


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
