"""What a run prints, on its way into the database: bounded, cleaned and in batches.

A batch that was handed out stays the same until it is acknowledged. Together with the size of the log before and
after it, by which the database recognises a batch that it has already, writing one again is harmless: it is what
happens when the answer to a commit got lost.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime

from msk_auth import Clock
from task_service.handlers import Stream

from .shapes import LogLine

MAX_LOG_BYTES = 256 * 1024
"""How much of a run's output is kept, over all its attempts, in bytes of UTF-8."""
TRUNCATION_NOTE = (
    f"\nThe output is longer than {MAX_LOG_BYTES // 1024} KiB. The rest is not kept.\n"
)


@dataclass(frozen=True, slots=True)
class LogBatch:
    """Consecutive pieces of a log.

    Attributes:
        size_before: The size of the log (`runs.log_bytes`) to which the pieces belong.
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
        clock: For the time of each piece.
        last_seq: The number of the last piece that is in the database.
        size: How many bytes are there.
        truncated: True if an earlier attempt has filled the log.
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
        """Set when there is something to save, or the run is over."""
        self.closed = asyncio.Event()
        """Set when the run is over, so that nothing waits any longer."""

    @property
    def full(self) -> bool:
        """True once what comes is dropped."""
        return self._truncated

    def write(self, stream: Stream, text: str) -> None:
        """Take text. What a database cannot hold (NUL, lone surrogates) is replaced; what is too much is dropped."""
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
        """Say that the run is over."""
        self.closed.set()
        self.written.set()

    def next_batch(self) -> LogBatch | None:
        """What to save next; the same again until it is acknowledged, and None if there is nothing."""
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
        """The batch is saved."""
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
