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
    result: R | None = None
    error: Exception | None = None
    is_done: bool = False


class GroupCommit(Generic[T, R]):
    """Writes one item at once, and those that arrive meanwhile in one transaction after it.

    Args:
        write: Writes items in one transaction, and returns the result of each.
    """

    def __init__(self, write: Callable[[Sequence[T]], Awaitable[Sequence[R]]]) -> None:
        self._write = write
        self._waiting: list[_Entry[T, R]] = []
        # Fair: it wakes its waiters in order, and the first of them writes for all.
        self._lock = asyncio.Lock()

    async def add(self, item: T) -> R:
        """Write an item.

        Returns:
            What `write` has returned for it.

        Raises:
            Exception: What `write` has raised. An item that the database refuses does not affect the others.
        """
        entry = _Entry[T, R](item)
        self._waiting.append(entry)
        try:
            async with self._lock:
                while not entry.is_done:
                    await self._write_waiting()
        finally:
            # Of a caller that was cancelled before its item was written.
            if entry in self._waiting:
                self._waiting.remove(entry)
        if entry.error is not None:
            raise entry.error
        return entry.result  # type: ignore[return-value]

    async def _write_waiting(self) -> None:
        entries, self._waiting = self._waiting, []
        try:
            await self._write_all(entries)
        finally:
            # The others' items, if the caller that writes was cancelled.
            self._waiting[:0] = [each for each in entries if not each.is_done]

    async def _write_all(self, entries: Sequence[_Entry[T, R]]) -> None:
        try:
            results = await self._write([each.item for each in entries])
        except Exception as error:  # noqa: BLE001 - raised to each caller
            if len(entries) > 1 and not isinstance(error, StoreUnavailable):
                for each in entries:
                    await self._write_all([each])
                return
            for each in entries:
                each.error, each.is_done = error, True
        else:
            for each, result in zip(entries, results, strict=True):
                each.result, each.is_done = result, True
