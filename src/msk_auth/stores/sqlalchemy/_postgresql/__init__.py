"""The short way of reading on PostgreSQL with psycopg: connections that are held, and a statement that is prepared.

`reading` says what is asked and what an answer means, `wire` what a held connection is. Each is finished twice, side by
side: `blocking` with `blocking_wire` for threads, `awaiting` with `awaiting_wire` for event loops.
"""

from __future__ import annotations

from .awaiting import AwaitingReader
from .blocking import BlockingReader
from .reading import is_plain_postgresql

__all__ = ["AwaitingReader", "BlockingReader", "is_plain_postgresql"]
