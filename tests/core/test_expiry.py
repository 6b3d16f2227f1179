"""The end of keys is announced once at 30, 7 and 1 days."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.core.support import BLOCKING, MICROSECOND, NOW, SECOND, MakeWorld

from msk_auth import ApiKey, KeyLimits
from msk_auth.core import administration
from msk_auth.errors import StoreUnavailable
from msk_auth.events import KeyEvent
from msk_auth.stores.memory import MemoryKeyStore
from msk_auth.testing import ChangeRecorder

DAY = timedelta(days=1)
HOUR = timedelta(hours=1)


class Job:
    """The scheduled job of an application."""

    def __init__(self, make_world: MakeWorld, **options: Any) -> None:
        self.world = make_world(**options)
        self.hook = ChangeRecorder()
        self.changes = self.hook.events
        self.world.store.inner = MemoryKeyStore(on_change=self.hook)

    def announce(self) -> int:
        count: int = self.world.call("announce_expiry")
        return count

    def put(self, key_id: str, left: timedelta | None, **more: Any) -> ApiKey:
        """A key that was made long ago and has this much time left."""
        ends_at = None if left is None else self.world.clock.moment + left
        fields = {"created_at": NOW - 900 * DAY, "expires_at": ends_at, **more}
        record = ApiKey(key_id, "name", "ann", "digest", None, **fields)
        self.world.store.put(record)
        return record

    def announced(self) -> list[tuple[str, int]]:
        """What a run announces: keys and days, in order."""
        self.changes.clear()
        self.world.events.clear()
        count = self.announce()
        assert self.changes == self.world.events
        assert count == len(self.changes)
        found: list[tuple[str, int]] = []
        for event in self.changes:
            assert event.action == "expiring"
            assert event.at == self.world.clock.moment
            assert event.record == self.world.store.get(event.record.id)
            assert event.record.announced_days is not None
            found.append((event.record.id, event.record.announced_days))
        return found


@pytest.fixture
def job() -> Job:
    return Job(BLOCKING)


# Announcing


def test_a_key_is_announced_once_at_30_7_and_1_days(job: Job) -> None:
    job.put("k", 100 * DAY)
    found: dict[int, tuple[str, int]] = {}
    for hour in range(0, 24 * 101, 12):
        for what in job.announced():
            found[hour] = what
        job.world.clock.advance(12 * HOUR)
    assert found == {24 * 70: ("k", 30), 24 * 93: ("k", 7), 24 * 99: ("k", 1)}


@pytest.mark.parametrize(
    ("left", "days"),
    [
        (MICROSECOND, 1),
        (DAY, 1),
        (DAY + MICROSECOND, 7),
        (7 * DAY, 7),
        (7 * DAY + MICROSECOND, 30),
        (30 * DAY, 30),
        (30 * DAY + MICROSECOND, None),
        (timedelta(0), None),
        (-SECOND, None),
        (None, None),
    ],
    ids=str,
)
def test_the_least_that_was_reached_is_announced_and_no_more(
    job: Job, left: timedelta | None, days: int | None
) -> None:
    """As after weeks in which nothing ran."""
    job.put("k", left)
    assert job.announced() == ([] if days is None else [("k", days)])
    assert job.announced() == []


def test_the_most_urgent_are_announced_first(job: Job) -> None:
    for key_id, days in (("d", 20), ("a", 0.5), ("c", 10), ("b", 3)):
        job.put(key_id, days * DAY)
    job.put("e", 0.25 * DAY, announced_days=7)
    job.put("f", 0.75 * DAY, announced_days=30)
    job.put("g", 5 * DAY, announced_days=30)
    assert job.announced() == [
        ("e", 1),
        ("f", 1),
        ("a", 1),
        ("g", 7),
        ("b", 7),
        ("c", 30),
        ("d", 30),
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"revoked_at": NOW},
        {"revoked_at": NOW, "deleted_at": NOW},
        {"replaced_by": "next"},
        {"announced_days": 7},
        {"announced_days": 1},
    ],
    ids=str,
)
def test_what_ends_otherwise_or_was_announced_is_not(job: Job, fields: dict[str, Any]) -> None:
    record = job.put("k", 3 * DAY, **fields)
    assert job.announced() == []
    assert job.world.store.get("k") == record


def test_a_key_that_is_revoked_after_it_was_found_is_not_announced(job: Job) -> None:
    """As by another process: the write notes only what is still to be announced."""
    job.put("k", 3 * DAY)
    inner = job.world.store.inner
    found = inner.list_expiring
    job.changes.clear()

    def find_and_revoke(query: Any) -> Any:
        records = found(query)
        for record in records:
            job.world.store.put(replace(record, revoked_at=NOW))
        return records

    inner.list_expiring = find_and_revoke  # type: ignore[method-assign]
    assert job.announced() == []
    assert job.world.store.get("k").announced_days is None


@pytest.mark.parametrize(
    ("lifetime", "first"), [(1, None), (2, 1), (7, 1), (8, 7), (30, 7), (31, 30), (90, 30)]
)
def test_a_key_that_is_made_for_a_week_is_not_announced_at_once(
    job: Job, lifetime: int, first: int | None
) -> None:
    created = job.world.create(lifetime=lifetime * DAY)
    for _ in range(lifetime + 1):
        announced = job.announced()
        if announced:
            assert announced == [(created.record.id, first)]
            return
        job.world.clock.advance(DAY - SECOND)
    assert first is None


def test_a_key_without_an_end_is_never_announced(job: Job) -> None:
    assert job.world.create(lifetime="unlimited").record.announced_days is None
    job.world.clock.advance(9_000 * DAY)
    assert job.announced() == []


def test_an_end_that_is_brought_forward_is_announced(job: Job) -> None:
    created = job.world.create(lifetime=90 * DAY)
    job.world.clock.advance(61 * DAY)
    assert job.announced() == [(created.record.id, 30)]
    end = job.world.clock.moment + 20 * DAY
    job.world.call("expire_key", job.world.login(), created.record.id, at=end)
    assert job.announced() == []
    end = job.world.clock.moment + HOUR
    job.world.call("expire_key", job.world.login(), created.record.id, at=end)
    assert job.announced() == [(created.record.id, 1)]
    assert job.announced() == []


def test_the_successor_of_a_key_is_announced_anew_and_its_predecessor_no_more(job: Job) -> None:
    job.world.limits = KeyLimits()
    created = job.world.create(lifetime=60 * DAY)
    job.world.clock.advance(31 * DAY)
    assert job.announced() == [(created.record.id, 30)]
    successor = job.world.call(
        "rotate_key", job.world.login(), created.record.id, overlap=6 * DAY
    ).record
    assert successor.announced_days is None
    assert job.announced() == []
    job.world.clock.advance(31 * DAY)
    assert job.announced() == [(successor.id, 30)]


def limits_of_reads(job: Job) -> list[int]:
    return [
        args[0].limit
        for name, (args, _) in zip(job.world.store.calls, job.world.store.arguments, strict=True)
        if name == "list_expiring"
    ]


def test_any_number_of_keys_is_read_in_batches(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(make_world)
    monkeypatch.setattr(administration, "BATCH", 5)
    # Several end at one moment, so that a batch ends among them.
    for number in range(23):
        job.put(f"k{number:02}", (number // 4 + 8) * DAY)
    assert job.announced() == [(f"k{number:02}", 30) for number in range(23)]
    limits = limits_of_reads(job)
    assert set(limits) == {5}
    assert len(limits) == 5 + 6  # one that is empty for each of six stretches
    job.world.forget_calls()
    assert job.announced() == []
    assert job.world.store.calls == ["list_expiring"] * 6


def test_a_store_that_notes_nothing_is_asked_once_for_each_key(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No key leaves its stretch, and the run ends all the same."""
    monkeypatch.setattr(administration, "BATCH", 5)
    for number in range(12):
        job.put(f"k{number:02}", 8 * DAY)
    job.world.store.answers["announce_expiry"] = None
    assert job.announced() == []
    assert job.world.store.calls.count("announce_expiry") == 12
    assert job.world.store.calls.count("list_expiring") == 5 + 4


def test_what_was_announced_before_a_failure_stays_so(job: Job) -> None:
    for number in range(3):
        job.put(f"k{number}", (number + 10) * DAY)
    noted = job.world.store.inner.announce_expiry
    failures = [OSError("the database has gone")]

    def fail_once(key_id: str, **options: Any) -> Any:
        if key_id == "k1" and failures:
            raise failures.pop()
        return noted(key_id, **options)

    job.world.store.inner.announce_expiry = fail_once  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        job.announce()
    assert job.world.events == job.changes == [KeyEvent("expiring", NOW, job.world.store.get("k0"))]
    assert job.announced() == [("k1", 30), ("k2", 30)]


def test_what_the_stores_hook_refuses_is_not_announced(job: Job) -> None:
    record = job.put("k", DAY)
    job.hook.error = OSError("no audit log")
    with pytest.raises(StoreUnavailable):
        job.announce()
    assert (job.world.store.get("k"), job.world.events) == (record, [])
    job.hook.error = None
    assert job.announced() == [("k", 1)]


def test_a_hook_that_fails_afterwards_stops_nothing() -> None:
    def fail(_event: object) -> None:
        raise OSError("no mail")

    job = Job(BLOCKING, on_event=fail)
    for number in range(3):
        job.put(f"k{number}", (number + 10) * DAY)
    assert job.announce() == 3
    assert len(job.changes) == 3
