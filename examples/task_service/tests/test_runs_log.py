"""What a run prints: bounded, cleaned, in batches."""

from __future__ import annotations

import pytest
from examples.task_service.tests.runs_support import FakeClock
from hypothesis import given
from hypothesis import strategies as st

from task_service.tasks.run_log import (
    HEAD_BYTES,
    MAX_LINE_BYTES,
    MAX_LINES,
    TAIL_BYTES,
    KeptLine,
    LogBatch,
    RunLog,
    SavedLog,
)


def take(log: RunLog) -> LogBatch:
    batch = log.take()
    assert batch is not None
    return batch


def test_consecutive_writes_to_one_stream_become_one_line() -> None:
    clock = FakeClock()
    log = RunLog(clock, saved=SavedLog((KeptLine(4, 10, 0),)))
    log.write("stdout", "a")
    began = clock.now()
    clock.advance(1)
    log.write("stdout", "b")
    log.write("stderr", "c")
    log.write("stdout", "")
    log.write("stdout", "d")
    batch = take(log)
    assert [(line.seq, line.stream, line.text) for line in batch.lines] == [
        (5, "stdout", "ab"),
        (6, "stderr", "c"),
        (7, "stdout", "d"),
    ]
    assert batch.lines[0].at == began
    assert (batch.kept_bytes, batch.missing_bytes) == (14, 0)


def test_a_batch_has_the_lines_since_the_one_before() -> None:
    log = RunLog(FakeClock())
    assert log.take() is None
    log.write("stdout", "a")
    assert log.written.is_set()
    first = take(log)
    assert not log.written.is_set()
    log.write("stdout", "b")
    assert log.written.is_set()
    second = take(log)
    assert [line.text for line in first.lines] == ["a"]
    assert [(line.seq, line.text) for line in second.lines] == [(2, "b")]
    assert second.kept_bytes == 2
    assert log.take() is None


def test_closing_wakes_a_task_that_waits_for_output() -> None:
    log = RunLog(FakeClock())
    log.write("stdout", "a")
    log.close()
    assert [line.text for line in take(log).lines] == ["a"]
    assert log.written.is_set()
    assert log.closed.is_set()
    # Of a handler that does not stop.
    log.write("stdout", "b")
    assert log.take() is None


@pytest.mark.parametrize(
    ("given_text", "kept"), [("a\x00b", "a\ufffdb"), ("\ud800", "?"), ("ü😀\r\n", "ü😀\r\n")]
)
def test_what_a_database_cannot_hold_is_replaced(given_text: str, kept: str) -> None:
    log = RunLog(FakeClock())
    log.write("stdout", given_text)
    assert take(log).lines[0].text == kept


def kept_parts(*batches: LogBatch) -> tuple[str, str]:
    """What the database has of the beginning and of the end after these batches."""
    lines: dict[int, str] = {}
    for batch in batches:
        lines.update((line.seq, line.text) for line in batch.lines)
        for seq in range(batch.delete_after + 1, batch.delete_through + 1):
            lines.pop(seq, None)
    parts = ["", ""]
    for number, seq in enumerate(sorted(lines), start=1):
        parts[seq != number] += lines[seq]
    return parts[0], parts[1]


def test_the_beginning_and_the_end_are_kept_and_the_size_of_the_rest_is_known() -> None:
    log = RunLog(FakeClock())
    whole, batches = "", []
    for number in range(1000):
        text = f"{number} " + "ü" * 5000 + "\n"
        whole += text
        log.write("stdout", text)
        if number % 100 == 7:
            batches.append(take(log))
    batches.append(take(log))
    head, tail = kept_parts(*batches)
    last = batches[-1]
    assert whole.startswith(head)
    assert whole.endswith(tail)
    assert HEAD_BYTES - MAX_LINE_BYTES < len(head.encode()) <= HEAD_BYTES
    assert TAIL_BYTES <= len(tail.encode()) < TAIL_BYTES + MAX_LINE_BYTES
    assert last.kept_bytes == len((head + tail).encode())
    assert last.missing_bytes == len(whole.encode()) - last.kept_bytes
    assert last.missing_lines == whole.count("\n") - (head + tail).count("\n")
    assert log.overflows
    assert not log.full


def test_what_is_pushed_out_before_it_is_saved_is_never_saved() -> None:
    log = RunLog(FakeClock())
    log.write("stdout", "h" * HEAD_BYTES + "x" * TAIL_BYTES)
    assert not log.full
    log.write("stdout", "y" * 2 * TAIL_BYTES + "z")
    assert log.full
    batch = take(log)
    assert batch.delete_through == 0
    head, tail = kept_parts(batch)
    assert head == "h" * HEAD_BYTES
    assert tail.endswith("yz")
    assert "x" not in tail
    assert batch.missing_bytes == 3 * TAIL_BYTES + 1 - len(tail)
    assert not log.full


def test_a_log_may_be_exactly_as_long_as_allowed() -> None:
    log = RunLog(FakeClock())
    log.write("stdout", "x" * (HEAD_BYTES + TAIL_BYTES))
    assert not log.overflows
    log.write("stderr", "y" * MAX_LINE_BYTES)
    assert log.overflows
    assert take(log).missing_bytes == MAX_LINE_BYTES


def test_an_attempt_continues_the_log_of_the_one_before() -> None:
    count = TAIL_BYTES // MAX_LINE_BYTES
    # Of a version that kept the end alone: there is no first line.
    lines = tuple(KeptLine(seq, MAX_LINE_BYTES, 2) for seq in range(5, 5 + count))
    log = RunLog(FakeClock(), saved=SavedLog(lines, missing_bytes=10, missing_lines=1))
    assert log.take() is None
    log.write("system", "Attempt 2\n")
    first = take(log)
    assert (first.lines[0].seq, first.delete_through, first.missing_bytes) == (5 + count, 0, 10)
    log.write("stdout", "x" * MAX_LINE_BYTES)
    second = take(log)
    assert (second.delete_after, second.delete_through) == (0, 5)
    assert (second.missing_bytes, second.missing_lines) == (MAX_LINE_BYTES + 10, 3)


def test_the_number_of_lines_is_bounded_too() -> None:
    log = RunLog(FakeClock())
    for number in range(2 * MAX_LINES + 3):
        log.write("stdout" if number % 2 else "stderr", "x")
    batch = take(log)
    assert len(batch.lines) == 2 * MAX_LINES
    assert batch.missing_bytes == 3


@given(st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.text(), st.booleans())))
def test_no_output_is_lost_or_duplicated(writes: list[tuple[str, str, bool]]) -> None:
    log = RunLog(FakeClock())
    batches = []
    for stream, text, save in writes:
        log.write(stream, text)  # type: ignore[arg-type]
        if save and (batch := log.take()) is not None:
            batches.append(batch)
    if (batch := log.take()) is not None:
        batches.append(batch)
    lines = [line for batch in batches for line in batch.lines]
    assert [line.seq for line in lines] == list(range(1, len(lines) + 1))
    for wanted in ("stdout", "stderr"):
        expected = "".join(text for stream, text, _ in writes if stream == wanted)
        assert "".join(line.text for line in lines if line.stream == wanted) == expected.replace(
            "\x00", "\ufffd"
        )
    assert (batches[-1].kept_bytes if batches else 0) == sum(
        len(line.text.encode()) for line in lines
    )
