"""Logs failures: an outage in one line, a mistake that each request would repeat only once, others with a traceback.

While a store is down every request fails for the same reason. A traceback each time would bury the rest of the log, and
fill a disk that may be full already.
"""

from __future__ import annotations

import logging
from functools import lru_cache

from .core.errors import StoreUnavailable
from .core.immutability import NotShareable
from .core.logins import LoginFailed, NotALogin

_log = logging.getLogger("msk_auth")


def log_failure(level: int, what: str, error: Exception) -> None:
    """Log a failure and its reason.

    Args:
        level: A level of the logging module.
        what: The failure.
        error: The reason, as raised by a store or a function of the application.
    """
    name = type(error).__name__
    if isinstance(error, (NotShareable, NotALogin)):
        # Every request would log the same message.
        _log_once(level, f"{what}: {error}")
    elif isinstance(error, LoginFailed):
        # A traceback would have the error behind it, which may quote the credential.
        _log.log(level, "%s: %s", what, error)
    elif _is_outage(error):
        # Only the driver's message: SQLAlchemy's message around it may quote values, such as a digest.
        _log.log(level, "%s: %s: %r", what, name, error.__cause__ or error)
    else:
        _log.log(level, "%s: %s", what, name, exc_info=error)


def unavailable_because(error: Exception) -> StoreUnavailable:
    """The refusal for any failure: fail closed. The reason goes into the log only."""
    log_failure(logging.ERROR, "authentication cannot answer", error)
    return StoreUnavailable()


def _is_outage(error: Exception) -> bool:
    """True if the store or its connection failed, by the names of PEP 249 or of the operating system."""
    return isinstance(error, OSError | StoreUnavailable) or any(
        kind.__name__ in {"OperationalError", "TimeoutError"} for kind in type(error).__mro__
    )


@lru_cache(maxsize=128)
def _log_once(level: int, message: str) -> None:
    _log.log(level, "%s", message)
