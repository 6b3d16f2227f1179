"""How a failure is logged: an outage in one line, a user that cannot be shared once, any other mistake with its traceback.

While a store is down everything fails, and always for the same reason: a traceback each time would bury the rest of the
log, and fill a disk that may be full already.
"""

from __future__ import annotations

import logging
from functools import lru_cache

from .core.errors import StoreUnavailable
from .core.immutability import NotShareable

_log = logging.getLogger("msk_auth")


def log_failure(level: int, what: str, error: Exception) -> None:
    """Log what could not be done, and why.

    Args:
        level: Of the logging module.
        what: What could not be done.
        error: Why; whatever a store, or a function of the application, has raised.
    """
    name = type(error).__name__
    if isinstance(error, NotShareable):
        # It says what to write, and every request would say it again.
        _log_once(level, f"{what}: {error}")
    elif _is_outage(error):
        # The driver's own words. SQLAlchemy's, around them, may quote values such as a digest.
        _log.log(level, "%s: %s: %r", what, name, error.__cause__ or error)
    else:
        _log.log(level, "%s: %s", what, name, exc_info=error)


def unavailable_because(error: Exception) -> StoreUnavailable:
    """The refusal that every failure becomes: fail closed. The reason is for the log alone."""
    log_failure(logging.ERROR, "authentication cannot answer", error)
    return StoreUnavailable()


def _is_outage(error: Exception) -> bool:
    """True if a store failed in a way that its machines can: by the name PEP 249 gives it, or the system."""
    return isinstance(error, OSError | StoreUnavailable) or any(
        kind.__name__ in {"OperationalError", "TimeoutError"} for kind in type(error).__mro__
    )


@lru_cache(maxsize=128)
def _log_once(level: int, message: str) -> None:
    _log.log(level, "%s", message)
