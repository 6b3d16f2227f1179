"""Writes together what is due at the same time, so that it costs one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from msk_auth import StoreUnavailable

T = TypeVar("T")
R = TypeVar("R")


@dataclass(slots=True, eq=False)
class _Entry(Generic[T, R]):
    item: T
    result: asyncio.Future[R]


class GroupCommit(Generic[T, R]):
    """Writes one item at once, and those that arrive meanwhile in one transaction after it.

    Args:
        write: Writes items in one transaction, and returns the result of each. It runs in a task of its own, in the context
            of one of the callers.
    """

    def __init__(self, write: Callable[[Sequence[T]], Awaitable[Sequence[R]]]) -> None:
        self._write = write
        self._waiting: list[_Entry[T, R]] = []
        # No caller's own task: one that is cancelled must not cancel the others' commit, which could not be repeated
        # without knowing whether it took place.
        self._writing: asyncio.Task[None] | None = None

    async def add(self, item: T) -> R:
        """Write an item. One whose caller is cancelled is not written, unless that has begun.

        Returns:
            What `write` has returned for it.

        Raises:
            Exception: What `write` has raised. An item that the database refuses does not affect the others.
        """
        entry = _Entry[T, R](item, asyncio.get_running_loop().create_future())
        self._waiting.append(entry)
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_waiting(), name="group commit")
        return await entry.result

    async def _write_waiting(self) -> None:
        try:
            while self._waiting:
                entries, self._waiting = self._waiting, []
                await self._write_all([each for each in entries if not each.result.done()])
        finally:
            self._writing = None

    async def _write_all(self, entries: Sequence[_Entry[T, R]]) -> None:
        if not entries:
            return
        try:
            results = await self._write([each.item for each in entries])
        except Exception as error:  # noqa: BLE001 - raised to each caller
            # An outage may have come after the commit. Anything else came instead of it.
            if len(entries) > 1 and not isinstance(error, StoreUnavailable):
                for each in entries:
                    await self._write_all([each])
                return
            for each in entries:
                if not each.result.done():
                    each.result.set_exception(error)
        else:
            for each, result in zip(entries, results, strict=True):
                if not each.result.done():
                    each.result.set_result(result)
