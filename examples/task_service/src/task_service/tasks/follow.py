"""A run's log as it grows, wherever the run is executed."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import timedelta

from msk_auth import Clock
from task_service.handlers import Progress

from .runs import Runs
from .shapes import LogLine
from .signals import Signals, wait_for_event


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Nothing happened for a while; the reader's connection must not look dead."""


class LogFollower:
    """Gives logs to readers.

    Args:
        runs: Where they are read from.
        signals: Tells what happens in this process, so that its runs are followed without delay.
        clock: Its monotonic side measures the heartbeats.
        poll: How often to look when nothing was heard: the run may be executed by another process.
        heartbeat: After how long a silence to give a :class:`Heartbeat`.
    """

    def __init__(
        self,
        runs: Runs,
        signals: Signals,
        clock: Clock,
        *,
        poll: timedelta = timedelta(seconds=1),
        heartbeat: timedelta = timedelta(seconds=15),
    ) -> None:
        self._runs = runs
        self._signals = signals
        self._clock = clock
        self._poll = poll.total_seconds()
        self._heartbeat = heartbeat.total_seconds()

    async def follow_log(
        self, run_id: str, after_seq: int = 0
    ) -> AsyncGenerator[LogLine | Progress | Heartbeat]:
        """Give every piece after `after_seq`, and end when the run is over and its log is read to the end.

        What the handler has reported of its progress is given when the reader comes and when it has changed.

        Whether the reader may see the run is asked of :meth:`Runs.get` before.

        Args:
            run_id: Whose log.
            after_seq: The number of the last piece that the reader has (`Last-Event-ID`); 0 for none.

        Raises:
            StoreUnavailable: The database does not answer. The reader comes back with the last number it has.
        """
        with self._signals.listening(run_id) as changed:
            spoke_at = self._clock.monotonic()
            told: Progress | None = None
            while True:
                changed.clear()
                # In this order: once the run is over its log is complete, so nothing is missed.
                pulse = await self._runs.pulse(run_id)
                lines = await self._runs.read_log(run_id, after_seq)
                for line in lines:
                    after_seq = line.seq
                    yield line
                news = not pulse.is_over and pulse.progress != told
                told = pulse.progress
                if news:
                    # Nothing after something: another attempt has begun.
                    yield told or Progress(0.0)
                if lines or news:
                    spoke_at = self._clock.monotonic()
                if lines:
                    continue
                if pulse.is_over:
                    return
                await wait_for_event(changed, self._poll)
                if self._clock.monotonic() - spoke_at >= self._heartbeat:
                    spoke_at = self._clock.monotonic()
                    yield Heartbeat()
