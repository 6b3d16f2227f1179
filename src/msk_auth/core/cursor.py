"""The position at which a page of a listing ended, as text that is opaque to the client."""

from __future__ import annotations

import base64
import binascii
import re
from datetime import UTC, datetime, timedelta

from .errors import InputInvalid

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
# Twelve digits of seconds and six of microseconds: enough for every moment up to the year 9999.
_DECODED = rb"(0|-?[1-9][0-9]{0,17})\.([0-9A-Za-z_-]{1,64})"


class PageCursor:
    """Encodes and decodes the position `(created_at, id)` of keyset pagination."""

    @staticmethod
    def encode(created_at: datetime, item_id: str) -> str:
        """The cursor of a page that ended with this item."""
        raw = f"{(created_at - _EPOCH) // _MICROSECOND}.{item_id}"
        return base64.urlsafe_b64encode(raw.encode()).rstrip(b"=").decode()

    @staticmethod
    def decode(cursor: str) -> tuple[datetime, str]:
        """The position that a cursor stands for.

        Raises:
            InputInvalid: It was not made by :meth:`encode` (field `cursor`).
        """
        try:
            # No position has a `-` or `_` in base64: all of its bytes are ASCII, and none is `>`, `?` or `~`.
            raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), validate=True)
            match = re.fullmatch(_DECODED, raw)
            if match is not None:
                return _EPOCH + int(match[1]) * _MICROSECOND, match[2].decode()
        except (binascii.Error, ValueError, OverflowError):
            pass
        raise InputInvalid.of(
            "cursor", "This is not a cursor of this listing. Begin again without one."
        )
