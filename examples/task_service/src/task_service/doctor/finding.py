"""What is found when the service is examined."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found in one place.

    Attributes:
        subject: Where it was looked.
        ok: Whether the service can work with it.
        said: What it is like and, if it is not right, what to do.
    """

    subject: str
    ok: bool
    said: str
