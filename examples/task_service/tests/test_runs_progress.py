"""Progress of a run: what a handler may report, how often it is written, and how readers receive it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from examples.task_service.tests.runs_support import ANN
from examples.task_service.tests.test_runs_runner import Blocker, World, sqlite, world

from msk_auth import SystemClock
from msk_auth.errors import StoreUnavailable
from task_service.handlers import HandlerResult, Progress, RunContext
from task_service.handlers.command import ProgressLines
from task_service.tasks.run_log import LogReader
from task_service.tasks.worker_runs import AcquiredRun, WorkerRuns

pytestmark = pytest.mark.anyio

__all__ = ["sqlite", "world"]


class NoLog:
    full = False

    def write(self, stream: str, text: str) -> None:
        raise AssertionError("nothing is logged here")


def context(reports: list[Progress]) -> RunContext:
    return RunContext("run_1", 1, SystemClock(), NoLog(), reports.append)


# What a handler may report


def test_a_report_is_a_fraction_and_one_line_of_text() -> None:
    reports: list[Progress] = []
    it = context(reports)
    it.report_progress(0)
    it.report_progress(0.25, " two\n lines\x00 ")
    it.report_progress(1, "x" * 500)
    it.report_progress(0.5, " \t")
    assert reports == [
        Progress(0.0),
        Progress(0.25, "two lines"),
        Progress(1.0, "x" * 200),
        Progress(0.5),
    ]


@pytest.mark.parametrize("fraction", [-0.01, 1.01, 40, float("nan"), float("inf")])
def test_a_number_outside_0_to_1_is_refused(fraction: float) -> None:
    reports: list[Progress] = []
    with pytest.raises(ValueError, match="a number from 0 to 1"):
        context(reports).report_progress(fraction)
    assert reports == []


def test_a_context_without_a_callback_accepts_reports() -> None:
    RunContext("run_1", 1, SystemClock(), NoLog()).report_progress(0.5)


# What a command may report


def reported(*pieces: str) -> tuple[str, list[tuple[float, str | None]]]:
    """What is left for the log, and what was reported."""
    reports: list[tuple[float, str | None]] = []
    lines = ProgressLines(lambda fraction, text: reports.append((fraction, text)))
    left = "".join(map(lines.feed, pieces))
    return left + lines.feed("", is_over=True), reports


@pytest.mark.parametrize(
    ("line", "report"),
    [
        ("::progress 40\n", (0.4, None)),
        ("::progress 40%\n", (0.4, None)),
        ("::progress 12.5 Copying the files\n", (0.125, "Copying the files")),
        ("::progress 0 \n", (0.0, "")),
        ("::progress 100", (1.0, None)),
    ],
)
def test_a_line_reports(line: str, report: tuple[float, str | None]) -> None:
    assert reported(f"before\n{line}") == ("before\n", [report])


@pytest.mark.parametrize(
    "line",
    [
        "::progress 101\n",
        "::progress -1\n",
        "::progress\n",
        "::progress forty\n",
        "::progress 4e1\n",
        " ::progress 40\n",
        "::Progress 40\n",
        "done ::progress 40\n",
        "::progress 40Copying\n",
    ],
)
def test_a_similar_line_is_output(line: str) -> None:
    assert reported(line) == (line, [])


def test_reports_are_found_wherever_the_output_is_split() -> None:
    output = "one\n::progress 10 a\ntwo ::progress 9\n::progress 20 b\n::pro\n:: three"
    for size in range(1, len(output) + 1):
        pieces = [output[at : at + size] for at in range(0, len(output), size)]
        left, reports = reported(*pieces)
        assert left == "one\ntwo ::progress 9\n::pro\n:: three", size
        assert reports == [(0.1, "a"), (0.2, "b")], size


def test_only_the_start_of_a_possible_report_is_held_back() -> None:
    lines = ProgressLines(lambda *_: None)
    assert lines.feed("Password:") == "Password:"
    assert lines.feed(" ok\n::") == " ok\n"
    assert lines.feed("x") == "::x"
    assert lines.feed("\n::progress 5 " + "y" * 2000) == "\n::progress 5 " + "y" * 2000


# How it is written


async def test_the_latest_of_many_reports_is_written_and_again_after_an_outage(
    sqlite: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[Progress] = []
    first, last, release = asyncio.Event(), asyncio.Event(), asyncio.Event()
    report_progress = WorkerRuns.report_progress

    async def save(self: WorkerRuns, run: AcquiredRun, progress: Progress) -> bool:
        saved.append(progress)
        first.set()
        if len(saved) == 2:
            raise StoreUnavailable
        if len(saved) == 3:
            last.set()
        return await report_progress(self, run, progress)

    async def work(context: RunContext) -> HandlerResult:
        context.report_progress(0.1)
        await first.wait()
        for percent in range(11, 100):
            context.report_progress(percent / 100)
        await last.wait()
        context.report_progress(0.99)  # nothing new
        await release.wait()
        return HandlerResult(0)

    monkeypatch.setattr("task_service.tasks.execution._PROGRESS_PAUSE", 0.01)
    monkeypatch.setattr(WorkerRuns, "report_progress", save)
    async with sqlite.running():
        run = await sqlite.request(work)
        await asyncio.wait_for(last.wait(), 60)
        await asyncio.sleep(0.1)
        release.set()
        await sqlite.until(run, "succeeded")
    assert saved == [Progress(0.1), Progress(0.99), Progress(0.99)]


# Readers


async def _next_report(items: AsyncIterator[object]) -> Progress:
    async with asyncio.timeout(60):
        return await anext(item async for item in items if isinstance(item, Progress))


async def test_readers_receive_progress_and_a_new_attempt_starts_from_zero(
    world: World,
) -> None:
    first, second = Blocker(), Blocker()
    attempts = iter((first, second))

    async def work(context: RunContext) -> HandlerResult:
        blocker = next(attempts)
        if blocker is first:
            context.report_progress(0.25, "A quarter")
        return await blocker(context)

    logs = LogReader(world.db, world.notifications, world.clock, poll=timedelta(milliseconds=50))
    stop = asyncio.Event()
    async with world.running(stop=stop):
        run = await world.request(work)
        items = logs.follow(run.id)
        assert await _next_report(items) == Progress(0.25, "A quarter")
        # It is not a member of the run, whose members other programs rely on.
        assert "progress" not in (await world.runs.get(ANN, run.id)).model_dump()
        late = logs.follow(run.id)
        assert await _next_report(late) == Progress(0.25, "A quarter")
        await late.aclose()
        stop.set()
        await asyncio.wait_for(first.stopped.wait(), 60)
    async with world.running():
        await asyncio.wait_for(second.started.wait(), 60)
        assert await _next_report(items) == Progress(0.0)
        second.release.set()
        await world.until(run, "succeeded")
        assert [item async for item in items if isinstance(item, Progress)] == []
