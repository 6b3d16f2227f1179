"""Measuring things in turns."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from .result import Aim, Row, Spread

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured.

    Attributes:
        is_quick: As little as shows that it works: its figures mean nothing.
        minutes: How long a soak lasts.
    """

    is_quick: bool = False
    minutes: float = 30.0

    def pick(self, quick: int, normal: int) -> int:
        """The number for this scale."""
        return quick if self.is_quick else normal


@dataclass(frozen=True, slots=True)
class Work:
    """One thing to measure, and the row that it becomes.

    Attributes:
        group: Of the row.
        name: No other work has it. The row's name is what follows the group's and a comma, or all of it.
        call: Does it once; an awaitable that it returns is awaited.
        against: The name of the work that it is compared with.
        at_most: The greatest ratio that is aimed at.
        is_async: Whether `call` returns an awaitable.
    """

    group: str
    name: str
    call: Callable[[], Awaitable[object]] | Call
    against: str = ""
    at_most: float | None = None
    is_async: bool = False


def take_turns(
    works: Sequence[Work],
    *,
    rounds: int,
    seconds: float,
    clock: Callable[[], float] = time.thread_time,
    runner: asyncio.Runner | None = None,
) -> dict[str, list[float]]:
    """Microseconds per call of each work, one figure for each round.

    In each round every work is called again and again for about `seconds`, one work after the other.

    Args:
        works: What takes turns.
        rounds: How many rounds there are, after one that is not counted.
        seconds: How long a turn is, about.
        clock: In seconds. The thread's processor time is not disturbed by other processes; what waits for a
            server has to be measured by `time.perf_counter`.
        runner: On whose event loop the asynchronous works run.
    """
    calls = {work.name: _calls(work, seconds, clock, runner) for work in works}
    samples: dict[str, list[float]] = {work.name: [] for work in works}
    gc.collect()
    # What is there already is not looked through after every round.
    gc.freeze()
    gc.disable()
    try:
        for number in range(rounds + 1):
            # Another one begins each round: none is always the first after a pause, or after the same other.
            first = number % len(works)
            for work in (*works[first:], *works[:first]):
                took = _turn(work, calls[work.name], clock, runner)
                if number > 0:
                    samples[work.name].append(took / calls[work.name] * 1e6)
            gc.collect()
    finally:
        gc.enable()
        gc.unfreeze()
    return samples


def rows(works: Sequence[Work], samples: Mapping[str, Sequence[float]]) -> list[Row]:
    """Rows with the columns `time` and, where a work is compared with another, `ratio`."""
    made: list[Row] = []
    for work in works:
        times = samples[work.name]
        cells = {"time": Spread.of(times)}
        aim = None
        if work.against:
            cells["ratio"] = Spread.of(ratios(times, samples[work.against]))
            if work.at_most is not None:
                aim = Aim("ratio", "at most", work.at_most)
        own = f"{work.group}, "
        name, against = work.name.removeprefix(own), work.against.removeprefix(own)
        made.append(Row(work.group, name, cells, against, aim))
    return made


def ratios(samples: Sequence[float], reference: Sequence[float]) -> list[float]:
    """Round by round: what disturbs a round disturbs both."""
    return [own / other for own, other in zip(samples, reference, strict=True)]


def _calls(
    work: Work, seconds: float, clock: Callable[[], float], runner: asyncio.Runner | None
) -> int:
    """How many calls fill a turn, found by doubling; the best of three, so that no pause of the machine counts."""
    calls = 1
    while True:
        took = min(_turn(work, calls, clock, runner) for _ in range(3))
        if took >= seconds / 8:
            return max(1, round(calls * seconds / took))
        calls *= 2


def _turn(
    work: Work, calls: int, clock: Callable[[], float], runner: asyncio.Runner | None
) -> float:
    if work.is_async:
        assert runner is not None, f"{work.name} needs an event loop"
        return runner.run(_async_turn(work, calls, clock))
    call = work.call
    began = clock()
    for _ in range(calls):
        call()
    return clock() - began


async def _async_turn(work: Work, calls: int, clock: Callable[[], float]) -> float:
    call: Callable[[], Awaitable[object]] = work.call  # type: ignore[assignment]
    began = clock()
    for _ in range(calls):
        await call()
    return clock() - began
