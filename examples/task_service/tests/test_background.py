"""Background tasks: their errors are logged at once, and ending one swallows no cancellation."""

from __future__ import annotations

import asyncio

import pytest

from task_service import background

pytestmark = pytest.mark.anyio


async def test_a_mistake_is_logged_when_it_happens(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        raise ZeroDivisionError

    task = background.begin(work(), name="flush sessions")
    await asyncio.wait([task])
    await asyncio.sleep(0)
    (record,) = caplog.records
    assert record.getMessage() == (
        "the background task 'flush sessions' failed and is off until the next start"
    )
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError
    # Ending it afterwards raises nothing and logs nothing again.
    await background.end(task)
    assert len(caplog.records) == 1


async def test_the_caller_of_end_can_be_cancelled() -> None:
    released = asyncio.Event()

    async def slow_to_stop() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await released.wait()

    task = background.begin(slow_to_stop(), name="slow")
    await asyncio.sleep(0)
    ending = asyncio.create_task(background.end(task))
    await asyncio.sleep(0)
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert not task.done()
    released.set()
    await asyncio.wait([task])
    assert task.cancelled()
