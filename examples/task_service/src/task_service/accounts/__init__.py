"""Accounts: users, passwords, logins, sessions, API keys, the live configuration and the audit log.

One rule: a change and its audit entry share a transaction, and a change that takes access away returns only after every
lease granted before its commit has expired. So a request that starts after the answer to "disable this user" is refused
by every process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

AwaitLeaseExpiry = Callable[[], Awaitable[None]]
"""Awaited after the commit of a change that takes access away: `AsyncAuthenticator.await_lease_expiry`."""


async def no_leases() -> None:
    """For deployments and tools without leases: returns at once."""
