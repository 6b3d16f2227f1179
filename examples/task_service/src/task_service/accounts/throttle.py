"""Limits for guesses of passwords, and for requests of routes without a login.

Three windows of 15 minutes count wrong passwords: for one account from one address, for one address, and for one
account from anywhere (at most 100, NIST SP 800-63B-4, section 3.2.2). An attempt is counted before the password is
verified, so parallel guesses gain nothing; a correct password removes its count. Unknown accounts are counted like existing
ones. The name of a count is a keyed digest: users mistakenly type their password as their name, and the database must not
store it.

Other writes for a client without a login, such as the audit entry of a refused login at the identity
provider, have their own window for each address. A request over a limit is not counted and writes nothing.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any, Final

from sqlalchemy import case, delete, or_, select, update

from msk_auth import Clock
from msk_auth.errors import StoreUnavailable, TooManyAttempts
from task_service.db.engine import Database
from task_service.db.schema import login_attempts
from task_service.request_record import request_address

WINDOW: Final = timedelta(minutes=15)
PER_PAIR: Final = 10
PER_ADDRESS: Final = 50
PER_ACCOUNT: Final = 100

REVOCATIONS: Final = 60
"""The most keys that an address may revoke by possession in a window."""

LEAK_REPORTS: Final = 300
"""The most reports from an address in a window. A report of GitHub has many matches."""

REFUSED_LOGINS: Final = 50
"""The most refused logins at the identity provider from an address in a window."""

STRAY_ANSWERS: Final = 50
"""The most answers of the identity provider from an address in a window without a login that the browser began."""

_COUNTS = login_attempts.c


class Attempts:
    """Counts in the service's database, for all processes of a deployment together.

    Callers pass several counts in the same order of kinds, so that two transactions cannot deadlock.

    Args:
        db: The database.
        clock: Decides when a window is over. A window that ends later than it can is over too: a clock was set back.

    Every method raises StoreUnavailable when the database does not answer: an attempt that cannot be counted is refused.
    """

    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    async def check(self, limits: Mapping[str, int]) -> None:
        """Refuse if a count has reached its limit; count nothing.

        Args:
            limits: The limit of each count.

        Raises:
            TooManyAttempts: A count has reached its limit.
        """
        now = self._clock.now()
        counted = select(_COUNTS.key, _COUNTS.attempts, _COUNTS.expires_at).where(
            _COUNTS.key.in_(limits), _COUNTS.expires_at > now, _COUNTS.expires_at <= now + WINDOW
        )
        async with self._db.read() as connection:
            for row in await connection.execute(counted):
                if row.attempts >= limits[row.key]:
                    raise _refusal(row.expires_at - now)

    async def count(self, limits: Mapping[str, int]) -> None:
        """Add an attempt to every count, or to none.

        Args:
            limits: As for :meth:`check`.

        Raises:
            TooManyAttempts: A count has reached its limit.
        """
        await self.check(limits)
        now = self._clock.now()
        # Parallel requests may all have passed the check; the count decides. A refusal undoes the other counts: a refused
        # client must not use up other limits, such as the limit of its address.
        async with self._db.write() as connection:
            for key, most in limits.items():
                row = (await connection.execute(self._adding(key, now))).one()
                if row.attempts > most:
                    raise _refusal(row.expires_at - now)

    async def take_back(self, *keys: str, clear: str | None = None) -> None:
        """Remove an attempt from each of these counts, and all attempts from the count `clear`."""
        async with self._db.write() as connection:
            for key in keys:
                await connection.execute(
                    update(login_attempts)
                    .where(_COUNTS.key == key, _COUNTS.attempts > 0)
                    .values(attempts=0 if key == clear else _COUNTS.attempts - 1)
                )

    async def purge(self) -> None:
        """Delete the windows that are over."""
        async with self._db.write() as connection:
            await connection.execute(
                delete(login_attempts).where(_COUNTS.expires_at <= self._clock.now())
            )

    def _adding(self, key: str, now: datetime) -> Any:
        first = self._db.insert(login_attempts).values(key=key, attempts=1, expires_at=now + WINDOW)
        over = or_(_COUNTS.expires_at <= now, _COUNTS.expires_at > now + WINDOW)
        return first.on_conflict_do_update(
            index_elements=[_COUNTS.key],
            set_={
                "attempts": case((over, 1), else_=_COUNTS.attempts + 1),
                "expires_at": case((over, first.excluded.expires_at), else_=_COUNTS.expires_at),
            },
        ).returning(_COUNTS.attempts, _COUNTS.expires_at)


def _refusal(left: timedelta) -> TooManyAttempts:
    return TooManyAttempts(math.ceil(left.total_seconds()))


class LoginThrottle:
    """Counts attempts to log in, by account and by the address of the request.

    Args:
        attempts: The counts.
        key: The key of the digests, the same in all processes of a deployment.

    :meth:`attempt` raises StoreUnavailable like :class:`Attempts`.
    """

    def __init__(self, attempts: Attempts, *, key: bytes) -> None:
        self._key = key
        self._attempts = attempts

    async def attempt(self, account: str) -> None:
        """Count an attempt before its password is verified.

        Args:
            account: The typed name, normalised.

        Raises:
            TooManyAttempts: A limit is reached. The caller must not verify the password.
        """
        await self._attempts.count(self._limits(account))

    async def succeeded(self, account: str) -> None:
        """Clear the attempts on this account from this address, and remove this attempt from the other counts."""
        by_address, by_pair, by_account = self._limits(account)
        await self._take_back(by_address, by_pair, by_account, clear=by_pair)

    async def withdraw(self, account: str) -> None:
        """Remove an attempt whose password was not verified."""
        await self._take_back(*self._limits(account))

    async def _take_back(self, *names: str, clear: str | None = None) -> None:
        # Without the database the attempts count until their window ends. The caller's answer must not depend on that: the
        # session of a successful login has begun.
        with suppress(StoreUnavailable):
            await self._attempts.take_back(*names, clear=clear)

    def _limits(self, account: str) -> dict[str, int]:
        network = throttled_network(request_address())
        return {
            self._name("address", network): PER_ADDRESS,
            self._name("pair", account, network): PER_PAIR,
            self._name("account", account): PER_ACCOUNT,
        }

    def _name(self, kind: str, *values: str) -> str:
        # With lengths, so that two lists of values never give the same text.
        text = "".join(f"{len(value)}:{value}" for value in (kind, *values))
        digest = hmac.digest(self._key, text.encode("utf-8", "replace"), "sha256")
        return f"{kind}/{digest.hex()[:40]}"


class PublicThrottle:
    """Counts the requests of each address for one purpose; an IPv6 subscriber counts as one address.

    Args:
        purpose: The count's name.
        most: The maximum number of requests from an address in a window.
        attempts: The counts.
    """

    def __init__(self, purpose: str, most: int, attempts: Attempts) -> None:
        self._purpose = purpose
        self._most = most
        self._attempts = attempts

    async def check(self) -> None:
        """Raise errors like :meth:`count`, but count nothing: for requests that are counted only when refused."""
        await self._attempts.check(self._limit())

    async def count(self) -> None:
        """Count the current request.

        Raises:
            TooManyAttempts: The address has reached its limit.
            StoreUnavailable: As for :class:`Attempts`.
        """
        await self._attempts.count(self._limit())

    def _limit(self) -> dict[str, int]:
        return {f"{self._purpose}/{throttled_network(request_address())}": self._most}


def throttled_network(address: str | None) -> str:
    """The network that counts as one client: an IPv4 address, or the /64 of one IPv6 subscriber."""
    try:
        parsed = ip_address(address or "")
    except ValueError:
        return "unknown"
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ip_network((int(parsed), 64), strict=False))
    return str(parsed)
