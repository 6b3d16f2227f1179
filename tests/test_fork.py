"""What a forked child shares with its parent, and what it must not."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import threading

import pytest
from tests.forked import in_child

from msk_auth import _fork
from msk_auth._fork import after_fork_in_child


class Renewed:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.renewals = 0
        after_fork_in_child(self._renew)

    __hash__ = None  # type: ignore[assignment]

    def _renew(self) -> None:
        self.lock = threading.Lock()
        self.renewals += 1


def test_a_child_renews_what_registered_itself_and_its_parent_does_not() -> None:
    renewed = [Renewed(), Renewed()]
    with renewed[0].lock:
        assert in_child(lambda: [each.lock.acquire(timeout=0) for each in renewed]) == [True, True]
        assert in_child(lambda: [each.renewals for each in renewed]) == [1, 1]
    assert [each.renewals for each in renewed] == [0, 0]


def test_a_child_of_a_child_renews_again() -> None:
    renewed = Renewed()
    assert in_child(lambda: in_child(lambda: renewed.renewals)) == 2


def test_what_is_gone_is_forgotten() -> None:
    # What other tests have left may be forgotten meanwhile.
    before = set(_fork._renewals)
    renewed = Renewed()
    (made,) = _fork._renewals.keys() - before
    del renewed
    gc.collect()
    assert made not in _fork._renewals


def test_what_lives_until_the_interpreter_ends_leaves_no_noise() -> None:
    code = "from msk_auth.stores.memory import MemoryKeyStore; kept = [MemoryKeyStore(), 0]; kept[1] = kept"
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    assert (ended.stdout, ended.stderr) == ("", "")


def test_one_renewal_that_fails_keeps_no_other_from_being_made(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(Renewed):
        def _renew(self) -> None:
            raise RuntimeError("cannot")

    both = Broken(), Renewed()

    def renewals_and_errors() -> tuple[int, list[int]]:
        return both[1].renewals, [record.levelno for record in caplog.records]

    assert in_child(renewals_and_errors) == (1, [logging.ERROR])
