"""Server-sent events (WHATWG HTML, section 9.2), which end with the producer, the client or the service."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from task_service.errors import TooManyRequests

MAX_STREAMS_OF_USER: Final = 32
"""The maximum number of a user's open streams in one process."""

Write = Callable[[bytes], Awaitable[None]]


class StreamLimit:
    """Limits each user's open streams in this process."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    @contextmanager
    def held(self, user_id: str) -> Generator[None]:
        """Count one stream of a user.

        Raises:
            TooManyRequests: The user has :data:`MAX_STREAMS_OF_USER` open.
        """
        if self._open[user_id] >= MAX_STREAMS_OF_USER:
            raise TooManyRequests
        self._open[user_id] += 1
        try:
            yield
        finally:
            # Without users who have none.
            self._open -= Counter([user_id])


class EventStream(Response):
    """Sends the output of `produce` until `produce` returns, the client disconnects, or the service stops.

    All of its tasks end with the response.

    Args:
        produce: Called with a function that sends bytes.
        stopping: Set when the service begins to stop.
        held: A context manager around the stream.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        produce: Callable[[Write], Coroutine[Any, Any, None]],
        *,
        stopping: asyncio.Event,
        held: AbstractContextManager[None],
    ) -> None:
        # The length is unknown; the base class would send a length of 0.
        super().__init__(headers={"x-accel-buffering": "no", "vary": "accept"})
        del self.headers["content-length"]
        self._produce = produce
        self._stopping = stopping
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""

        async def write(data: bytes) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": True})

        async def until_disconnected() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        start = {
            "type": "http.response.start",
            "status": self.status_code,
            "headers": self.raw_headers,
        }
        with self._held:
            await send(start)
            async with asyncio.TaskGroup() as group:
                ends: list[asyncio.Task[Any]] = [
                    group.create_task(self._produce(write)),
                    group.create_task(until_disconnected()),
                    group.create_task(self._stopping.wait()),
                ]
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                for task in ends:
                    task.cancel()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
