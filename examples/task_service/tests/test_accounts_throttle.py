"""How often one address may ask for what needs no login (ASVS 5.0, 2.4.1; API Security Top 10, API4)."""

from __future__ import annotations

import pytest
from limits.aio.storage import MemoryStorage

from msk_auth import SystemClock
from msk_auth.errors import TooManyAttempts
from task_service.accounts.throttle import PublicThrottle

pytestmark = pytest.mark.anyio


def throttle(purpose: str = "revoke", storage: MemoryStorage | None = None) -> PublicThrottle:
    return PublicThrottle(purpose, 3, clock=SystemClock(), storage=storage or MemoryStorage())


async def test_an_address_has_its_share() -> None:
    it = throttle()
    for _ in range(3):
        await it.count("192.0.2.1")
    with pytest.raises(TooManyAttempts) as refused:
        await it.count("192.0.2.1")
    assert 1 <= (refused.value.retry_after or 0) <= 900
    await it.count("192.0.2.2")


async def test_a_subscriber_of_ipv6_is_one_address() -> None:
    it = throttle()
    for number in range(3):
        await it.count(f"2001:db8::{number}")
    with pytest.raises(TooManyAttempts):
        await it.count("2001:db8::ffff")
    await it.count("2001:db8:0:1::1")


async def test_clients_without_an_address_count_as_one() -> None:
    it = throttle()
    for _ in range(3):
        await it.count(None)
    with pytest.raises(TooManyAttempts):
        await it.count(None)


async def test_purposes_are_counted_apart_and_processes_together() -> None:
    storage = MemoryStorage()
    one, two, other = (
        throttle("revoke", storage),
        throttle("revoke", storage),
        throttle("report", storage),
    )
    for each in (one, two, one):
        await each.count("192.0.2.1")
    with pytest.raises(TooManyAttempts):
        await two.count("192.0.2.1")
    await other.count("192.0.2.1")
