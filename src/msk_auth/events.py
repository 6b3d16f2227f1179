"""The events of keys and credentials, for `on_event` and `on_change`."""

from __future__ import annotations

from msk_auth.core.events import (
    CredentialUsed,
    Event,
    KeyEvent,
    LeakedKey,
    LeakLocation,
    Refusal,
)

__all__ = [
    "CredentialUsed",
    "Event",
    "KeyEvent",
    "LeakLocation",
    "LeakedKey",
    "Refusal",
]
