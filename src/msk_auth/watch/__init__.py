"""Watches: verify open connections, such as websockets and event streams, as long as they last.

One rule: an open connection ends as soon as a new request with its credential would be refused, within two seconds.

A request is verified once, but a websocket or an event stream stays open. A watch verifies its principal again, by the
public ids of key, session and owner, for as long as it is used. In detail:

1. A watch is verified when it begins, since its principal may have been admitted long before, and then at least once in each
   interval, which is at most a second, by records that were read less than two intervals before. So a revocation that
   has returned takes effect within two seconds.
2. Each key, session and owner is read once in an interval, however many watches of the process depend on it. On an event
   loop, watches that begin read beside that, and share their reads for a tenth of an interval.
3. A refusal ends a watch for good. A failed look-up does not, but a watch that could not be verified for
   :data:`MAX_UNVERIFIED` ends with :class:`~msk_auth.StoreUnavailable`: fail closed. A look-up that hangs counts as
   failed, and delays no watch that does not depend on it, except for those that begin together, by one interval. On an
   event loop neither a block nor a stream begins before it was verified.

Leases are not used here: watches read the records themselves.
"""

from __future__ import annotations

from ._verdict import MAX_INTERVAL, MAX_UNVERIFIED, WatchedReads, check_interval
from .awaiting import LOOK_UPS_AT_ONCE, AsyncWatch, AsyncWatches
from .blocking import Watch, Watches

__all__ = [
    "LOOK_UPS_AT_ONCE",
    "MAX_INTERVAL",
    "MAX_UNVERIFIED",
    "AsyncWatch",
    "AsyncWatches",
    "Watch",
    "WatchedReads",
    "Watches",
    "check_interval",
]
