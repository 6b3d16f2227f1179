"""Removes keys and tokens from log records.

This library never logs them, but an application, another library or a traceback may.
"""

from __future__ import annotations

import logging
import re

__all__ = ["RedactingFilter", "redact"]

# Both patterns are compiled on first use, since many programs never redact.
# A JWT begins with the base64url of `{"`. The rest is matched as a whole and checked afterwards: a
# pattern with the two dots would restart at each `eyJ` of a hostile text, in time that grows with the
# square of its length.
_MAYBE_JWT = r"eyJ[0-9A-Za-z_.-]*"
# A key without its prefix, from the underscore before its id. The first pattern may already have replaced a part of the
# secret that looks like the beginning of a JWT.
_KEY = r"(_[0-9A-Za-z]{12}_)(?:[0-9A-Za-z]{20,}|[0-9A-Za-z]*\[JWT\])"


def redact(text: str) -> str:
    """`text` with every API key replaced by its mask and every JWT by `[JWT]`."""
    return re.sub(_KEY, "\\1…", re.sub(_MAYBE_JWT, _without_jwt, text))


def _without_jwt(match: re.Match[str]) -> str:
    return "[JWT]" if match[0].count(".") >= 2 else match[0]


class RedactingFilter(logging.Filter):
    """A filter for handlers: redacts all text of every record, including its arguments and traceback.

    Add the filter to handlers, not loggers: a logger's filters do not see the records of its children. ::

        for handler in logging.getLogger().handlers:
            handler.addFilter(RedactingFilter())

    Text in `extra` is redacted as well. The filter cannot redact objects that a formatter renders itself: other objects in
    `extra`, and `exc_info` if the formatter ignores `exc_text`. Let such a formatter call :func:`redact`.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Redact the record in place. Returns True for every record."""
        try:
            record.msg = record.getMessage()
        except Exception as error:  # noqa: BLE001 - a wrong log call must not fail a request
            record.msg = f"<a log call that cannot be formatted: {type(error).__name__}>"
        record.args = None
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        for name, value in vars(record).items():
            if isinstance(value, str):
                setattr(record, name, redact(value))
        return True
