"""A stream ends with all of its tasks, whichever of them ends first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, nullcontext

import pytest
from starlette.types import Message

from task_service.api.event_stream import (
    MAX_STREAMS_OF_USER,
    EventStream,
    ServerEvent,
    StreamLimit,
    Write,
)
from task_service.errors import TooManyRequests

pytestmark = pytest.mark.anyio


async def sent_by(
    produce: Callable[[Write], Awaitable[None]],
    *,
    stopping: asyncio.Event | None = None,
    gone: asyncio.Event | None = None,
) -> list[Message]:
    sent: list[Message] = []

    async def receive() -> Message:
        await (gone or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    before = asyncio.all_tasks()
    stream = EventStream(produce, stopping=stopping or asyncio.Event(), held=nullcontext())
    async with asyncio.timeout(60):
        await stream({"type": "http"}, receive, send)
    assert asyncio.all_tasks() <= before
    return sent


def event(text: str) -> bytes:
    return ServerEvent("log", text, id="7").encode()


async def test_it_sends_what_is_produced_and_ends_with_it() -> None:
    async def produce(write: Write) -> None:
        await write(event("a"))
        await write(event("b"))

    start, first, second, end = await sent_by(produce)
    headers = dict(start["headers"])
    assert headers[b"content-type"].startswith(b"text/event-stream")
    assert b"content-length" not in headers
    assert first["body"] == b"id: 7\nevent: log\ndata: a\n\n"
    assert (second["more_body"], end) == (
        True,
        {"type": "http.response.body", "body": b"", "more_body": False},
    )


@pytest.mark.parametrize("who", ["client", "service"])
async def test_it_ends_when_the_client_goes_away_or_the_service_stops(who: str) -> None:
    over, closed = asyncio.Event(), asyncio.Event()

    async def produce(write: Write) -> None:
        try:
            over.set()
            await asyncio.Event().wait()
        finally:
            closed.set()

    await sent_by(produce, **{"gone" if who == "client" else "stopping": over})
    assert closed.is_set()


async def test_what_goes_wrong_in_the_middle_breaks_it_off() -> None:
    async def produce(write: Write) -> None:
        raise RuntimeError("unforeseen")

    with pytest.raises(ExceptionGroup) as raised:
        await sent_by(produce)
    assert raised.group_contains(RuntimeError, match="unforeseen")


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
