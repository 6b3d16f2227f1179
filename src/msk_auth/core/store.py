"""The protocols of a store of API keys, blocking and asynchronous, with one meaning.

A store must keep promises that no caller can check:

- **Revoking is monotonic.** Once `revoked_at` is set no method clears or changes it, and no method
  writes whole records back: every change updates only its own columns.
- **An acknowledged change survives** the death of the process, and every `find` that starts
  after the change returned sees it, in any process.
- **The limit of active keys is exact** under any number of parallel inserts and rotations.

A store that cannot answer raises in bounded time, :data:`READ_SECONDS` for a look-up. The authenticator turns any error
into :class:`~msk_auth.errors.StoreUnavailable`. `msk_auth.testing.StoreContract` tests all of this.

A store may take a hook of the application, `on_change(connection, event)`, and call it inside the transaction of each
write that changes a key: the hook's writes and the change commit together or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from inspect import isawaitable, iscoroutine
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from .errors import ConfigurationError
from .events import KeyEvent
from .model import ApiKey

READ_SECONDS: Final = 3.0
"""How long a look-up may take, including the wait for a connection, so that the client gets a 503 within five seconds.

Under a lease two more seconds may pass before the look-up: one to wait for another request with the same credential, and
one to record the lease.
"""


def offered(store: object, name: str) -> Any:
    """An optional method of a store; None if the store lacks it or sets it to None.

    This reads the attribute and does not inspect the class, so that it also finds methods behind a proxy (metrics,
    tracing) that forwards with `__getattr__`.
    """
    method = getattr(store, name, None)
    return method if callable(method) else None


KeyChange: TypeAlias = Callable[[ApiKey], Sequence[KeyEvent]]
"""The meaning of a write: takes the record after the write, and makes the events for the store's `on_change`."""


def require_change(change: KeyChange | None) -> KeyChange:
    """The change of a write, which a store with an `on_change` requires.

    Raises:
        ConfigurationError: There is no change: the write would be missing from the application's audit log.
    """
    if change is None:
        raise ConfigurationError(
            "This store has an on_change hook, and this write has no event. Pass change=…,"
            " a function that takes the record and returns the events."
        )
    return change


C = TypeVar("C")


def call_on_change(
    on_change: Callable[[C, KeyEvent], object], connection: C, events: Sequence[KeyEvent]
) -> None:
    """Call the hook of a blocking store for each event, in order.

    Raises:
        ConfigurationError: The hook is async, and nothing would await it.
        Exception: The exception of the hook.
    """
    for event in events:
        answer = on_change(connection, event)
        if isawaitable(answer):
            if iscoroutine(answer):
                answer.close()
            raise ConfigurationError(
                "on_change is async, and this store blocks: pass a plain function, or use the async store."
            )


class WrongRecord(Exception):
    """A look-up by id returned the record of another id. It becomes a :class:`~msk_auth.errors.StoreUnavailable`.

    This happens if two programs share a database connection by mistake, for example behind a pooler in transaction mode,
    and one reads the result of the other's statement. Such a result proves nothing about the credential.
    """

    def __init__(self, what: str) -> None:
        super().__init__(
            f"Looking up {what} returned a record with another id. Check that the look-up returns the record with the"
            " requested id, and that no pooler mixes the sessions of the database."
        )


class RecordedLease(NamedTuple):
    """The entry of the register for a process that uses leases.

    Attributes:
        duration: The length of its leases, in whole microseconds.
        holder: The process, by a unique random name of at most 32 letters and digits.
        mark: A number that the process changes regularly. If it stays the same, the process has ended.
    """

    duration: timedelta
    holder: str
    mark: int
