"""The data classes: an API key's record, its owner, a login session, and the principal of a request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Generic, TypeGuard, TypeVar, cast
from uuid import UUID

from . import fields
from .errors import ConfigurationError

UserT = TypeVar("UserT")
"""The application's own class of users."""


class CredentialKind(Enum):
    """How a principal was authenticated."""

    INTERACTIVE = "interactive"
    """A person logged in, and the credential belongs to that login."""
    API_KEY = "api_key"
    """The credential is an API key."""
    TOKEN = "token"
    """A genuine token that is not a person's login."""


class KeyStatus(Enum):
    """The state of a key at a given time. Revoked is final; expired follows from the time."""

    ACTIVE = "active"
    REVOKED = "revoked"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """The record of an API key. It contains a digest and never the value.

    Attributes:
        id: The public part of the key: primary key, log handle, URL segment.
        name: The owner's name for the key.
        owner_id: The owner, whose permissions the key has.
        digest: The encoded digest of the whole key, naming its scheme.
        scopes: The permissions that limit the key; None means all permissions of the owner, empty means none.
        created_at: The time of creation.
        expires_at: The time from which the key is refused; None means that it does not expire.
        last_used_at: The time of the last accepted use, to the nearest flush (about a minute); None means
            never.
        revoked_at: The time of the revocation; set once and never cleared.
        replaced_by: The id of the successor made by a rotation.
        deleted_at: The time when the owner deleted the key. A deleted key is always revoked as well.
        description: The owner's description; None means none.
        labels: Labels for searching, such as `env:prod`.
        networks: The networks from which the key works, in CIDR notation, such as `203.0.113.0/24`; None means everywhere.
        announced_days: The last announcement by :meth:`Authenticator.announce_expiry`, in days before the end: 30, 7 or 1; None
            means none yet. A key whose lifetime is at most one of these begins with that value.
        resources: The owner's resources that the key reaches, each as a kind and an id, such as `task:42`; None means all,
            empty means none. Set at creation and never changed.
    """

    id: str
    name: str
    owner_id: str
    digest: str
    scopes: frozenset[str] | None
    created_at: datetime
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    revoked_at: datetime | None = None
    replaced_by: str | None = None
    deleted_at: datetime | None = None
    description: str | None = None
    labels: frozenset[str] = frozenset()
    networks: frozenset[str] | None = None
    announced_days: int | None = None
    resources: frozenset[str] | None = None

    def status(self, now: datetime) -> KeyStatus:
        """The key's state at `now`."""
        if self.revoked_at is not None:
            return KeyStatus.REVOKED
        if self.expires_at is not None and now >= self.expires_at:
            return KeyStatus.EXPIRED
        return KeyStatus.ACTIVE

    def document(self) -> dict[str, Any]:
        """The record as JSON, without the digest: times of RFC 3339 in UTC, sets as sorted lists.

        The key routes return this, with a `mask` (:meth:`~msk_auth.KeyFormat.mask`) and a :meth:`status`.
        """
        shown = (each.name for each in fields.KEY_FIELDS if each.is_shown)
        return {name: fields.as_json(getattr(self, name)) for name in shown}

    def details(self) -> dict[str, Any]:
        """The values that the key's creator chose, in the form of :meth:`document`: the name, and values other than the default."""
        chosen = {name: getattr(self, name) for name in fields.INPUTS}
        return {
            name: fields.as_json(value)
            for name, value in chosen.items()
            if value != fields.FIELD_OF[name].empty
        }

    @staticmethod
    def document_schema() -> dict[str, Any]:
        """The JSON Schema of :meth:`document`."""
        shown = {each.name: each.shown_schema() for each in fields.KEY_FIELDS if each.is_shown}
        return {"type": "object", "required": list(shown), "properties": shown}


@dataclass(frozen=True, slots=True, init=False)
class Owner(Generic[UserT]):
    """The parts of the application's user that this library needs, read again for each verification.

    Under a lease many requests share an owner, so it must be immutable: `permissions` are frozen, and a mutable
    `user` is refused (see :func:`~msk_auth.immutable`).

    Attributes:
        id: The value of `ApiKey.owner_id` and of a JWT's `sub`, which may be another spelling of the same UUID.
        permissions: Everything the user may do now, from any iterable of strings.
        user: The application's own object, which request handlers get, with its type.
        disabled: True refuses every key and login of this user.
        since: When this user was created, with a time zone. An older key or login belongs to a predecessor with the same
            id and is refused. A login without `authenticated_at` is of unknown age and passes. None means that your
            application never reuses an id.

    Raises:
        ConfigurationError: `id` is not a string; `permissions` is one string, or contains something other than strings; `since`
            has no time zone.
    """

    id: str
    permissions: frozenset[str]
    user: UserT
    disabled: bool = False
    since: datetime | None = None

    # Written by hand, because the argument is any iterable and the attribute a frozen set.
    def __init__(
        self,
        id: str,  # noqa: A002 - the name of the attribute
        permissions: Iterable[str],
        user: UserT,
        disabled: bool = False,
        since: datetime | None = None,
    ) -> None:
        if not isinstance(cast("object", id), str):
            raise ConfigurationError(
                f"Owner.id is of type {type(id).__name__}, and has to be the text that keys have as their owner_id. Write"
                " Owner(str(user.id), …)."
            )
        if since is not None and since.utcoffset() is None:
            raise ConfigurationError(
                "Owner.since has no time zone. Databases return UTC without a time zone: write"
                " since=user.created_at.replace(tzinfo=UTC)."
            )
        set_attribute = object.__setattr__
        set_attribute(self, "id", id)
        set_attribute(self, "permissions", freeze_permissions(permissions, "permissions"))
        set_attribute(self, "user", user)
        set_attribute(self, "disabled", disabled)
        set_attribute(self, "since", since)


@dataclass(frozen=True, slots=True)
class Session:
    """The application's record of an interactive login, found by a JWT's `sid`.

    Attributes:
        id: The `sid`.
        owner_id: The owner who logged in.
        expires_at: The time when the session ends, by absolute or idle time; None means that only
            the JWT expires.
        ended_at: The time when the person logged out, or an administrator ended the session.
    """

    id: str
    owner_id: str
    expires_at: datetime | None = None
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Login:
    """The application's own login, returned by a function of `logins` for a credential or a request.

    Attributes:
        owner_id: The owner who logged in: the id that `find_owner` takes.
        authenticated_at: The time when the person logged in, with a time zone. None if it is unknown: the login then fails
            every `max_age`, and is not compared with `Owner.since`.
        session_id: The login's session, if it has an id. With `find_session` the session is looked up for each
            verification.
        valid_until: The time from which the login is refused, with a time zone. Under a lease the login may be reused until
            then. None: the login is verified for each request.
        interactive: True for a person's login. Any other value makes it a machine's, which `require_interactive` refuses.

    Raises:
        ConfigurationError: An id is not a string, or a time has no time zone.
    """

    owner_id: str
    authenticated_at: datetime | None = None
    session_id: str | None = None
    valid_until: datetime | None = None
    interactive: bool = True

    def __post_init__(self) -> None:
        if not _is_id(self.owner_id):
            kind = type(self.owner_id).__qualname__
            raise ConfigurationError(
                f"Login.owner_id must be the id of an Owner, a str that is not empty, not {kind}. Write Login(str(user.id))."
            )
        if self.session_id is not None and not _is_id(self.session_id):
            kind = type(self.session_id).__qualname__
            raise ConfigurationError(
                f"Login.session_id must be a str that is not empty, not {kind}. Write session_id=str(session.id)."
            )
        for name in ("authenticated_at", "valid_until"):
            moment: object = getattr(self, name)
            if moment is None:
                continue
            if not isinstance(moment, datetime) or moment.utcoffset() is None:
                raise ConfigurationError(
                    f"Login.{name} must be a datetime with a time zone. Write"
                    f" {name}=datetime.fromtimestamp(seconds, UTC), or moment.replace(tzinfo=UTC) for UTC of a database."
                )

    @classmethod
    def from_claims(cls, claims: Mapping[str, Any], *, subject: str = "sub") -> Login | None:
        """The login in the claims of a JWT, by their registered names; None if `sub` names no user.

        `sub` is the owner, `exp` the end, `auth_time` the time of the login, and `sid` the session. `iat` is not read,
        because it changes with each renewal.

        Args:
            claims: The claims of a verified access token. Other tokens that are signed with the same key, such as one in an
                emailed link, are not logins.
            subject: The claim with the owner's id, if `sub` has another value, such as an email address.
        """
        owner_id, session_id = claims.get(subject), claims.get("sid")
        if type(owner_id) is int:
            owner_id = str(owner_id)
        if not _is_id(owner_id):
            return None
        return cls(
            owner_id,
            authenticated_at=_moment(claims.get("auth_time")),
            session_id=session_id if _is_id(session_id) else None,
            valid_until=_moment(claims.get("exp")),
        )


def is_same_id(one: str, other: str) -> bool:
    """True if two texts are equal, or spellings of the same UUID, with or without hyphens and capitals (RFC 9562, section 4)."""
    return one == other or (
        (digits := _digits_of_uuid(one)) is not None and digits == _digits_of_uuid(other)
    )


def spellings(owner_id: str) -> list[str]:
    """The texts under which a store may have this id: itself, and for a UUID the spellings of databases and backups.

    The first is the same for all spellings of a UUID.
    """
    digits = _digits_of_uuid(owner_id)
    if digits is None:
        return [owner_id]
    usual = str(UUID(digits))
    return list(dict.fromkeys([usual, digits, usual.upper(), digits.upper(), owner_id]))


def _digits_of_uuid(text: str) -> str | None:
    digits = text.replace("-", "").lower()
    is_uuid = len(digits) == 32 and digits.isalnum() and digits.strip("0123456789abcdef") == ""
    return digits if is_uuid else None


def _is_id(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and value != ""


def _moment(seconds: object) -> datetime | None:
    """A `NumericDate` (RFC 7519, section 2); None for anything else."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError, ValueError):
        # Beyond the year 9999, or not a number at all.
        return None


@dataclass(frozen=True, slots=True)
class ExternalIdentity:
    """The identity in another issuer's token. A subject is unique only within its issuer (RFC 7519, section 4.1.2).

    Attributes:
        issuer: The token's `iss`.
        subject: The token's `sub`: an issuer never gives it to another person.
        claims: All claims of the token, read-only throughout: a JSON array is a tuple. Only `issuer` and `subject`
            identify a person; an email address does not.
    """

    issuer: str
    subject: str
    claims: Mapping[str, object] = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Principal(Generic[UserT]):
    """The authenticated caller of a request.

    Attributes:
        owner: The user, as read for this request.
        kind: The kind of the credential.
        permissions: The permissions of this request: the owner's current permissions, limited to the key's
            scopes, or to the grants of another issuer's token.
        authenticated_at: For a login the time when the person logged in (`auth_time`), which
            renewing does not change; for a key the time of this verification. None if the issuer of
            a login does not state it: the login then fails every `max_age`, and passes all other guards. For a login's reference
            the time when the reference was made.
        key_id: The id of the presented key; None for other credentials.
        session_id: The login session (`sid`), if any; None for a token whose profile has no
            sessions.
        expires_at: The end of the credential itself, as of this verification; None means that it
            does not end. For a login's reference the end of the reference.
        identity: The identity in another issuer's token; None for a key and for a token of this
            application.
        scopes: The key's scopes, or the grants of another issuer's token, if the application names a claim that
            grants. Such a principal passes only guards that name a permission, and `require_interactive`. None if only the owner's
            permissions decide. For a reference, the value when the reference was made.
        resumed: True if the principal was resumed from a reference. Such a principal is never interactive.
        networks: The networks from which the key works; None for a login, and for a key that works from everywhere.
        address: The address from which a key with networks was presented; None for other credentials.
        resources: The resources that the key reaches; None for a login, and for a key that reaches all of its owner's.
    """

    owner: Owner[UserT]
    kind: CredentialKind
    permissions: frozenset[str]
    authenticated_at: datetime | None
    key_id: str | None = None
    session_id: str | None = None
    expires_at: datetime | None = None
    identity: ExternalIdentity | None = None
    scopes: frozenset[str] | None = None
    resumed: bool = False
    networks: frozenset[str] | None = None
    address: str | None = None
    resources: frozenset[str] | None = None

    @property
    def user(self) -> UserT:
        """The application's own user object."""
        return self.owner.user

    def reaches(self, resource: str) -> bool:
        """True if the credential reaches a resource, such as `task:42`. The application must check the resource's owner.

        A list of the resources that a key reaches::

            tasks = [task for task in await tasks_of(principal.owner.id) if principal.reaches(f"task:{task.id}")]
        """
        return self.resources is None or resource in self.resources

    @property
    def is_interactive(self) -> bool:
        """True if a person logged in; `require_interactive` requires this."""
        return self.kind is CredentialKind.INTERACTIVE


def local_principal(
    owner: Owner[UserT], *, at: datetime, interactive: bool = False
) -> Principal[UserT]:
    """A principal for a command that an operator runs on the server: a script, a console, a migration.

    A first key, made by a script::

        person = local_principal(owner, at=datetime.now(UTC), interactive=True)
        created = authenticator.create_key(person, name="CI")
        print(created.value.reveal())  # the only time that the value is shown

    Nothing is verified. The principal has all permissions of the owner, even of a disabled owner. Never make one from the
    contents of a request, nor in a worker or a scheduled task for queued work: use
    :meth:`Authenticator.reference` and :meth:`Authenticator.resume`.

    Args:
        owner: The owner for whom the command acts.
        at: Now.
        interactive: True if the command may do everything that a person may. Creating, changing and ending keys needs True;
            otherwise the principal reads keys and acts with the owner's permissions.
    """
    kind = CredentialKind.INTERACTIVE if interactive is True else CredentialKind.TOKEN
    return Principal(owner, kind, owner.permissions, at)


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """Limits for new keys.

    Attributes:
        max_active: The number of active keys that an owner may have; None means any number.
        default_lifetime: The lifetime of a key that is created without a lifetime, limited to `max_lifetime`;
            None means `max_lifetime`, or without a maximum that the key does not expire.
        max_lifetime: The longest lifetime of a new key; None means that keys may live forever.
    """

    max_active: int | None = None
    default_lifetime: timedelta | None = None
    max_lifetime: timedelta | None = None


@dataclass(frozen=True, slots=True)
class KeyQuery:
    """A query for an owner's keys, newest first. Deleted keys are never listed.

    Attributes:
        owner_id: The keys' owner.
        now: The time at which `status` is computed.
        status: Only keys in this state; None means all.
        after: The end of the previous page, as `(created_at, id)`; None means from the start.
        limit: The maximum number of keys.
        label: Only keys with this label; None means all.
    """

    owner_id: str
    now: datetime
    status: KeyStatus | None = None
    after: tuple[datetime, str] | None = None
    limit: int = 50
    label: str | None = None


@dataclass(frozen=True, slots=True)
class KeyFilter:
    """A filter for an administrator's list. A key must match all given fields; the default matches every key.

    Attributes:
        owner_id: Keys of this owner.
        status: Keys in this state.
        created_before: Keys that are older.
        unused_since: Keys that were not used at this time or later, including unused keys.
        expires_before: Keys that expire earlier. A key without an expiry never matches.
        label: Keys with this label.
    """

    owner_id: str | None = None
    status: KeyStatus | None = None
    created_before: datetime | None = None
    unused_since: datetime | None = None
    expires_before: datetime | None = None
    label: str | None = None

    def matches(self, record: ApiKey, now: datetime) -> bool:
        """True if the key matches at `now`."""
        used_at, ends_at = record.last_used_at, record.expires_at
        return (
            (self.owner_id is None or is_same_id(record.owner_id, self.owner_id))
            and (self.status is None or record.status(now) is self.status)
            and (self.created_before is None or record.created_at < self.created_before)
            and (self.unused_since is None or used_at is None or used_at < self.unused_since)
            and (
                self.expires_before is None
                or (ends_at is not None and ends_at < self.expires_before)
            )
            and (self.label is None or self.label in record.labels)
        )


@dataclass(frozen=True, slots=True)
class ExpiryQuery:
    """A query for expiring keys of all owners, sorted by expiry. Revoked and replaced keys are never listed.

    Attributes:
        now: Only keys that end later.
        before: Only keys that end earlier.
        announced_days: Only keys with this value, which may be None.
        after: The end of the previous page, as `(expires_at, id)`; None means from the start.
        limit: The maximum number of keys.
    """

    now: datetime
    before: datetime
    announced_days: int | None
    after: tuple[datetime, str] | None = None
    limit: int = 50


@dataclass(frozen=True, slots=True)
class KeyPage:
    """A page of a listing.

    Attributes:
        items: The keys, newest first.
        next_cursor: The `cursor` for the next page; None on the last page.
    """

    items: tuple[ApiKey, ...]
    next_cursor: str | None


def freeze_permissions(given: Iterable[str], name: str) -> frozenset[str]:
    """A frozen set of permissions or scopes from any iterable.

    Args:
        given: The permissions.
        name: Their name in an error.

    Raises:
        ConfigurationError: `given` is one string, a mapping, or contains something other than strings.
    """
    kind = type(given)
    if kind is not frozenset:
        if isinstance(given, (str, bytes)):
            # As an iterable it would be a set of letters.
            raise ConfigurationError(
                f"{name} is one string and must be a set of strings. Write {name}={{{given!r}}}."
            )
        if isinstance(given, Mapping):
            # {"tasks:write": False} would grant the permission.
            raise ConfigurationError(
                f"{name} is a mapping and must be a set of strings. Write the keys that are granted."
            )
        given = frozenset(given)
    for permission in given:
        if not isinstance(cast("object", permission), str):
            raise ConfigurationError(
                f"{name} must contain strings, and {permission!r} is none. For a member of an Enum, write its value."
            )
    return cast("frozenset[str]", given)


def revoked(record: ApiKey, *, at: datetime) -> ApiKey:
    """The record after revoking it at `at`; unchanged if it is already revoked (the state is final)."""
    return record if record.revoked_at is not None else replace(record, revoked_at=at)
