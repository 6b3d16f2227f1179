"""What keys did: how many requests of a key were accepted and refused on each day, and its last request.

It is no part of any decision. A request is counted in memory, and what was counted is written in batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final, NamedTuple

from .errors import (
    AddressNotAllowed,
    ConfigurationError,
    KeyExpired,
    KeyRevoked,
    OwnerDisabled,
    Problem,
)
from .model import Principal

MAX_KEEP_DAYS: Final = 3_650
"""The longest time for which activity can be kept, in days."""

MAX_TEXT: Final = 200
"""How many characters of an address, a route and a user agent are kept."""


@dataclass(frozen=True, slots=True)
class ActivitySettings:
    """What is kept about the requests of keys.

    Attributes:
        addresses: Whether the address of a key's last request is kept.
        user_agents: Whether the `User-Agent` of a key's last request is kept.
        keep_days: For how many days activity is kept, 1 to 3,650; `flush` deletes what is older.

    Raises:
        ConfigurationError: `keep_days` is out of range.
    """

    addresses: bool = False
    user_agents: bool = False
    keep_days: int = 90

    def __post_init__(self) -> None:
        if not 1 <= self.keep_days <= MAX_KEEP_DAYS:
            raise ConfigurationError(
                f"keep_days must be 1 to {MAX_KEEP_DAYS}, such as ActivitySettings(keep_days=90)."
            )


@dataclass(frozen=True, slots=True)
class LastRequest:
    """The last request of a key, accepted or refused.

    Attributes:
        at: When it arrived.
        route: Its method and the pattern of its route, such as `GET /tasks/{task_id}`; None where the framework did not
            say.
        address: Of the client, as the server stated it; None if it is not kept.
        user_agent: What the client calls itself; None if it said nothing, or if it is not kept.
    """

    at: datetime
    route: str | None = None
    address: str | None = None
    user_agent: str | None = None


class DailyRequests(NamedTuple):
    """The requests of a key on one day.

    Attributes:
        day: In UTC.
        accepted: How many were accepted.
        refused: How many were refused although the key itself was right: it was revoked or had expired, or it may not do
            this, or not from there.
    """

    day: date
    accepted: int
    refused: int


@dataclass(frozen=True, slots=True)
class KeyActivity:
    """What a key did.

    Attributes:
        days: The days with requests, the oldest first.
        last: The last request; None if there was none, or none for longer than activity is kept.
    """

    days: tuple[DailyRequests, ...] = ()
    last: LastRequest | None = None


@dataclass(frozen=True, slots=True)
class ActivityEntry:
    """What a store adds to the activity of one key on one day.

    Attributes:
        key_id: The key.
        day: In UTC.
        accepted: How many accepted requests to add. Less than zero for a request that was counted as accepted by an earlier
            entry and was refused later.
        refused: How many refused requests to add.
        last: The last of these requests.
    """

    key_id: str
    day: date
    accepted: int
    refused: int
    last: LastRequest


# What says that a key's secret was right. `KeyUnknown` has an id too: of a key that a stranger may have guessed.
_PROVEN: Final = (Principal, KeyRevoked, KeyExpired, OwnerDisabled, AddressNotAllowed)


def key_of(found: Principal[Any] | Problem) -> str | None:
    """The key whose request ended so; None if it presented none, or one that is not proven to exist."""
    return found.key_id if isinstance(found, _PROVEN) else None


def entry_to_keep(entry: ActivityEntry, settings: ActivitySettings) -> ActivityEntry:
    """An entry as it is written: without what is not kept, and with texts that every database takes."""
    last = LastRequest(
        entry.last.at,
        _text(entry.last.route),
        _text(entry.last.address) if settings.addresses else None,
        _text(entry.last.user_agent) if settings.user_agents else None,
    )
    return ActivityEntry(entry.key_id, entry.day, entry.accepted, entry.refused, last)


def _text(text: str | None) -> str | None:
    if text is None:
        return None
    # A client writes its user agent: a NUL would fail the whole batch on PostgreSQL, each time it is tried.
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[:MAX_TEXT])
