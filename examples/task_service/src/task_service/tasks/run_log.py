"""The log of a run: from its handler into the database, and from there, with the run's progress, to readers.

:class:`RunLog` collects a handler's output, cleaned and in batches. A batch never changes, and its lines are numbered. So
writing a batch again is harmless, for example after the answer to a commit was lost.

The beginning and the end of the output are kept: the run's work, and the reason of a failure. The number of a dropped line
stays unused, so a reader finds the gap by the numbers, and the run has its size.

:class:`LogReader` follows a growing log and the reports of progress, wherever the run is executed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import select

from msk_auth import Clock
from task_service.db.engine import Database
from task_service.db.schema import run_log, runs
from task_service.handlers import Progress, Stream

from .models import LogLine, RunState
from .notifications import Notifications, wait_for_event

HEAD_BYTES: Final = 2 * 1024 * 1024
"""The maximum kept size of the beginning of a run's output, over all its attempts, in bytes of UTF-8."""
TAIL_BYTES: Final = 2 * 1024 * 1024
"""The minimum kept size of the end; the maximum is :data:`MAX_LINE_BYTES` more."""
MAX_LINE_BYTES: Final = 16 * 1024
"""The maximum size of a stored line."""
MAX_LINES: Final = 5_000
"""The maximum number of kept lines of each, for output that changes its stream with every word."""
READ_LINES: Final = 500
"""The maximum number of lines that :meth:`LogReader.read` returns."""

_MAX_SEQ: Final = 2**31 - 1
_MAX_CHARACTERS: Final = MAX_LINE_BYTES // 4


@dataclass(slots=True)
class KeptLine:
    """The number of a line, its size in bytes of UTF-8, and its number of line ends."""

    seq: int
    size: int
    ends: int


@dataclass(frozen=True, slots=True)
class SavedLog:
    """The stored part of a log.

    Attributes:
        lines: The lines, in their order.
        missing_bytes: The size of the output that is not kept.
        missing_lines: The number of its line ends.
    """

    lines: tuple[KeptLine, ...] = ()
    missing_bytes: int = 0
    missing_lines: int = 0


_NOTHING: Final = SavedLog()


@dataclass(frozen=True, slots=True)
class LogBatch:
    """Consecutive lines of a log, and the earlier lines that they replace.

    Attributes:
        kept_bytes: The kept size, after the batch is saved.
        missing_bytes: See :attr:`SavedLog.missing_bytes`, after the batch is saved.
        missing_lines: See :attr:`SavedLog.missing_lines`, after the batch is saved.
        delete_after: The number of the last line of the beginning, which stays.
        delete_through: The number of the last line that is deleted.
    """

    lines: tuple[LogLine, ...]
    kept_bytes: int
    missing_bytes: int
    missing_lines: int
    delete_after: int
    delete_through: int


@dataclass(slots=True)
class _Unsaved:
    stream: Stream
    at: datetime
    texts: list[str]


class RunLog:
    """Collects one attempt's output.

    Args:
        clock: For the time of each line.
        saved: The log of earlier attempts in the database.

    Attributes:
        written: Set when there is output to save, or the run is over.
        closed: Set when the run is over.
    """

    def __init__(self, clock: Clock, *, saved: SavedLog = _NOTHING) -> None:
        self._clock = clock
        self._head_bytes = self._head_seq = 0
        self._tail: deque[KeptLine] = deque()
        self._tail_bytes = 0
        self._missing_bytes = saved.missing_bytes
        self._missing_lines = saved.missing_lines
        self._newest = KeptLine(0, 0, 0)
        for line in saved.lines:
            self._append(line)
        self._unsaved: dict[int, _Unsaved] = {}
        self._delete_through = 0
        self.written = asyncio.Event()
        self.closed = asyncio.Event()

    @property
    def full(self) -> bool:
        """True while more output is unsaved than will be kept, so that a handler should pause."""
        return self.overflows and self._tail[0].seq in self._unsaved

    @property
    def overflows(self) -> bool:
        """True if some of the output is not kept."""
        return self._missing_bytes > 0

    def write(self, stream: Stream, text: str) -> None:
        """Add text. Characters that a database cannot store (NUL, lone surrogates) are replaced.

        Text of a handler that continues after its run is over is dropped.
        """
        if self.closed.is_set():
            return
        clean = text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()
        # A character has at most four bytes.
        for start in range(0, len(clean), _MAX_CHARACTERS):
            self._add(stream, clean[start : start + _MAX_CHARACTERS])
            self._push_out()
        if clean:
            self.written.set()

    def close(self) -> None:
        """Declare the run over: no more output follows."""
        self.closed.set()
        self.written.set()

    def take(self) -> LogBatch | None:
        """The lines that have not been taken yet; None if there are none. To repeat a save, use the same batch."""
        if not self.closed.is_set():
            self.written.clear()
        if not self._unsaved:
            return None
        lines = tuple(
            LogLine(seq=seq, at=line.at, stream=line.stream, text="".join(line.texts))
            for seq, line in self._unsaved.items()
        )
        self._unsaved.clear()
        return LogBatch(
            lines=lines,
            kept_bytes=self._head_bytes + self._tail_bytes,
            missing_bytes=self._missing_bytes,
            missing_lines=self._missing_lines,
            delete_after=self._head_seq,
            delete_through=self._delete_through,
        )

    def _add(self, stream: Stream, text: str) -> None:
        size, ends = len(text.encode()), text.count("\n")
        last, unsaved = self._newest, self._unsaved.get(self._newest.seq)
        fits = last.size + size <= MAX_LINE_BYTES and (self._tail or self._has_room(size))
        if unsaved is not None and unsaved.stream == stream and fits:
            unsaved.texts.append(text)
            last.size += size
            last.ends += ends
            if self._tail:
                self._tail_bytes += size
            else:
                self._head_bytes += size
        else:
            self._append(KeptLine(last.seq + 1, size, ends))
            self._unsaved[last.seq + 1] = _Unsaved(stream, self._clock.now(), [text])

    def _append(self, line: KeptLine) -> None:
        """Append to the beginning, until it is full or a number is missing; then to the end."""
        if (
            not self._tail
            and line.seq == self._head_seq + 1 <= MAX_LINES
            and self._has_room(line.size)
        ):
            self._head_seq = line.seq
            self._head_bytes += line.size
        else:
            self._tail.append(line)
            self._tail_bytes += line.size
        self._newest = line

    def _has_room(self, size: int) -> bool:
        return self._head_bytes + size <= HEAD_BYTES

    def _push_out(self) -> None:
        """Drop the oldest lines of the end, saved or not, while enough remains without them."""
        while self._tail and (
            self._tail_bytes - self._tail[0].size >= TAIL_BYTES or len(self._tail) > MAX_LINES
        ):
            oldest = self._tail.popleft()
            if self._unsaved.pop(oldest.seq, None) is None:
                self._delete_through = oldest.seq
            self._tail_bytes -= oldest.size
            self._missing_bytes += oldest.size
            self._missing_lines += oldest.ends


@dataclass(frozen=True, slots=True)
class LogReader:
    """Reads logs for clients. The caller verifies with :meth:`.runs.Runs.get` that the client may see the run.

    Args:
        db: The service's database.
        notifications: The notifications of this process, so that its own runs are followed without delay.
        clock: The clock, whose monotonic side measures the heartbeats.
        poll: The time between reads without an event: another process may execute the run.
        heartbeat: The silence after which to yield None.
    """

    db: Database
    notifications: Notifications
    clock: Clock
    poll: timedelta = timedelta(seconds=1)
    heartbeat: timedelta = timedelta(seconds=15)

    async def read(self, run_id: str, after_seq: int = 0) -> Sequence[LogLine]:
        """At most :data:`READ_LINES` lines of a run's log.

        Args:
            run_id: The id of the run.
            after_seq: The number of the client's last line; 0 for none.

        Raises:
            StoreUnavailable: The database does not answer.
        """
        async with self.db.read() as connection:
            result = await connection.execute(
                select(run_log)
                .where(
                    run_log.c.run_id == run_id,
                    run_log.c.seq > max(0, min(after_seq, _MAX_SEQ)),
                )
                .order_by(run_log.c.seq)
                .limit(READ_LINES)
            )
            return [LogLine.model_validate(row) for row in result]

    async def follow(
        self, run_id: str, after_seq: int = 0
    ) -> AsyncGenerator[LogLine | Progress | None]:
        """Yield every line after `after_seq`, and end when the run is over and its log is read to the end.

        The handler's latest progress report is yielded at the start and whenever it changes, and None after a silence, so that
        the reader's connection does not look dead.

        Args:
            run_id: The id of the run.
            after_seq: The number of the client's last line (`Last-Event-ID`); 0 for none.

        Raises:
            StoreUnavailable: The database does not answer. The client retries from its last number.
        """
        with self.notifications.subscribe(run_id) as changed:
            yielded_at = self.clock.monotonic()
            reported: Progress | None = None
            while True:
                changed.clear()
                # In this order: after the run is over its log is complete, so no line is missed.
                is_over, progress = await self._progress_of(run_id)
                lines = await self.read(run_id, after_seq)
                for line in lines:
                    after_seq = line.seq
                    yield line
                has_progressed = not is_over and progress != reported
                reported = progress
                if has_progressed:
                    # None after a report: another attempt has begun.
                    yield reported or Progress(0.0)
                if lines or has_progressed:
                    yielded_at = self.clock.monotonic()
                if lines:
                    continue
                if is_over:
                    return
                await wait_for_event(changed, self.poll.total_seconds())
                if self.clock.monotonic() - yielded_at >= self.heartbeat.total_seconds():
                    yielded_at = self.clock.monotonic()
                    yield None

    async def _progress_of(self, run_id: str) -> tuple[bool, Progress | None]:
        """True if the run has ended or is deleted, and its handler's latest report."""
        async with self.db.read() as connection:
            result = await connection.execute(
                select(runs.c.state, runs.c.progress, runs.c.progress_text).where(
                    runs.c.id == run_id
                )
            )
            row = result.one_or_none()
        if row is None:
            return True, None
        progress = None if row.progress is None else Progress(row.progress, row.progress_text)
        return RunState(row.state).is_final, progress
