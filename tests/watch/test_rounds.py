"""What a round reads first, when it is too short for everything that is watched."""

from __future__ import annotations

import pytest
from tests.cases import code_of
from tests.watch.site import PERMISSIONS, SECOND, Site

from msk_auth import Owner
from msk_auth._async.watch import Round
from msk_auth._sync.watch import Watched

pytestmark = pytest.mark.anyio


class Rounds:
    """Rounds of one second each, in which only some look-ups are answered."""

    def __init__(self) -> None:
        self.site = Site()
        self.auth = self.site.awaiting()

    def watched(self, *names: str) -> list[Watched[str]]:
        """A watch of a new key of each owner."""
        for name in names:
            self.site.owners[name] = Owner(name, PERMISSIONS, name)
        now = self.site.clock.monotonic()
        return [Watched(self.site.key(name), None, now) for name in names]

    def look_ups(self, watched: list[Watched[str]], keys_at_once: int = 1) -> list[list[object]]:
        """The ids that each look-up of the next round reads."""
        it = self._round(watched, keys_at_once)
        return [[name for _, name in each] for each in it.look_ups()]

    async def make(
        self, watched: list[Watched[str]], owners: int, *, had_time: int = 0
    ) -> list[object]:
        """One round.

        Args:
            watched: The watches.
            owners: How many owners are read.
            had_time: How many more are not, although there was time.

        Returns:
            The owners that were read.
        """
        it = self._round(watched, 256)
        keys, *of_owners = it.look_ups()
        for n, look_up in enumerate([keys, *of_owners]):
            if n <= owners + had_time:
                it.has_time(look_up)
            if n <= owners:
                await it.look_up(look_up)
        it.settle(1.0)
        self.site.clock.advance(SECOND)
        return [name for look_up in of_owners[:owners] for _, name in look_up]

    def _round(self, watched: list[Watched[str]], keys_at_once: int) -> Round[str]:
        reads = self.auth._look_ups
        reads.keys_at_once = keys_at_once
        return Round(self.auth.rules, reads, watched, self.site.clock)


async def test_those_that_were_verified_the_longest_ago_come_first_as_others_come_and_go() -> None:
    rounds = Rounds()
    lasting = rounds.watched("ann", "bob", "eve")
    for n in range(9):
        # A watch that has never been verified takes one of the two look-ups of each round, and is gone after it.
        passing = rounds.watched(f"passing {n}")
        # A set that changes is in another order each time.
        await rounds.make([*lasting[n % 3 :], *passing, *lasting[: n % 3]], 2)
        if n >= 2:
            ages = [rounds.site.clock.monotonic() - each.verified_at for each in lasting]
            assert sorted(ages) == [1, 2, 3]
    assert [each.refusal for each in lasting] == [None] * 3


async def test_look_ups_that_hang_come_last_and_those_that_had_no_time_first() -> None:
    rounds = Rounds()
    hung, late, good = rounds.watched("hung", "late", "good")
    assert await rounds.make([good], 1) == ["good"]
    # Two had no turn yet, so they are first: one hangs, and the other one begins when the round is almost over.
    assert await rounds.make([hung, late, good], 0, had_time=1) == []
    assert rounds.look_ups([hung, late, good], 256)[1:] == [["late"], ["good"], ["hung"]]
    assert await rounds.make([hung, late, good], 2, had_time=1) == ["late", "good"]
    # All had their turn in that round.
    assert rounds.look_ups([hung, late, good], 256)[1:] == [["late"], ["good"], ["hung"]]


async def test_a_revoked_key_is_found_in_a_round_that_is_too_short_for_its_owner() -> None:
    rounds = Rounds()
    ann, bob = rounds.watched("ann", "bob")
    rounds.site.revoke(bob.principal)
    assert await rounds.make([ann, bob], 1) == ["ann"]
    assert ann.refusal is None
    assert code_of(bob.refusal) == "key_revoked"


async def test_keys_that_are_read_one_by_one_are_read_with_their_owners() -> None:
    rounds = Rounds()
    ann, bob = rounds.watched("ann", "bob")
    keys = [ann.principal.key_id, bob.principal.key_id]
    assert rounds.look_ups([ann, bob]) == [[keys[0]], ["ann"], [keys[1]], ["bob"]]
    assert rounds.look_ups([ann, bob], 256) == [keys, ["ann"], ["bob"]]
