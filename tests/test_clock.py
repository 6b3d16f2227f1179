"""The one place that reads a clock."""

from __future__ import annotations

import runpy
import time
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from msk_auth import SystemClock
from msk_auth import clock as module

pytestmark = pytest.mark.anyio


def test_now_is_aware_and_in_utc() -> None:
    before = datetime.now(UTC)
    now = SystemClock().now()
    assert now.tzinfo is UTC
    assert before <= now <= datetime.now(UTC)


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="this system has no CLOCK_BOOTTIME")
def test_monotonic_runs_on_while_the_machine_sleeps() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= SystemClock().monotonic() <= time.clock_gettime(time.CLOCK_BOOTTIME)


def test_monotonic_falls_back_where_there_is_no_such_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)
    clock = runpy.run_path(module.__file__)["SystemClock"]()
    before = time.monotonic()
    assert before <= clock.monotonic() <= time.monotonic()


def test_sleep_ends_when_the_time_has_passed_and_not_before() -> None:
    clock = SystemClock()
    before = clock.monotonic()
    clock.sleep(0.02)
    assert clock.monotonic() - before >= 0.02


async def test_sleeping_on_a_loop_ends_when_the_time_has_passed_and_not_before() -> None:
    clock = SystemClock()
    before = clock.monotonic()
    await clock.async_sleep(0.02)
    assert clock.monotonic() - before >= 0.02


def test_a_sleep_that_ends_too_early_is_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    # The machine slept: `time.sleep` counts only the time it was awake, or a signal came.
    passed = [0.0]
    slept: list[float] = []

    class Dozing(SystemClock):
        def monotonic(self) -> float:
            return passed[0]

    def doze(seconds: float) -> None:
        slept.append(seconds)
        passed[0] += 0.75

    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=doze))
    Dozing().sleep(1)
    assert slept == [1, 0.25]


@pytest.mark.parametrize("seconds", [0, -1])
def test_no_time_is_no_sleep(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr(SystemClock, "monotonic", lambda _: 0.0)
    SystemClock().sleep(seconds)
