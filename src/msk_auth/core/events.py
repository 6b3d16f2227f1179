"""Events for the application's audit log, metrics and notifications. No event contains a secret."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from typing import Any, Literal, TypeAlias

from .model import ApiKey, Principal


@dataclass(frozen=True, slots=True)
class CredentialUsed:
    """A request was authenticated. Frequent: its handler must be quick."""

    at: datetime
    principal: Principal[Any]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request was not authenticated. Frequent under attack: its handler must be quick.

    Attributes:
        code: The `code` of the answer, such as `key_revoked`.
        key_id: The public id of the presented key, if it could be read; no key may have this
            id.
    """

    at: datetime
    code: str
    key_id: str | None


@dataclass(frozen=True, slots=True)
class LeakLocation:
    """The place where a published key was found.

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
        location: The place.
    """

    key: str = field(repr=False)
    location: LeakLocation


KeyAction: TypeAlias = Literal[
    "created", "rotated", "updated", "expiry_set", "revoked", "deleted", "expiring", "leaked"
]

RevocationCause: TypeAlias = Literal[
    "owner", "delegate", "administrator", "possession", "forgotten"
]


@dataclass(frozen=True, slots=True)
class KeyEvent:
    """Something happened to a key.

    A store's `on_change` gets only changes of a key. `on_event` also gets calls that changed nothing, such as revoking a
    revoked key.

    Attributes:
        action: The change.

            - `created`: the key is stored.
            - `rotated`: `successor` replaces the key; both are stored.
            - `updated`: the owner's `fields` were edited.
            - `expiry_set`: the key's expiry was moved forward, or was already earlier.
            - `revoked`: the key is revoked, for the reason in `cause`.
            - `deleted`: the key is revoked and removed from its owner's list.
            - `expiring`: the key ends within `record.announced_days` days; from :meth:`Authenticator.announce_expiry`.
            - `leaked`: the key was found in public, at `location`, and is revoked. Notify its owner: another person may have
              used the key. `record.revoked_at` equals `at` if this report revoked it.
        at: The time.
        record: The key after the change.
        principal: The caller, who is not `record.owner_id` if they act for a service account or as an
            administrator. None if the key itself was presented, for `expiring`, `leaked` and `forget_owner`.
        successor: For `rotated`, the new key.
        cause: For `revoked`: the `owner` in a login of their own; a `delegate` with `on_behalf_of`; an `administrator` through
            `admin_keys`; `possession`, a client that presented the key itself; `forgotten`, by `forget_owner`.
        fields: For `updated`, the names of the fields that the caller set, such as `("name",)`. `record` has the values.
        location: For `leaked`, the place where the key was found.
    """

    action: KeyAction
    at: datetime
    record: ApiKey
    principal: Principal[Any] | None = None
    _: KW_ONLY
    successor: ApiKey | None = None
    cause: RevocationCause | None = None
    fields: tuple[str, ...] = ()
    location: LeakLocation | None = None


Event: TypeAlias = CredentialUsed | Refusal | KeyEvent
"""All events that the `on_event` hook receives."""
