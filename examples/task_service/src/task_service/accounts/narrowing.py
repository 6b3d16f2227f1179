"""What must happen when somebody's access has been narrowed, and who is told.

Verifications may be reused for a moment (the library's lease). Whatever takes access away commits first and then
waits until every such moment is over; only then is it acknowledged. So a request that starts after the answer to
"disable this user" is refused, on every machine.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

AccessNarrowed = Callable[[], Awaitable[None]]
"""Awaited after the commit of a change that takes access away: `AsyncAuthenticator.await_lease_expiry`."""


async def nothing_is_reused() -> None:
    """For deployments and tools without a lease: there is nothing to wait for."""
