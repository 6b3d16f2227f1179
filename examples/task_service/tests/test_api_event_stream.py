"""A stream that fails, and how many of them a user may hold. How a stream ends otherwise is in test_api_runs_log.py."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, nullcontext

import pytest
from starlette.types import Message

from task_service.api.event_stream import (
    MAX_STREAMS_OF_USER,
    EventStream,
    StreamLimit,
    Write,
)
from task_service.errors import TooManyRequests

pytestmark = pytest.mark.anyio


async def test_what_goes_wrong_in_the_middle_breaks_it_off() -> None:
    async def produce(write: Write) -> None:
        raise RuntimeError("unforeseen")

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        assert message["type"] == "http.response.start"

    before = asyncio.all_tasks()
    stream = EventStream(produce, stopping=asyncio.Event(), held=nullcontext())
    with pytest.raises(ExceptionGroup) as raised:
        await stream({"type": "http"}, receive, send)
    assert raised.group_contains(RuntimeError, match="unforeseen")
    assert asyncio.all_tasks() <= before


def test_one_user_cannot_hold_all_streams() -> None:
    limit = StreamLimit()
    with ExitStack() as stack:
        for _ in range(MAX_STREAMS_OF_USER):
            stack.enter_context(limit.held("usr_1"))
        with pytest.raises(TooManyRequests), limit.held("usr_1"):
            pass
        with limit.held("usr_2"):
            pass
    with limit.held("usr_1"):
        pass
