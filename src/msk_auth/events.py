"""What happens to keys and credentials: the events that `on_event` and `on_change` get."""

from __future__ import annotations

from msk_auth.core.events import (
    CredentialUsed,
    Event,
    KeyCreated,
    KeyDeleted,
    KeyEvent,
    KeyExpiring,
    KeyExpirySet,
    KeyLeaked,
    KeyRevocation,
    KeyRotated,
    KeyUpdated,
    LeakedKey,
    LeakLocation,
    Refusal,
    RevocationCause,
)

__all__ = [
    "CredentialUsed",
    "Event",
    "KeyCreated",
    "KeyDeleted",
    "KeyEvent",
    "KeyExpiring",
    "KeyExpirySet",
    "KeyLeaked",
    "KeyRevocation",
    "KeyRotated",
    "KeyUpdated",
    "LeakLocation",
    "LeakedKey",
    "Refusal",
    "RevocationCause",
]
