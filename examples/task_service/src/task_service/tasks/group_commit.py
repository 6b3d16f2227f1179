"""Writes together what is due at the same time, so that it costs one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from msk_auth.errors import StoreUnavailable

T = TypeVar("T")
R = TypeVar("R")


@dataclass(slots=True, eq=False)
class _Entry(Generic[T, R]):
    item: T
    result: asyncio.Future[R]


@dataclass(slots=True, eq=False)
class _Group(Generic[T, R]):
    """What is written together: all that waits when it is taken."""

    waiting: list[_Entry[T, R]]
    taken: list[_Entry[T, R]] | None = None

    def entries(self) -> list[_Entry[T, R]]:
        if self.taken is None:
            self.taken = [each for each in self.waiting if not each.result.done()]
            self.waiting.clear()
        return self.taken

    def take(self) -> Sequence[T]:
        return [each.item for each in self.entries()]


class GroupCommit(Generic[T, R]):
    """Writes one item at once, and those that arrive meanwhile in one transaction after it.

    Args:
        write: Writes items in one transaction, and returns the result of each. It takes the items by calling its argument. One
            that waits for a lock does so after that, and so writes also what has arrived meanwhile. There may be no items,
            if all callers were cancelled. It runs in a task of its own, in the context of one of the callers.
    """

    def __init__(
        self, write: Callable[[Callable[[], Sequence[T]]], Awaitable[Sequence[R]]]
    ) -> None:
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
                await self._write_group(_Group(self._waiting))
        finally:
            self._writing = None

    async def _write_group(self, group: _Group[T, R]) -> None:
        if all(each.result.done() for each in group.waiting):
            group.waiting.clear()
            return
        try:
            results = await self._write(group.take)
        except Exception as error:  # noqa: BLE001 - raised to each caller
            entries = group.entries()
            # An outage may have come after the commit. Anything else came instead of it.
            if len(entries) > 1 and not isinstance(error, StoreUnavailable):
                for each in entries:
                    await self._write_group(_Group([each]))
                return
            for each in entries:
                if not each.result.done():
                    each.result.set_exception(error)
        else:
            for each, result in zip(group.entries(), results, strict=True):
                if not each.result.done():
                    each.result.set_result(result)
