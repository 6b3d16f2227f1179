"""Of requests with the same credential that arrive together, one verifies and the others wait for what it leaves.

This saves reads and decides nothing: a request that has waited looks for the entry of a lease, and verifies by itself if
there is none. It waits for :data:`MAX_WAIT_SECONDS` at most, so that a read that got stuck holds up no other request for
long.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from msk_auth._fork import after_fork_in_child

MAX_WAIT_SECONDS: Final = 1.0
"""How long a request waits for another one's verification before it makes its own."""


class Flight(NamedTuple):
    """A verification that is under way.

    Attributes:
        place: Where the table has it.
        landed: A `threading.Event` or an `asyncio.Event`, set when it has ended, successfully or not.
        leads: True for the request that makes it, False for one that waits.
    """

    place: Hashable
    landed: Any
    leads: bool


class SingleFlight:
    """The verifications that are under way in one process; safe to use from several threads and event loops.

    Args:
        make_signal: Makes what the others wait for: `threading.Event` or `asyncio.Event`.
        where: Who may wait for each other. An event loop waits for flights of its own alone: no loop depends on
            whether another one still runs.
    """

    def __init__(self, make_signal: Callable[[], Any], where: Callable[[], Hashable]) -> None:
        self._make_signal = make_signal
        self._where = where
        self._under_way: dict[Hashable, Any] = {}
        after_fork_in_child(self._renew)

    def join(self, what: Hashable) -> Flight:
        """The flight that is under way for `what`, or a new one, led by the caller and ended with :meth:`land`."""
        place = (self._where(), what)
        signal = self._make_signal()
        # One operation of the dictionary, so that of several threads one leads.
        landed = self._under_way.setdefault(place, signal)
        return Flight(place, landed, leads=landed is signal)

    def land(self, flight: Flight) -> None:
        """End a flight that the caller leads. Those that wait go on."""
        self._under_way.pop(flight.place, None)
        # A loop that was closed under its tasks cannot wake them, and need not: they are gone with it.
        with suppress(RuntimeError):
            flight.landed.set()

    def _renew(self) -> None:
        self._under_way = {}
