"""The two drivers of the core: one that blocks and one that awaits.

`Authenticator` and `AsyncAuthenticator` hold a store, the application's look-ups and a clock, and
run the flows of `core.flows` against them. They decide nothing. Whatever a store or a look-up
raises becomes :class:`~msk_auth.StoreUnavailable`: fail closed.
"""

from __future__ import annotations

from .awaiting import AsyncAuthenticator
from .blocking import Authenticator
from .driver import PROBLEM_BASE

__all__ = ["PROBLEM_BASE", "AsyncAuthenticator", "Authenticator"]
