"""What happened, for the application's audit log, metrics and notifications. No event holds a secret."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeAlias

from .model import ApiKey, Principal


@dataclass(frozen=True, slots=True)
class CredentialUsed:
    """A request was authenticated. Frequent: a handler of it must be quick."""

    at: datetime
    principal: Principal[Any]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request was not authenticated. Frequent under attack: a handler of it must be quick.

    Attributes:
        code: The `code` of the answer, such as `key_revoked`.
        key_id: The public id of the key that was presented, where one could be read; it may name no
            key at all.
    """

    at: datetime
    code: str
    key_id: str | None


@dataclass(frozen=True, slots=True)
class KeyCreated:
    """A key was created and is stored.

    Attributes:
        principal: The caller. Their id is `principal.owner.id`, and the owner of the key is `record.owner_id`: another one if
            the caller acts on behalf of a service account. The same holds for the other events of changes.
    """

    at: datetime
    principal: Principal[Any]
    record: ApiKey


@dataclass(frozen=True, slots=True)
class KeyRotated:
    """A key was replaced by a successor; both are stored."""

    at: datetime
    principal: Principal[Any]
    record: ApiKey
    successor: ApiKey


class RevocationCause(StrEnum):
    """Why a key was revoked.

    Attributes:
        OWNER: Its owner revoked it in an interactive login.
        DELEGATE: A person who may act for its owner revoked it, with `on_behalf_of`.
        ADMINISTRATOR: An administrator revoked it, through `AdminKeys`.
        POSSESSION: A client presented the key itself.
        FORGOTTEN: The application called `forget_owner`.
    """

    OWNER = "owner"
    DELEGATE = "delegate"
    ADMINISTRATOR = "administrator"
    POSSESSION = "possession"
    FORGOTTEN = "forgotten"


@dataclass(frozen=True, slots=True)
class KeyRevocation:
    """A key is revoked. Revoking again is no error: each call sends this to `on_event`, and only a change to `on_change`.

    Attributes:
        principal: The caller; None if the key itself was presented, or for `forget_owner`.
        cause: Why.
    """

    at: datetime
    principal: Principal[Any] | None
    record: ApiKey
    cause: RevocationCause = RevocationCause.OWNER


@dataclass(frozen=True, slots=True)
class LeakLocation:
    """Where a published key was found.

    Attributes:
        reporter: The reporter, such as `github`.
        source: The kind of place, in the reporter's words, such as `commit`.
        url: The place; None if the reporter names none.
    """

    reporter: str
    source: str
    url: str | None


@dataclass(frozen=True, slots=True)
class LeakedKey:
    """A key that was found in public.

    Attributes:
        key: The key. `repr` does not show it.
        location: Where it was found.
    """

    key: str = field(repr=False)
    location: LeakLocation


@dataclass(frozen=True, slots=True)
class KeyLeaked:
    """A key was found in public, and is revoked. `on_event` gets one for each place, also when it is reported again.

    Notify its owner: the key stopped working, and another person may have used it before. `record.revoked_at` equals
    `at` if this report revoked it. Only then does `on_change` get the event: a report of a revoked key changes no key.
    """

    at: datetime
    record: ApiKey
    location: LeakLocation


@dataclass(frozen=True, slots=True)
class KeyExpirySet:
    """The end of a key was brought forward, or was earlier already; only the first is a change for `on_change`."""

    at: datetime
    principal: Principal[Any]
    record: ApiKey


@dataclass(frozen=True, slots=True)
class KeyDeleted:
    """A key is revoked and removed from its owner's list.

    Attributes:
        principal: The caller; None for `forget_owner`, which sends this for keys that were revoked before.
    """

    at: datetime
    principal: Principal[Any] | None
    record: ApiKey


@dataclass(frozen=True, slots=True)
class KeyUpdated:
    """Something that people edit was changed; without a change only `on_event` gets it.

    Attributes:
        fields: What the caller has set, such as `("name",)`. `record` has the values.
    """

    at: datetime
    principal: Principal[Any]
    record: ApiKey
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KeyExpiring:
    """A key ends soon. Sent by :class:`~msk_auth.KeyExpiry`, once for each key and number of days.

    Attributes:
        days: It ends within this many days: 30, 7 or 1.
    """

    at: datetime
    record: ApiKey
    days: int


KeyEvent: TypeAlias = (
    KeyCreated
    | KeyRotated
    | KeyRevocation
    | KeyLeaked
    | KeyExpirySet
    | KeyDeleted
    | KeyUpdated
    | KeyExpiring
)
"""An event of a change to a key, which a store's `on_change` hook receives."""

Event: TypeAlias = CredentialUsed | Refusal | KeyEvent
"""All events that the `on_event` hook receives."""
