"""The clock for tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from msk_auth import Clock
from msk_auth.testing import FrozenClock

START = datetime(2026, 5, 1, 12, tzinfo=UTC)


def test_time_stands_still_until_it_is_advanced() -> None:
    clock: Clock = FrozenClock(START)
    assert (clock.now(), clock.monotonic()) == (START, 0.0)
    assert (clock.now(), clock.monotonic()) == (START, 0.0)


def test_both_clocks_advance_together() -> None:
    clock = FrozenClock(START)
    assert clock.advance(timedelta(minutes=1, microseconds=1)) == clock.now()
    assert clock.now() == START + timedelta(minutes=1, microseconds=1)
    assert clock.monotonic() == pytest.approx(60.000001)


def test_sleeping_takes_no_time_and_passes_it() -> None:
    clock = FrozenClock(START)
    clock.sleep(3600)
    assert clock.now() == START + timedelta(hours=1)


@pytest.mark.anyio
async def test_sleeping_on_an_event_loop_passes_it_too() -> None:
    clock = FrozenClock(START)
    await clock.async_sleep(0.5)
    assert clock.now() == START + timedelta(milliseconds=500)


def test_time_does_not_go_back() -> None:
    clock = FrozenClock(START)
    with pytest.raises(ValueError, match="does not go back"):
        clock.advance(timedelta(microseconds=-1))
    assert clock.now() == START


def test_it_shows_utc_and_needs_a_zone() -> None:
    assert FrozenClock(START.astimezone(timezone(timedelta(hours=3)))).now().tzinfo is UTC
    with pytest.raises(ValueError, match="time zone"):
        FrozenClock(START.replace(tzinfo=None))
