"""One process's view of the register, step by step: when it may grant leases, when it records itself, what it removes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine
from datetime import timedelta
from typing import Any

import pytest

from msk_auth._async.leases import LOOK_SECONDS, RECORD_SECONDS, LeaseRegisterView
from msk_auth.leases import DRIFT
from msk_auth.stores import RecordedLease
from msk_auth.testing import FrozenClock

LEASE = timedelta(seconds=2)
OTHER = RecordedLease(timedelta(seconds=1), "other", 7)
# For so long a mark is observed unchanged before no lease that was granted on it, or on a lost one, can be in use.
UNUSED = (2 * RECORD_SECONDS + LOOK_SECONDS + 1) * DRIFT


class Register:
    """A register whose reads and writes take one second, or fail."""

    def __init__(self, clock: FrozenClock) -> None:
        self.clock = clock
        self.leases: list[RecordedLease] = []
        self.calls: list[str] = []
        self.fails: dict[str, Exception] = {}
        self.takes = timedelta(seconds=1)
        self.beside: Callable[[], None] | None = None

    def _call(self, name: str) -> None:
        self.calls.append(name)
        self.clock.advance(self.takes)
        if name in self.fails:
            raise self.fails[name]

    async def recorded_leases(self) -> Collection[RecordedLease]:
        self._call("read")
        beside, self.beside = self.beside, None
        if beside is not None:
            beside()
        return list(self.leases)

    async def record_lease(self, lease: RecordedLease) -> None:
        self._call("record")
        self.leases = [each for each in self.leases if each.holder != lease.holder] + [lease]

    async def forget_lease(self, lease: RecordedLease) -> None:
        self._call("forget")
        self.leases.remove(lease)


class Process:
    def __init__(self) -> None:
        self.clock = FrozenClock()
        self.register = Register(self.clock)
        self.view = LeaseRegisterView(self.register, self.clock)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """The result of what waits for nothing here."""
        with pytest.raises(StopIteration) as ended:
            work.send(None)
        return ended.value.value

    def confirm(self) -> list[str]:
        """What it asked of the register."""
        self.register.calls.clear()
        self.run(self.view.confirm(LEASE))
        return list(self.register.calls)

    def advance(self, seconds: float) -> None:
        self.clock.advance(timedelta(seconds=seconds))

    def watch(self, seconds: float) -> Collection[RecordedLease]:
        """The leases in use after reads that no more than `RECORD_SECONDS` separate."""
        in_use: Collection[RecordedLease] = []
        while seconds > 0:
            self.advance(min(seconds, RECORD_SECONDS))
            seconds -= RECORD_SECONDS
            in_use = self.run(self.view.read())
        return in_use

    @property
    def own(self) -> list[RecordedLease]:
        return [each for each in self.register.leases if each.holder != "other"]


@pytest.fixture
def process() -> Process:
    return Process()


def test_no_lease_is_granted_before_the_process_is_recorded(process: Process) -> None:
    assert not process.view.allows_leases(process.clock.monotonic())
    assert process.confirm() == ["read", "record"]
    (entry,) = process.own
    assert (entry.duration, entry.mark) == (LEASE, 1)
    assert len(entry.holder) == 16
    assert int(entry.holder, 16) >= 0


def test_a_lease_is_granted_shortly_after_a_read_counted_from_its_start(process: Process) -> None:
    process.confirm()
    # The look began at 0 and took a second, and recording began at 1.
    moments = (0.0, LOOK_SECONDS, LOOK_SECONDS + 0.001)
    assert [process.view.allows_leases(at) for at in moments] == [True, True, False]


def test_a_lease_is_granted_on_one_record_for_so_long(process: Process) -> None:
    process.register.takes = timedelta(0)
    process.confirm()
    process.advance(RECORD_SECONDS / 2)
    assert process.confirm() == ["read"]
    # Looks alone do not prolong a record; here it is the record that ends.
    process.view._confirmation = process.view._confirmation._replace(seen_at=RECORD_SECONDS)
    assert process.view.allows_leases(RECORD_SECONDS)
    assert not process.view.allows_leases(RECORD_SECONDS + 0.001)


def test_a_record_is_renewed_with_the_next_mark_after_half_of_its_time(process: Process) -> None:
    process.register.takes = timedelta(0)
    process.confirm()
    process.advance(RECORD_SECONDS / 2)
    assert process.confirm() == ["read"]
    process.advance(0.5)
    assert process.confirm() == ["read", "record"]
    assert [each.mark for each in process.own] == [2]
    assert process.view.allows_leases(process.clock.monotonic())
    process.advance(RECORD_SECONDS / 2)
    assert process.confirm() == ["read"]


def test_the_time_of_a_record_counts_from_before_it_is_written(process: Process) -> None:
    process.confirm()  # read from 0 to 1, recorded from 1 to 2
    process.advance(RECORD_SECONDS / 2 - 1)
    assert process.confirm() == ["read"]  # half of the time after 1
    assert process.confirm() == ["read", "record"]


@pytest.mark.parametrize("left", [[], [RecordedLease(LEASE, "other", 1)]])
def test_a_process_that_is_gone_from_the_register_records_itself_anew(
    process: Process, left: list[RecordedLease]
) -> None:
    process.confirm()
    (before,) = process.own
    process.register.leases = list(left)
    assert process.confirm() == ["read", "record"]
    (entry,) = process.own
    assert entry == before._replace(mark=2)


def test_an_older_mark_of_its_own_is_not_the_one_that_it_wrote(process: Process) -> None:
    process.confirm()
    before = list(process.register.leases)
    process.register.leases = []
    process.confirm()
    process.register.leases = before  # a restored backup
    assert process.confirm() == ["read", "record"]
    assert [each.mark for each in process.own] == [3]


def test_what_stands_still_is_in_use_until_no_lease_on_it_can_be(process: Process) -> None:
    process.register.leases = [OTHER]
    # Its time counts from the end of each read to the beginning of the next: a read takes a second.
    assert process.run(process.view.read()) == [OTHER]
    assert process.watch(UNUSED - 0.001) == [OTHER]
    assert process.register.leases == [OTHER]
    assert process.watch(0.002) == []
    assert process.register.leases == []
    assert process.watch(1) == []


@pytest.mark.parametrize("left", [[OTHER], []])
def test_the_time_between_two_reads_counts_for_a_minute_at_most(
    process: Process, left: list[RecordedLease]
) -> None:
    process.register.leases = [OTHER]
    process.run(process.view.read())
    process.register.leases = left
    for expected in ([OTHER], [OTHER], []):
        process.advance(100 * RECORD_SECONDS)
        assert process.run(process.view.read()) == expected


def test_a_read_beside_another_one_does_not_count_twice(process: Process) -> None:
    process.register.leases = [OTHER]
    process.run(process.view.read())
    process.advance(RECORD_SECONDS)

    def read_beside() -> None:
        process.advance(RECORD_SECONDS)
        process.run(process.view.read())

    process.register.beside = read_beside
    process.run(process.view.read())
    assert process.watch(UNUSED - RECORD_SECONDS) == [OTHER]


def test_a_mark_that_changes_is_in_use_anew(process: Process) -> None:
    process.register.leases = [OTHER]
    process.run(process.view.read())
    process.watch(UNUSED - 0.001)
    changed = OTHER._replace(mark=8)
    process.register.leases = [changed]
    assert process.watch(1) == [changed]
    assert process.watch(UNUSED - 0.001) == [changed]
    assert process.register.leases == [changed]


def test_what_is_gone_may_be_in_use_for_as_long_as_if_it_stood_still(process: Process) -> None:
    process.register.leases = [OTHER]
    assert process.run(process.view.read()) == [OTHER]
    process.register.leases = []
    process.register.calls.clear()
    assert process.watch(UNUSED - 0.001) == [OTHER]
    assert process.watch(0.002) == []
    assert process.watch(1) == []
    assert set(process.register.calls) == {"read"}


def test_what_is_gone_counts_no_longer_once_its_process_has_written_another_mark(
    process: Process,
) -> None:
    process.register.leases = [OTHER]
    process.run(process.view.read())
    process.register.leases = []
    process.run(process.view.read())
    again = OTHER._replace(mark=8)
    process.register.leases = [again]
    assert process.run(process.view.read()) == [again]


def test_a_child_is_another_process_that_has_to_record_itself(process: Process) -> None:
    process.confirm()
    (of_parent,) = process.own
    process.view._renew()
    assert not process.view.allows_leases(process.clock.monotonic())
    assert process.confirm() == ["read", "record"]
    assert [each.mark for each in process.own] == [1, 1]
    assert len({each.holder for each in process.own}) == 2
    # What the parent has seen of others counts from the child's own first look.
    assert of_parent in process.own
