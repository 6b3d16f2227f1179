"""What a coroutine keeps open ends when a new request would be refused (G2)."""

# ruff: noqa: PT012 - what has to be raised comes out of a whole block

from __future__ import annotations

import asyncio
import contextvars
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.cases import code_of, refused_with
from tests.watch.site import ENDS, SECOND, Change, SingleStore, Site

from msk_auth import Owner, require
from msk_auth.errors import Problem, StoreUnavailable

pytestmark = pytest.mark.anyio

# Nothing is measured by it: what does not end hangs for good.
ENDS_WITHIN = 60


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.fixture(autouse=True)
async def _nothing_is_left() -> AsyncIterator[None]:
    yield
    await until(lambda: not any("msk_auth" in str(task.get_coro()) for task in asyncio.all_tasks()))
    current = asyncio.current_task()
    assert current is not None
    assert current.cancelling() == 0


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(ENDS_WITHIN):
        while not is_so():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.001)


async def for_ever() -> None:
    await asyncio.wait_for(asyncio.Event().wait(), ENDS_WITHIN)


async def begin(watch: Any) -> None:
    """Enter a block that must not begin."""
    async with watch:
        pytest.fail("it begins")


async def rounds(site: Site, what: str, count: int = 2) -> None:
    """Wait until that many rounds have read something."""
    site.reads[what] = 0
    await until(lambda: site.reads[what] >= count)


@pytest.mark.parametrize(
    ("kind", "change", "code"),
    [(kind, change, code) for kind, _, change, code in ENDS],
    ids=[f"{kind} {name}" for kind, name, _, _ in ENDS],
)
async def test_access_ends_when_a_new_request_would_be_refused(
    site: Site, kind: str, change: Change, code: str
) -> None:
    principal = site.admitted(kind)
    with pytest.raises(Problem) as raised:
        async with site.awaiting().watch(principal) as watch:
            await rounds(site, "owner ann")
            assert watch.refusal is None
            change(site, principal)
            await for_ever()
    assert raised.value.code == code
    assert watch.refusal is raised.value


async def test_access_lasts_with_the_permissions_that_the_policy_names(site: Site) -> None:
    watch = site.awaiting().watch(site.key(), require("tasks:read"))
    with pytest.raises(Problem, match="tasks:read"):
        async with watch:
            site.change_owner(permissions=frozenset({"tasks:read", "more"}))
            await rounds(site, "owner ann")
            site.change_owner(permissions=frozenset({"tasks:run", "more"}))
            await for_ever()


async def test_a_store_that_reads_one_key_at_a_time_will_do(site: Site) -> None:
    principal = site.key()
    auth = site.awaiting(store=SingleStore(site))
    with refused_with("key_revoked"):
        async with auth.watch(principal):
            site.revoke(principal)
            await for_ever()


# The beginning, of a principal that was admitted long before


async def test_a_block_does_not_begin_after_a_revocation(site: Site) -> None:
    principal = site.key()
    site.revoke(principal)
    watch = site.awaiting(watch_interval=SECOND).watch(principal)
    with refused_with("key_revoked") as raised:
        await begin(watch)
    assert watch.refusal is raised.value


async def test_a_stream_does_not_begin_after_a_revocation(site: Site) -> None:
    principal = site.key()
    site.revoke(principal)
    source = Countdown()
    watch = site.awaiting(watch_interval=SECOND).watch(principal)
    assert [item async for item in watch.stream(source)] == []
    assert code_of(watch.refusal) == "key_revoked"
    assert source.left == 3


async def test_what_begins_in_an_outage_waits_until_it_is_over(site: Site) -> None:
    source = Countdown()
    stream = site.awaiting().watch(site.key()).stream(source)
    # The five seconds count from the beginning.
    site.clock.advance(5 * SECOND)
    site.broken = OSError("down")
    first = asyncio.ensure_future(anext(stream))
    await rounds(site, "owner ann", 3)
    assert source.left == 3
    site.broken = None
    assert await first == 2
    await stream.aclose()


async def test_what_begins_in_an_outage_ends_when_five_seconds_went_by(site: Site) -> None:
    auth = site.awaiting()
    block, stream = auth.watch(site.key()), auth.watch(site.key())
    site.broken = OSError("down")
    entering = asyncio.create_task(begin(block))
    first = asyncio.ensure_future(anext(stream.stream(Countdown()), None))
    await rounds(site, "owner ann", 3)
    site.clock.advance(4 * SECOND)
    await rounds(site, "owner ann", 3)
    assert not entering.done()
    assert not first.done()
    site.clock.advance(SECOND)
    with pytest.raises(StoreUnavailable):
        await entering
    assert await first is None
    assert isinstance(stream.refusal, StoreUnavailable)


async def test_watches_that_begin_together_share_a_read(site: Site) -> None:
    auth = site.awaiting(watch_interval=SECOND)
    principal = site.key()
    async with auth.watch(principal), AsyncExitStack() as stack:
        assert site.reads == {"keys": 1, "owner ann": 1}
        for _ in range(2):
            await asyncio.gather(
                *(stack.enter_async_context(auth.watch(principal)) for _ in range(100))
            )
        # One for each hundred, and those of each second that a busy machine takes.
        assert site.reads["keys"] == site.reads["owner ann"] < 60


async def test_what_begins_does_not_wait_for_what_hangs_in_a_round(site: Site) -> None:
    hangs, given_up = asyncio.Event(), asyncio.Event()
    principals = {name: site.key(name) for name in ("ann", "bob")}
    first = True

    async def find_owner(owner_id: str) -> Owner[Any] | None:
        nonlocal first
        if owner_id == "bob" and not first:
            hangs.set()
            try:
                await for_ever()
            finally:
                given_up.set()
        first = False
        return site.find_owner(owner_id)

    auth = site.awaiting(find_owner=find_owner, watch_interval=SECOND)
    async with auth.watch(principals["bob"]):
        await hangs.wait()
        async with auth.watch(principals["ann"]):
            assert not given_up.is_set()


async def test_what_is_given_up_before_it_begins_is_watched_no_more(site: Site) -> None:
    auth = site.awaiting()
    watch = auth.watch(site.key())
    site.broken = OSError("down")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await begin(watch)
    assert not auth._watches.of_this_loop().watched


async def test_what_has_not_begun_ends_when_the_authenticator_is_closed(site: Site) -> None:
    auth = site.awaiting(watch_interval=SECOND)
    watch = auth.watch(site.key())
    site.broken = OSError("down")

    async with auth:
        entering = asyncio.create_task(begin(watch))
        await until(lambda: site.reads["owner ann"] > 0)
    with pytest.raises(StoreUnavailable):
        await entering


# The block


async def test_a_block_that_ends_by_itself_ends_as_it_would(site: Site) -> None:
    async with site.awaiting().watch(site.key()) as watch:
        await rounds(site, "owner ann")
    assert watch.refusal is None


async def test_a_cancellation_from_outside_stays_one(site: Site) -> None:
    auth = site.awaiting()
    entered = asyncio.Event()

    async def handle() -> None:
        async with auth.watch(site.key()):
            entered.set()
            await for_ever()

    task = asyncio.create_task(handle())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_timeout_inside_or_outside_stays_one(site: Site) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01), site.awaiting().watch(site.key()):
            await for_ever()
    with pytest.raises(TimeoutError):
        async with site.awaiting().watch(site.key()), asyncio.timeout(0.01):
            await for_ever()


async def test_of_two_watches_the_one_whose_access_ended_raises(site: Site) -> None:
    auth = site.awaiting()
    inner, outer = site.key(), site.key("bob")
    async with auth.watch(outer):
        with refused_with("key_revoked"):
            async with auth.watch(inner):
                site.revoke(inner)
                await for_ever()
        # The outer one goes on.
        await asyncio.sleep(0)


async def test_what_the_block_raises_for_itself_gets_through(site: Site) -> None:
    principal = site.key()
    with pytest.raises(KeyError):
        async with site.awaiting().watch(principal):
            site.revoke(principal)
            try:
                await for_ever()
            except asyncio.CancelledError:
                raise KeyError from None


# The stream


async def test_a_stream_ends_while_it_waits_and_its_source_with_it(site: Site) -> None:
    principal = site.key()
    mine = contextvars.ContextVar[str]("mine")
    ended: list[str] = []

    async def source() -> AsyncIterator[str]:
        task = asyncio.current_task()
        mine.set("kept")
        try:
            yield "first"
            assert asyncio.current_task() is task
            site.revoke(principal)
            await for_ever()
            yield "second"
        finally:
            assert asyncio.current_task() is task
            ended.append(mine.get())

    watch = site.awaiting().watch(principal)
    assert [item async for item in watch.stream(source())] == ["first"]
    assert code_of(watch.refusal) == "key_revoked"
    assert ended == ["kept"]


async def test_a_stream_ends_however_much_there_is(site: Site) -> None:
    principal = site.key()

    async def source() -> AsyncIterator[int]:
        for n in range(10**9):
            yield n
            await asyncio.sleep(0)

    watch = site.awaiting().watch(principal)
    async for n in watch.stream(source()):
        if n == 3:
            site.revoke(principal)
    assert code_of(watch.refusal) == "key_revoked"


async def test_a_stream_gives_what_there_is_and_raises_what_its_source_raises(site: Site) -> None:
    seen: list[int] = []

    async def source() -> AsyncIterator[int]:
        yield 1
        yield 2
        raise KeyError("three")

    with pytest.raises(KeyError, match="three"):
        async for n in site.awaiting().watch(site.key()).stream(source()):
            seen.append(n)  # noqa: PERF401 - what came before the error counts
    assert seen == [1, 2]


class Countdown:
    """An asynchronous iterator that is no generator."""

    def __init__(self) -> None:
        self.left = 3

    def __aiter__(self) -> Countdown:
        return self

    async def __anext__(self) -> int:
        if self.left == 0:
            raise StopAsyncIteration
        self.left -= 1
        return self.left


async def test_a_stream_of_anything_that_can_be_iterated_ends_with_it(site: Site) -> None:
    watch = site.awaiting().watch(site.key())
    assert [n async for n in watch.stream(Countdown())] == [2, 1, 0]


async def test_a_stream_reads_an_item_of_its_source_on_request(site: Site) -> None:
    made: list[int] = []

    async def source() -> AsyncIterator[int]:
        for n in range(3):
            made.append(n)
            yield n

    stream = site.awaiting().watch(site.key()).stream(source())
    assert await anext(stream) == 0
    await asyncio.sleep(0)
    assert made == [0]
    await stream.aclose()


async def test_a_stream_that_its_reader_drops_is_watched_no_more(site: Site) -> None:
    auth = site.awaiting()

    async def source() -> AsyncIterator[int]:
        yield 1
        await for_ever()

    stream = auth.watch(site.key()).stream(source())
    assert await anext(stream) == 1
    del stream
    gc.collect()
    await until(lambda: not auth._watches.of_this_loop().watched)


async def test_code_that_closes_its_connection_itself_can_wait_for_the_reason(site: Site) -> None:
    principal = site.key()
    waiting = asyncio.create_task(site.awaiting().watch(principal).wait())
    await rounds(site, "owner ann")
    site.revoke(principal)
    assert code_of(await waiting) == "key_revoked"


# The rounds


async def test_all_watches_of_a_process_share_one_read_in_an_interval(site: Site) -> None:
    auth = site.awaiting()
    principals = [site.key(), site.key(), site.key("bob"), site.login()]
    site.reads.clear()
    watches = [auth.watch(principal) for principal in principals * 25]
    site.reads["keys"] = 0
    waiting = [asyncio.create_task(watch.wait()) for watch in watches]
    await rounds(site, "keys", 10)
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    # One read of all keys, and one of each owner and session, in each round.
    assert set(site.reads) == {"keys", "owner ann", "owner bob", "session s1"}
    assert max(site.reads.values()) - min(site.reads.values()) <= 1


async def test_nothing_is_read_when_nothing_is_watched(site: Site) -> None:
    auth = site.awaiting()
    # Those of an earlier test may be about to end on the same loop.
    earlier = asyncio.all_tasks()
    async with auth.watch(site.key()):
        begun = asyncio.all_tasks() - earlier
        of_this = {task for task in begun if task.get_name() == "msk_auth watch"}
        assert of_this
    await until(lambda: all(task.done() for task in of_this))


async def test_many_keys_are_read_in_batches(site: Site) -> None:
    auth = site.awaiting()
    principals = [site.key() for _ in range(300)]
    waiting = [asyncio.create_task(auth.watch(each).wait()) for each in principals]
    await rounds(site, "keys", 4)
    site.revoke(principals[299])
    assert code_of(await waiting[299]) == "key_revoked"
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    assert set(site.store.batches) <= {256, 44, 43}


async def test_an_outage_ends_it_when_five_seconds_went_by(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    auth = site.awaiting()
    with pytest.raises(StoreUnavailable):
        async with auth.watch(site.key()) as watch:
            site.broken = OSError("down")
            await rounds(site, "owner ann")
            site.clock.advance(4 * SECOND)
            await rounds(site, "owner ann")
            site.broken = None
            await rounds(site, "owner ann", 3)
            site.broken = OSError("down")
            site.clock.advance(4 * SECOND)
            await rounds(site, "owner ann")
            assert watch.refusal is None
            site.clock.advance(SECOND)
            await for_ever()
    assert "could not verify open connections: OSError" in caplog.text


async def test_what_a_look_up_answers_to_another_question_is_no_answer(site: Site) -> None:
    with pytest.raises(StoreUnavailable):
        async with site.awaiting().watch(site.key()) as watch:
            site.owners["ann"] = Owner("bob", frozenset(), "bob")
            await rounds(site, "owner ann")
            assert watch.refusal is None
            site.clock.advance(5 * SECOND)
            await for_ever()


async def test_look_ups_that_hang_hold_up_only_what_depends_on_them(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    for n in range(8):
        site.owners[f"hung {n}"] = Owner(f"hung {n}", frozenset(), "")
    principals = [site.key(f"hung {n}") for n in range(8)]
    principal = site.key()
    entered = asyncio.Event()

    async def find_owner(owner_id: str) -> Owner[Any] | None:
        if owner_id.startswith("hung"):
            entered.set()
            await for_ever()
        return site.find_owner(owner_id)

    auth = site.awaiting(find_owner=find_owner)
    hung = [asyncio.create_task(auth.watch(each).wait()) for each in principals]
    watch = asyncio.create_task(auth.watch(principal).wait())
    await entered.wait()
    site.revoke(principal)
    assert code_of(await watch) == "key_revoked"
    site.clock.advance(5 * SECOND)
    ended = await asyncio.gather(*hung)
    assert {type(each) for each in ended} == {StoreUnavailable}
    assert "not read within" in caplog.text


async def test_closing_the_authenticator_ends_what_it_watches(site: Site) -> None:
    auth = site.awaiting(watch_interval=SECOND)
    async with auth:
        waiting = asyncio.create_task(auth.watch(site.key()).wait())
        await asyncio.sleep(0)
    assert isinstance(await waiting, StoreUnavailable)


async def test_a_watch_that_begins_while_the_authenticator_closes_ends_and_keeps_none_from_ending(
    site: Site,
) -> None:
    # The closing takes several turns of the loop, and the watch begins before, between or after them.
    for turns in range(4):
        auth = site.awaiting()

        async def begin_late(auth: Any = auth, turns: int = turns) -> Problem:
            for _ in range(turns):
                await asyncio.sleep(0)
            principal = site.key()
            waiting = asyncio.create_task(auth.watch(principal).wait())
            await asyncio.sleep(0.02)
            site.revoke(principal)
            async with asyncio.timeout(ENDS_WITHIN):
                return await waiting

        async with auth:
            beginning = asyncio.create_task(begin_late())
        assert code_of(await beginning) in {"store_unavailable", "key_revoked"}
        async with auth:
            assert code_of(await begin_late()) == "key_revoked"


async def test_closing_in_the_middle_of_a_round_gives_its_look_ups_up(site: Site) -> None:
    entered = asyncio.Event()

    async def find_owner(_: str) -> Owner[Any] | None:
        entered.set()
        return await for_ever()

    auth = site.awaiting(find_owner=find_owner, watch_interval=SECOND / 2)
    async with auth:
        waiting = asyncio.create_task(auth.watch(site.key()).wait())
        await entered.wait()
    assert isinstance(await waiting, StoreUnavailable)


async def test_every_event_loop_has_rounds_of_its_own(site: Site) -> None:
    auth = site.awaiting()
    principals = [site.key(), site.key()]

    async def follow(principal: Any) -> Problem:
        waiting = asyncio.create_task(auth.watch(principal).wait())
        await rounds(site, "owner ann")
        site.revoke(principal)
        return await waiting

    for principal in principals:
        assert code_of(await asyncio.to_thread(asyncio.run, follow(principal))) == "key_revoked"
    assert code_of(await follow(site.key())) == "key_revoked"


async def test_an_owner_who_comes_back_does_not_bring_back_what_has_ended(site: Site) -> None:
    auth = site.awaiting()
    watch = auth.watch(site.key())
    site.change_owner(disabled=True)
    assert code_of(await watch.wait()) == "owner_disabled"
    site.change_owner(disabled=False)
    await asyncio.sleep(0.02)
    assert code_of(watch.refusal) == "owner_disabled"
