"""Takes keys and tokens out of what is logged, wherever they came from.

This library itself never logs one. An application, a proxy library or a traceback may.
"""

from __future__ import annotations

import logging
import re

# Both patterns are compiled when something is redacted for the first time, and not by everybody.
# A JWT begins with the base64url of `{"`. What follows is taken as a whole and judged afterwards:
# a pattern that asks for the two dots itself would start over at each `eyJ` of a hostile text, and
# take the square of its length.
_MAYBE_JWT = r"eyJ[0-9A-Za-z_.-]*"
# A key from the underscore before its id on: a prefix of any application, and whatever stands
# before it, make no difference. A secret can have been taken for the beginning of a JWT already.
_KEY = r"(_[0-9A-Za-z]{12}_)(?:[0-9A-Za-z]{20,}|[0-9A-Za-z]*\[JWT\])"


def redact(text: str) -> str:
    """`text` with every API key replaced by its mask and every JWT by `[JWT]`."""
    return re.sub(_KEY, "\\1…", re.sub(_MAYBE_JWT, _without_jwt, text))


def _without_jwt(match: re.Match[str]) -> str:
    return "[JWT]" if match[0].count(".") >= 2 else match[0]


class RedactingFilter(logging.Filter):
    """A filter for handlers: redacts all text of every record, its arguments and traceback included.

    Add it to handlers, not loggers: a logger's filters do not see the records of its children. ::

        for handler in logging.getLogger().handlers:
            handler.addFilter(RedactingFilter())

    Text in `extra` is redacted as well. What a formatter renders by itself cannot be: other objects
    in `extra`, and `exc_info` where it ignores the `exc_text` that :class:`logging.Formatter` uses.
    Let such a formatter call :func:`redact`.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Redact the record in place; it is always let through."""
        try:
            record.msg = record.getMessage()
        except Exception as error:  # noqa: BLE001 - a wrong log call must not become a failed request
            record.msg = f"<a log call that cannot be formatted: {type(error).__name__}>"
        record.args = None
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        for name, value in vars(record).items():
            if isinstance(value, str):
                setattr(record, name, redact(value))
        return True
