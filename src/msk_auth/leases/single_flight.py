"""Of several requests with the same credential one verifies it, and the others wait for the entry that it caches.

This saves reads and decides nothing: a request that has waited looks for the entry of a lease, and verifies the credential
itself if there is none. It waits for at most :data:`MAX_WAIT_SECONDS`, so a read that hangs delays no other request for
long.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from msk_auth._fork import after_fork_in_child

MAX_WAIT_SECONDS: Final = 1.0
"""How long a request waits for another request's verification before it makes its own."""


class Flight(NamedTuple):
    """One verification, shared by the requests that arrive while it runs.

    Attributes:
        key: Identifies it in the table.
        finished: A `threading.Event` or an `asyncio.Event`, set when the verification has succeeded or failed.
        leads: True for the request that verifies, False for one that waits.
    """

    key: Hashable
    finished: Any
    leads: bool


class SingleFlight:
    """The verifications that run in one process; safe to use from several threads and event loops.

    Args:
        make_event: Makes what the other requests wait for: `threading.Event` or `asyncio.Event`.
        scope: Returns what the requests that may wait for each other have in common. Each event loop is a scope of its
            own, so that no loop depends on whether another one still runs.
    """

    def __init__(self, make_event: Callable[[], Any], scope: Callable[[], Hashable]) -> None:
        self._make_event = make_event
        self._scope = scope
        self._flights: dict[Hashable, Any] = {}
        after_fork_in_child(self._renew)

    def join(self, what: Hashable) -> Flight:
        """The flight for `what`: the one that runs, or a new one that the caller leads. End it with :meth:`finish`."""
        key = (self._scope(), what)
        event = self._make_event()
        # One operation of the dictionary, so that one of several threads leads.
        finished = self._flights.setdefault(key, event)
        return Flight(key, finished, leads=finished is event)

    def finish(self, flight: Flight) -> None:
        """End a flight and wake the requests that wait for it. Has no effect for a request that does not lead it."""
        if not flight.leads:
            return
        self._flights.pop(flight.key, None)
        # If its event loop was closed, nothing can be woken, and no request of that loop waits any more.
        with suppress(RuntimeError):
            flight.finished.set()

    def _renew(self) -> None:
        self._flights = {}
