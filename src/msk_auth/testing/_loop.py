"""An event loop in a thread, for tests that call asynchronous code from several threads at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")

_LONGEST_SECONDS = 60


class BackgroundLoop:
    """An event loop in a thread of its own while the `with` block lasts."""

    def __enter__(self) -> BackgroundLoop:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="background-loop")
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.run(_cancel_what_is_left())
        self.run(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result; from several threads they run as tasks side by side.

        Raises:
            TimeoutError: It took longer than a minute.
        """
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_LONGEST_SECONDS)


async def _cancel_what_is_left() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
