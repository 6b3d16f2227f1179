"""What is due at the same time is written together, and one item does not affect another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from msk_auth.errors import StoreUnavailable
from task_service.tasks.group_commit import GroupCommit

pytestmark = pytest.mark.anyio


class Writes:
    """Notes what is written together. The first write waits for `proceed`."""

    def __init__(self, *errors: Exception | None) -> None:
        self.groups: list[list[int]] = []
        self.proceed = asyncio.Event()
        self._errors = list(errors)

    async def write(self, take: Callable[[], Sequence[int]]) -> list[int]:
        items = take()
        self.groups.append(list(items))
        if len(self.groups) == 1:
            await self.proceed.wait()
        error = self._errors.pop(0) if self._errors else None
        if error is not None:
            raise error
        if 13 in items:
            raise LookupError("thirteen")
        return [10 * item for item in items]


async def begin(group: GroupCommit[int, int], *items: int) -> list[asyncio.Task[int]]:
    tasks = []
    for item in items:
        tasks.append(asyncio.create_task(group.add(item)))
        # It has begun to write, or to wait.
        await asyncio.sleep(0)
    return tasks


async def test_what_arrives_during_a_write_is_written_together() -> None:
    writes = Writes()
    tasks = await begin(GroupCommit(writes.write), 1, 2, 3)
    writes.proceed.set()
    assert await asyncio.gather(*tasks) == [10, 20, 30]
    assert writes.groups == [[1], [2, 3]]


class LockedWrites(Writes):
    """As a write that waits for a lock before it takes its items."""

    def __init__(self, *errors: Exception | None, while_locked: Exception | None = None) -> None:
        super().__init__(*errors)
        self.lock = asyncio.Event()
        self._while_locked = while_locked

    async def write(self, take: Callable[[], Sequence[int]]) -> list[int]:
        await self.lock.wait()
        if self._while_locked is not None:
            raise self._while_locked
        return await super().write(take)


async def test_what_arrives_while_a_write_waits_for_its_lock_is_written_with_it() -> None:
    writes = LockedWrites()
    writes.proceed.set()
    tasks = await begin(GroupCommit(writes.write), 1, 2, 3)
    writes.lock.set()
    assert await asyncio.gather(*tasks) == [10, 20, 30]
    assert writes.groups == [[1, 2, 3]]


async def test_a_write_that_gets_no_lock_fails_all_that_wait_for_it() -> None:
    writes = LockedWrites(while_locked=StoreUnavailable())
    tasks = await begin(GroupCommit(writes.write), 1, 2)
    writes.lock.set()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(each) for each in ended] == [StoreUnavailable, StoreUnavailable]


async def test_a_write_whose_callers_are_cancelled_while_it_waits_has_no_items() -> None:
    writes = LockedWrites()
    writes.proceed.set()
    group = GroupCommit(writes.write)
    (task,) = await begin(group, 1)
    task.cancel()
    await asyncio.wait({task})
    writes.lock.set()
    assert await group.add(2) == 20
    assert writes.groups in ([[], [2]], [[2]])


async def test_an_item_that_is_refused_does_not_affect_the_others() -> None:
    writes = Writes()
    tasks = await begin(GroupCommit(writes.write), 1, 2, 13, 4)
    writes.proceed.set()
    one, two, refused, four = await asyncio.gather(*tasks, return_exceptions=True)
    assert (one, two, four) == (10, 20, 40)
    assert isinstance(refused, LookupError)
    assert writes.groups == [[1], [2, 13, 4], [2], [13], [4]]


async def test_a_database_that_does_not_answer_is_not_asked_for_each() -> None:
    writes = Writes(None, StoreUnavailable())
    group = GroupCommit(writes.write)
    tasks = await begin(group, 1, 2, 3)
    writes.proceed.set()
    one, *others = await asyncio.gather(*tasks, return_exceptions=True)
    assert one == 10
    assert [type(each) for each in others] == [StoreUnavailable, StoreUnavailable]
    assert await group.add(2) == 20
    assert writes.groups == [[1], [2, 3], [2]]


@pytest.mark.parametrize("cancelled", [0, 1])
async def test_a_caller_that_is_cancelled_takes_its_own_item_only(cancelled: int) -> None:
    writes = Writes()
    tasks = await begin(GroupCommit(writes.write), 1, 2, 3)
    tasks[cancelled].cancel()
    await asyncio.wait({tasks[cancelled]})
    writes.proceed.set()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(ended.pop(cancelled), asyncio.CancelledError)
    assert ended == [10 * item for item in (1, 2, 3) if item != cancelled + 1]
    assert writes.groups[1:] == [[item for item in (2, 3) if item != cancelled + 1]]


async def test_a_caller_that_is_cancelled_during_its_write_affects_no_other() -> None:
    writes = Writes()
    second_began, finish_second = asyncio.Event(), asyncio.Event()

    async def write(take: Callable[[], Sequence[int]]) -> list[int]:
        take()
        if len(writes.groups) == 1:
            second_began.set()
            await finish_second.wait()
        return await writes.write(take)

    tasks = await begin(GroupCommit(write), 1, 2, 3)
    writes.proceed.set()
    await second_began.wait()
    tasks[1].cancel()
    await asyncio.wait({tasks[1]})
    finish_second.set()
    one, two, three = await asyncio.gather(*tasks, return_exceptions=True)
    assert (one, three) == (10, 30)
    assert isinstance(two, asyncio.CancelledError)
    # Once: whether a write that was cancelled took place would be unknown.
    assert writes.groups == [[1], [2, 3]]


async def test_a_group_whose_callers_are_all_cancelled_is_not_written() -> None:
    writes = Writes()
    group = GroupCommit(writes.write)
    tasks = await begin(group, 1, 2, 3)
    for waiting in tasks[1:]:
        waiting.cancel()
    writes.proceed.set()
    await asyncio.wait(tasks)
    assert await group.add(4) == 40
    assert writes.groups == [[1], [4]]
