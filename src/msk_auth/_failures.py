"""Logs failures: outages in one line, repeated mistakes only once, others with a traceback.

While a store is down every request fails for the same reason. A traceback each time would bury the rest of the log, and
fill a disk that may already be full.
"""

from __future__ import annotations

import logging
from functools import lru_cache

from .core.errors import Problem, StoreUnavailable
from .core.immutability import NotShareable
from .core.logins import LoginFailed, NotALogin, raised_at

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
        # A traceback would include the cause, which may quote the credential.
        _log.log(level, "%s: %s", what, error)
    elif _is_outage(error):
        # Only the driver's message: SQLAlchemy's message around it may quote values, such as a digest.
        _log.log(level, "%s: %s: %r", what, name, error.__cause__ or error)
    else:
        _log.log(level, "%s: %s", what, name, exc_info=error)


def look_up_failed(name: str, error: Exception) -> None:
    """Return if a function of the application raised because it cannot read an id, and so finds nothing.

    This is a plain `ValueError`, as from `int` and `UUID`, a `DataError` of a database, or an `OverflowError`, as from SQLite for
    a number of more than 64 bits. A subclass of `ValueError` may have another cause, such as an answer that is not JSON.

    Args:
        name: The function's name, as an argument of the authenticator.
        error: Its exception.

    Raises:
        StoreUnavailable: The function failed for another reason, which was logged.
        Exception: A problem or an outage of the database, unchanged.
    """
    if isinstance(error, Problem) or _is_outage(error):
        raise error
    # SQLAlchemy keeps the exception of a type or the driver as `orig`.
    raised = (error, getattr(error, "orig", None))
    kinds = [kind.__name__ for each in raised for kind in type(each).__mro__]
    if "DataError" in kinds or any(type(each) in {ValueError, OverflowError} for each in raised):
        message = f"the application's {name} raised {type(error).__name__} at {raised_at(error)}."
        _log_once(logging.WARNING, f"{message} Return None for an id that is no user's.")
        return
    log_failure(logging.ERROR, f"the application's {name} raised", error)
    raise StoreUnavailable from error


def unavailable_because(error: Exception) -> StoreUnavailable:
    """The refusal for any failure: fail closed. Only the log has the reason."""
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
