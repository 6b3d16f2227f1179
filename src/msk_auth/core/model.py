"""The nouns: an API key's record, its owner, a login session, and the principal that a request acts as."""

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
    """A person logged in and holds a JWT of that login."""
    API_KEY = "api_key"
    """An API key was presented."""
    TOKEN = "token"
    """A genuine JWT that is no person's login by the application's rules."""


class KeyStatus(Enum):
    """The state of a key at a moment. Revoked is final; expired is derived from the time."""

    ACTIVE = "active"
    REVOKED = "revoked"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """The record of one API key. It holds a digest and never the value.

    Attributes:
        id: The public part of the key: primary key, log handle, URL segment.
        name: The owner's label for it.
        owner_id: Whose permissions it inherits.
        digest: The encoded digest of the whole key, naming its scheme.
        scopes: What the key may do at most; None means all that the owner may, empty means nothing.
        created_at: When it was made.
        expires_at: The first moment at which it is refused; None means it does not expire.
        last_used_at: When it was last accepted, to the nearest flush (about a minute); None means
            never.
        revoked_at: When it was revoked; set once and never cleared.
        replaced_by: The id of the successor made by a rotation.
        deleted_at: When the owner took it off the list. A deleted key is always revoked as well.
        description: What the owner wrote about it; None means nothing.
        labels: What it can be searched by, such as `env:prod`.
        networks: Where it works from, each in CIDR notation, such as `203.0.113.0/24`; None means everywhere.
        announced_days: How many days before its end :class:`~msk_auth.KeyExpiry` announced it last: 30, 7 or 1; None means not
            yet. A key that is made to last no longer than one of these begins with that.
        resources: What it reaches of the owner's, each as a kind and an id, such as `task:42`; None means everything, empty
            means nothing. It is set when the key is made, and stays.
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
        """What an application shows of it, as JSON: times of RFC 3339 in UTC, sets as sorted lists. Without the digest.

        The key routes answer this, with a `mask` (:meth:`~msk_auth.KeyFormat.mask`) and a :meth:`status`.
        """
        return fields.shown(self)

    def details(self) -> dict[str, Any]:
        """What the creator of the key has chosen, as :meth:`document` has it: its name, and what is not the default."""
        return fields.set_by_people(self)

    @staticmethod
    def document_schema() -> dict[str, Any]:
        """The JSON Schema of :meth:`document`."""
        return fields.document_schema()


@dataclass(frozen=True, slots=True, init=False)
class Owner(Generic[UserT]):
    """The application's user, as far as this library needs it, read anew for each verification.

    Under a lease one owner serves many requests, so it must be immutable: `permissions` are frozen, and a `user` that can
    change is refused (see :func:`~msk_auth.immutable`).

    Attributes:
        id: The value of `ApiKey.owner_id` and of a JWT's `sub`, which may be another spelling of the same UUID.
        permissions: Everything the user may do now, from any iterable of strings.
        user: The application's own object, which request handlers get with its type.
        disabled: True refuses every key and login of this user.
        since: When this user was created, with a time zone. An older key or login belongs to a predecessor with the same
            id and is refused. A login without `authenticated_at` is of unknown age and passes. None means that your
            application never reuses an id.

    Raises:
        ConfigurationError: `id` is no string; `permissions` is one string, or contains something other than strings; `since` has
            no time zone.
    """

    id: str
    permissions: frozenset[str]
    user: UserT
    disabled: bool = False
    since: datetime | None = None

    # Written out for the sake of one type: what is taken is any iterable, and what is kept a frozen set.
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
    """An interactive login as the application remembers it, found by a JWT's `sid`.

    Attributes:
        id: The `sid`.
        owner_id: Who logged in.
        expires_at: The first moment at which it is over, by absolute or idle time; None means by
            the JWT alone.
        ended_at: When it was ended by logging out or by an administrator.
    """

    id: str
    owner_id: str
    expires_at: datetime | None = None
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Login:
    """A login of the application's own: what a function of `logins` makes of a credential or a request.

    Attributes:
        owner_id: Who logged in: the id that `find_owner` takes.
        authenticated_at: When the person logged in, with a time zone. None if that is not known: the login then fails
            every `max_age`, and is not compared with `Owner.since`.
        session_id: The session that it belongs to, if it has a name. With `find_session` it is looked up for each
            verification.
        valid_until: The first moment at which it is refused, with a time zone. Under a lease the login may be reused until
            then. None: it is verified anew for each request.
        interactive: Whether it is a person's. Anything but True makes it a machine's, which `require_interactive` refuses.

    Raises:
        ConfigurationError: An id is no text, or a time has no time zone.
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
        """The login that the claims of a JWT describe, by their registered names; None if `sub` names no user.

        `sub` is the owner, `exp` the end, `auth_time` when the person logged in, and `sid` the session. Nothing else is read:
        a token that was renewed has an `iat` of its own.

        Args:
            claims: Of a token whose signature the application has verified, and of which it knows that it is an access token:
                another one that is signed with the same key, such as that of a link in an email, is no login.
            subject: The claim that has the owner's id, where `sub` has something else, such as an email address.
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
    """Whether two texts are one id: equal, or spellings of one UUID, with or without hyphens and capitals (RFC 9562, section 4)."""
    return one == other or (
        (digits := _digits_of_uuid(one)) is not None and digits == _digits_of_uuid(other)
    )


def spellings(owner_id: str) -> list[str]:
    """The texts under which a store may have this id: itself, and of a UUID those of databases and of backups."""
    digits = _digits_of_uuid(owner_id)
    if digits is None:
        return [owner_id]
    return list(dict.fromkeys([owner_id, str(UUID(digits)), digits]))


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
    """Who a token of another issuer stands for. A subject is unique within its issuer only (RFC 7519, section 4.1.2).

    Attributes:
        issuer: `iss`, as the token has it.
        subject: `sub`: never given to another person by the same issuer.
        claims: All claims of the token, read-only throughout: a JSON array is a tuple. None but `issuer` and `subject`
            identify a person; an e-mail address does not.
    """

    issuer: str
    subject: str
    claims: Mapping[str, object] = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Principal(Generic[UserT]):
    """Who a request acts as, and how that is known.

    Attributes:
        owner: The user, as resolved for this request.
        kind: How the user was authenticated.
        permissions: What this request may do: the owner's permissions now, cut down to the key's
            scopes, or to what the token of another issuer was granted.
        authenticated_at: For a login the moment at which the person logged in (`auth_time`), which
            renewing does not move; for a key the moment of this verification. None if the issuer of
            a login does not state it: the login then fails every `max_age`, and nothing else. For the reference of a login
            the moment at which the reference was made.
        key_id: The key that was presented, if it was one.
        session_id: The login session (`sid`), if there is one; None for a token whose profile has no
            sessions.
        expires_at: When the credential itself ends, as of this verification; None means that it
            does not. For the reference of a login the end of the reference.
        identity: Who the token of another issuer stands for; None for a key and for a token of this
            application.
        scopes: The key's own scopes, or what the token of another issuer was granted, where the application says which claim
            grants: it passes no guard that names no permission, other than `require_interactive`. None where the owner's
            permissions decide alone. By a reference, what the principal had when the reference was made.
        resumed: Whether it acts by a reference, after the request that presented the credential. It is never interactive.
        networks: Where the key works from; None for a login, and for a key that works from everywhere.
        address: Where a key with networks was presented from; None for others.
        resources: What the key reaches; None for a login, and for a key that reaches everything of its owner.
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
        """Whether the credential reaches a resource, such as `task:42`. Who owns it is for the application to check.

        A list shows what a key reaches::

            tasks = [task for task in await tasks_of(principal.owner.id) if principal.reaches(f"task:{task.id}")]
        """
        return self.resources is None or resource in self.resources

    @property
    def is_interactive(self) -> bool:
        """True if a person logged in; `require_interactive` demands this."""
        return self.kind is CredentialKind.INTERACTIVE


def local_principal(
    owner: Owner[UserT], *, at: datetime, interactive: bool = False
) -> Principal[UserT]:
    """A principal for a command that an operator runs on the server: a script, a console, a migration.

    A first key, made by a script::

        person = local_principal(owner, at=datetime.now(UTC), interactive=True)
        created = authenticator.create_key(person, name="CI")
        print(created.value.reveal())  # it is shown here and nowhere else

    Nothing was verified. It has all permissions of the owner, even of a disabled one. Never make one of the contents of a
    request, nor in a worker or a scheduled task for what a request has queued: that is what
    :meth:`Authenticator.reference` and :meth:`Authenticator.resume` are for.

    Args:
        owner: On whose behalf the command acts.
        at: Now.
        interactive: Whether the command may do what only a person may. Creating, changing and ending keys needs it;
            without it the principal reads keys and acts with the owner's permissions.
    """
    kind = CredentialKind.INTERACTIVE if interactive is True else CredentialKind.TOKEN
    return Principal(owner, kind, owner.permissions, at)


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """Limits for new keys.

    Attributes:
        max_active: How many active keys one owner may have; None means any number.
        default_lifetime: The lifetime of a key that is created without one, cut down to `max_lifetime`;
            None means `max_lifetime`, and without one that the key does not expire.
        max_lifetime: The longest lifetime of a new key; None means any, and also none.
    """

    max_active: int | None = None
    default_lifetime: timedelta | None = None
    max_lifetime: timedelta | None = None


@dataclass(frozen=True, slots=True)
class KeyQuery:
    """Which of an owner's keys to list, newest first. Deleted keys are never listed.

    Attributes:
        owner_id: Whose keys.
        now: The moment for which `status` is meant.
        status: Only keys in this state; None means all.
        after: Where the previous page ended, as `(created_at, id)`; None means from the start.
        limit: How many at most.
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
    """Which keys an administrator lists. A key has to meet all that is given; by default every key does.

    Attributes:
        owner_id: Keys of this owner.
        status: Keys in this state.
        created_before: Keys that are older.
        unused_since: Keys that were not used at this moment or later, also those that never were.
        expires_before: Keys that expire earlier. A key that does not expire never matches.
        label: Keys with this label.
    """

    owner_id: str | None = None
    status: KeyStatus | None = None
    created_before: datetime | None = None
    unused_since: datetime | None = None
    expires_before: datetime | None = None
    label: str | None = None

    def matches(self, record: ApiKey, now: datetime) -> bool:
        """True if the key, at `now`, is one of them."""
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
    """Which keys that end soon to list, of all owners, the first to end first. Revoked and replaced keys are never listed.

    Attributes:
        now: Only keys that end later.
        before: Only keys that end earlier.
        announced_days: Only keys with this value, which may be None.
        after: Where the previous page ended, as `(expires_at, id)`; None means from the start.
        limit: How many at most.
    """

    now: datetime
    before: datetime
    announced_days: int | None
    after: tuple[datetime, str] | None = None
    limit: int = 50


@dataclass(frozen=True, slots=True)
class KeyPage:
    """One page of a listing.

    Attributes:
        items: The keys, newest first; those of :class:`KeyExpiry` the first to end first.
        next_cursor: The `cursor` for the next page; None on the last page.
    """

    items: tuple[ApiKey, ...]
    next_cursor: str | None


def freeze_permissions(given: Iterable[str], name: str) -> frozenset[str]:
    """A frozen set of permissions or scopes, made of any iterable.

    Args:
        given: The permissions.
        name: What to call them in an error.

    Raises:
        ConfigurationError: They are one string, a mapping, or contain something other than strings.
    """
    kind = type(given)
    if kind is not frozenset:
        if isinstance(given, (str, bytes)):
            # As an iterable it would be a set of letters.
            raise ConfigurationError(
                f"{name} is one string and must be a set of strings. Write {name}={{{given!r}}}."
            )
        if isinstance(given, Mapping):
            # {"tasks:write": False} would grant what it means to deny.
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
    """The record after revoking it at `at`; unchanged if it is revoked already (the state is final)."""
    return record if record.revoked_at is not None else replace(record, revoked_at=at)
