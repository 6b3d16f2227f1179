"""The log and the progress of a run: from its handler into the database, and from there to readers.

:class:`RunLog` collects what a handler prints, bounded, cleaned and in batches. A batch that was handed out stays the same
until it is acknowledged. The database recognises a batch that it has already by the size of the log before and after it.
So writing a batch again is harmless, as happens when the answer to a commit is lost.

:class:`RunProgress` keeps the latest report of a handler, which may report as often as it likes.

:class:`LogReader` follows both as they grow, wherever the run is executed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import select

from msk_auth import Clock, StoreUnavailable
from task_service.db.engine import Database
from task_service.db.schema import run_log, runs
from task_service.handlers import Progress, Stream

from .models import LogLine, RunState
from .notifications import LocalEvents, wait_for_event

MAX_LOG_BYTES: Final = 256 * 1024
"""How much of a run's output is kept, over all its attempts, in bytes of UTF-8."""
TRUNCATION_NOTE: Final = (
    f"\nThe output is longer than {MAX_LOG_BYTES // 1024} KiB. The rest is not kept.\n"
)
READ_LINES: Final = 500
"""How many lines :meth:`LogReader.read` returns at most."""
PROGRESS_PAUSE: Final = 1.0
"""How many seconds lie between two writes of one run's progress."""

_MAX_PROGRESS_PAUSE: Final = 5.0
_MAX_SEQ: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class LogBatch:
    """Consecutive lines of a log.

    Attributes:
        size_before: The size of the log (`runs.log_bytes`) that the lines are appended to.
        size_after: Its size with them.
        truncated: True if nothing follows, because the log is full.
    """

    lines: tuple[LogLine, ...]
    size_before: int
    size_after: int
    truncated: bool


@dataclass(slots=True)
class _Piece:
    stream: Stream
    at: datetime
    texts: list[str]


class RunLog:
    """Collects one attempt's output.

    Args:
        clock: For the time of each line.
        last_seq: The number of the last line in the database.
        size: The size of the log in the database, in bytes.
        truncated: True if an earlier attempt has filled the log.

    Attributes:
        written: Set when there is something to save, or the run is over.
        closed: Set when the run is over.
    """

    def __init__(
        self, clock: Clock, *, last_seq: int = 0, size: int = 0, truncated: bool = False
    ) -> None:
        self._clock = clock
        self._next_seq = last_seq + 1
        self._size = size
        self._truncated = truncated
        self._batched_size = size
        self._pieces: list[_Piece] = []
        self._batch: LogBatch | None = None
        self.written = asyncio.Event()
        self.closed = asyncio.Event()

    @property
    def full(self) -> bool:
        """True once further output is dropped."""
        return self._truncated

    def write(self, stream: Stream, text: str) -> None:
        """Take text. What a database cannot hold (NUL, lone surrogates) is replaced; what exceeds the bound is dropped."""
        if self._truncated or not text:
            return
        data = text.replace("\x00", "\ufffd").encode("utf-8", "replace")
        room = MAX_LOG_BYTES - self._size
        if len(data) > room:
            self._add(stream, data[:room])
            self._add("system", TRUNCATION_NOTE.encode())
            self._truncated = True
        else:
            self._add(stream, data)
        self.written.set()

    def close(self) -> None:
        """Declare the run over: nothing more is written."""
        self.closed.set()
        self.written.set()

    def next_batch(self) -> LogBatch | None:
        """The batch to save next; the same again until it is acknowledged, and None if there is nothing to save."""
        if self._batch is None and self._pieces:
            lines = tuple(
                LogLine(
                    seq=self._next_seq + index,
                    at=piece.at,
                    stream=piece.stream,
                    text="".join(piece.texts),
                )
                for index, piece in enumerate(self._pieces)
            )
            self._batch = LogBatch(lines, self._batched_size, self._size, self._truncated)
            self._next_seq += len(lines)
            self._batched_size = self._size
            self._pieces = []
        return self._batch

    @property
    def has_more(self) -> bool:
        """True if there is something to save besides the batch that was handed out."""
        return bool(self._pieces)

    def acknowledge(self) -> None:
        """Forget the batch that was handed out, once it is saved."""
        self._batch = None
        if not self._pieces and not self.closed.is_set():
            self.written.clear()

    def _add(self, stream: Stream, data: bytes) -> None:
        # Cutting at a byte may leave the beginning of a character.
        text = data.decode("utf-8", "ignore")
        if not text:
            return
        self._size += len(data)
        if self._pieces and self._pieces[-1].stream == stream:
            self._pieces[-1].texts.append(text)
        else:
            self._pieces.append(_Piece(stream, self._clock.now(), [text]))


class RunProgress:
    """The latest report of one run.

    Args:
        save: Writes a report; raises StoreUnavailable if the database does not answer.
        pause: How many seconds lie between two writes.
    """

    def __init__(
        self, save: Callable[[Progress], Awaitable[object]], *, pause: float = PROGRESS_PAUSE
    ) -> None:
        self._save = save
        self._pause = pause
        self._latest: Progress | None = None
        self._changed = asyncio.Event()

    def report(self, progress: Progress) -> None:
        """Take a report. One that repeats the latest costs nothing."""
        if progress != self._latest:
            self._latest = progress
            self._changed.set()

    async def keep_saving(self) -> None:
        """Write what is reported until cancelled, and retry while the database does not answer."""
        pause = self._pause
        while True:
            await self._changed.wait()
            self._changed.clear()
            assert self._latest is not None  # noqa: S101 - set before the event
            try:
                await self._save(self._latest)
            except StoreUnavailable:
                self._changed.set()
                pause = min(_MAX_PROGRESS_PAUSE, 2 * pause)
            else:
                pause = self._pause
            await asyncio.sleep(pause)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Nothing happened for a while; the reader's connection must not look dead."""


class LogReader:
    """Reads logs for clients. The caller verifies with :meth:`.runs.Runs.get` that the client may see the run.

    Args:
        db: The service's database.
        events: The events of this process, so that its own runs are followed without delay.
        clock: Its monotonic side measures the heartbeats.
        poll: How often to look without an event: another process may execute the run.
        heartbeat: After how long a silence to yield a :class:`Heartbeat`.
    """

    def __init__(
        self,
        db: Database,
        events: LocalEvents,
        clock: Clock,
        *,
        poll: timedelta = timedelta(seconds=1),
        heartbeat: timedelta = timedelta(seconds=15),
    ) -> None:
        self._db = db
        self._events = events
        self._clock = clock
        self._poll = poll.total_seconds()
        self._heartbeat = heartbeat.total_seconds()

    async def read(self, run_id: str, after_seq: int = 0) -> Sequence[LogLine]:
        """At most :data:`READ_LINES` lines of a run's log.

        Args:
            run_id: The id of the run.
            after_seq: The number of the last line that the client has; 0 for none.

        Raises:
            StoreUnavailable: The database does not answer.
        """
        async with self._db.read() as connection:
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
    ) -> AsyncGenerator[LogLine | Progress | Heartbeat]:
        """Yield every line after `after_seq`, and end when the run is over and its log is read to the end.

        The handler's latest progress report is yielded at the start and whenever it changes.

        Args:
            run_id: The id of the run.
            after_seq: The number of the last line that the client has (`Last-Event-ID`); 0 for none.

        Raises:
            StoreUnavailable: The database does not answer. The client retries from the last number it has.
        """
        with self._events.subscribe(run_id) as changed:
            yielded_at = self._clock.monotonic()
            reported: Progress | None = None
            while True:
                changed.clear()
                # In this order: once the run is over its log is complete, so nothing is missed.
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
                    yielded_at = self._clock.monotonic()
                if lines:
                    continue
                if is_over:
                    return
                await wait_for_event(changed, self._poll)
                if self._clock.monotonic() - yielded_at >= self._heartbeat:
                    yielded_at = self._clock.monotonic()
                    yield Heartbeat()

    async def _progress_of(self, run_id: str) -> tuple[bool, Progress | None]:
        """Whether the run has ended or is deleted, and its handler's latest report."""
        async with self._db.read() as connection:
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
