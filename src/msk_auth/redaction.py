"""Takes keys and tokens out of what is logged, wherever they came from.

This library itself never logs one. An application, a proxy library or a traceback may.
"""

from __future__ import annotations

import logging
import re

_KEY = re.compile(r"\b([a-z][a-z0-9]{1,15}_[0-9A-Za-z]{12}_)[0-9A-Za-z]{20,}")
# Three base64url segments of which the first begins with `{"`.
_JWT = re.compile(r"\beyJ[0-9A-Za-z_-]+\.[0-9A-Za-z_-]+\.[0-9A-Za-z_-]*")


def redact(text: str) -> str:
    """`text` with every API key replaced by its mask and every JWT by `[JWT]`."""
    return _JWT.sub("[JWT]", _KEY.sub("\\1…", text))


class RedactingFilter(logging.Filter):
    """A filter for handlers: redacts the message, its arguments and the traceback of every record.

    Add it to handlers, not loggers: a logger's filters do not see the records of its children. ::

        for handler in logging.getLogger().handlers:
            handler.addFilter(RedactingFilter())
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Redact the record in place; it is always let through."""
        record.msg = redact(record.getMessage())
        record.args = None
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = redact(record.exc_text)
        if record.stack_info:
            record.stack_info = redact(record.stack_info)
        return True
