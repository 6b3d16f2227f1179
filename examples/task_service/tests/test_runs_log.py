"""What a run prints: bounded, cleaned, in batches."""

from __future__ import annotations

import pytest
from examples.task_service.tests.runs_support import FakeClock
from hypothesis import given
from hypothesis import strategies as st

from task_service.tasks.run_log import (
    MAX_LINE_BYTES,
    MAX_LINES,
    MAX_LOG_BYTES,
    LogBatch,
    RunLog,
    SavedLine,
    SavedLog,
)


def take(log: RunLog) -> LogBatch:
    batch = log.next_batch()
    assert batch is not None
    log.acknowledge()
    return batch


def test_consecutive_writes_to_one_stream_become_one_line() -> None:
    clock = FakeClock()
    log = RunLog(clock, saved=SavedLog((SavedLine(4, 10, 0),)))
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
    assert (batch.size_before, batch.size_after, batch.missing_bytes) == (10, 14, 0)


def test_a_batch_stays_the_same_until_it_is_acknowledged() -> None:
    log = RunLog(FakeClock())
    assert log.next_batch() is None
    log.write("stdout", "a")
    assert log.written.is_set()
    first = log.next_batch()
    log.write("stdout", "b")
    assert log.next_batch() is first
    assert log.has_more
    log.acknowledge()
    assert log.written.is_set()
    second = log.next_batch()
    assert second is not None
    assert [(line.seq, line.text) for line in second.lines] == [(2, "b")]
    assert (second.size_before, second.size_after) == (1, 2)
    assert not log.has_more
    log.acknowledge()
    assert not log.written.is_set()
    assert log.next_batch() is None


def test_closing_wakes_a_task_that_waits_for_output() -> None:
    log = RunLog(FakeClock())
    log.close()
    log.write("stdout", "a")
    take(log)
    assert log.written.is_set()
    assert log.closed.is_set()


@pytest.mark.parametrize(
    ("given_text", "kept"), [("a\x00b", "a\ufffdb"), ("\ud800", "?"), ("ü😀\r\n", "ü😀\r\n")]
)
def test_what_a_database_cannot_hold_is_replaced(given_text: str, kept: str) -> None:
    log = RunLog(FakeClock())
    log.write("stdout", given_text)
    assert take(log).lines[0].text == kept


def kept_text(batches: list[LogBatch]) -> str:
    """What the database has after these batches."""
    lines: dict[int, str] = {}
    for batch in batches:
        lines.update((line.seq, line.text) for line in batch.lines)
        lines = {seq: text for seq, text in lines.items() if seq > batch.delete_through}
    return "".join(text for _, text in sorted(lines.items()))


def test_the_end_of_the_output_is_kept_and_the_size_of_the_beginning_is_known() -> None:
    log = RunLog(FakeClock())
    whole, batches = "", []
    for number in range(1000):
        text = f"{number} " + "ü" * 500 + "\n"
        whole += text
        log.write("stdout", text)
        if number % 100 == 7:
            batches.append(take(log))
    batches.append(take(log))
    kept = kept_text(batches)
    last = batches[-1]
    assert whole.endswith(kept)
    assert MAX_LOG_BYTES <= len(kept.encode()) < MAX_LOG_BYTES + MAX_LINE_BYTES
    assert last.size_after == len(whole.encode())
    assert last.missing_bytes == len(whole.encode()) - len(kept.encode())
    assert last.missing_lines == whole.count("\n") - kept.count("\n")
    assert log.overflows
    assert not log.full


def test_what_is_pushed_out_before_it_is_saved_is_never_saved() -> None:
    log = RunLog(FakeClock())
    log.write("stdout", "x" * MAX_LOG_BYTES)
    assert not log.full
    log.write("stdout", "y" * 2 * MAX_LOG_BYTES + "z")
    assert log.full
    batch = take(log)
    assert batch.lines[0].seq == 1
    assert batch.delete_through == 0
    kept = kept_text([batch])
    assert kept.endswith("yz")
    assert "x" not in kept
    assert (batch.size_before, batch.size_after) == (0, 3 * MAX_LOG_BYTES + 1)
    assert batch.missing_bytes == batch.size_after - len(kept)
    assert not log.full


def test_a_log_may_be_exactly_as_long_as_allowed() -> None:
    log = RunLog(FakeClock())
    log.write("stdout", "x" * MAX_LOG_BYTES)
    assert not log.overflows
    log.write("stderr", "y" * MAX_LINE_BYTES)
    assert log.overflows
    batch = take(log)
    assert batch.missing_bytes == MAX_LINE_BYTES // 4 * 4
    assert len(kept_text([batch])) == MAX_LOG_BYTES


def test_an_attempt_continues_the_log_of_the_one_before() -> None:
    lines = tuple(SavedLine(seq, MAX_LINE_BYTES, 2) for seq in range(5, 5 + 16))
    log = RunLog(FakeClock(), saved=SavedLog(lines, missing_bytes=10, missing_lines=1))
    assert log.next_batch() is None
    log.write("system", "Attempt 2\n")
    first = take(log)
    assert (first.lines[0].seq, first.delete_through, first.missing_bytes) == (21, 0, 10)
    assert first.size_before == MAX_LOG_BYTES + 10
    log.write("stdout", "x" * MAX_LINE_BYTES)
    second = take(log)
    assert second.delete_through == 5
    assert (second.missing_bytes, second.missing_lines) == (MAX_LINE_BYTES + 10, 3)


def test_the_number_of_lines_is_bounded_too() -> None:
    log = RunLog(FakeClock())
    for number in range(MAX_LINES + 3):
        log.write("stdout" if number % 2 else "stderr", "x")
    batch = take(log)
    assert len(batch.lines) == MAX_LINES
    assert batch.missing_bytes == 3


@given(st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.text(), st.booleans())))
def test_no_output_is_lost_or_duplicated(writes: list[tuple[str, str, bool]]) -> None:
    log = RunLog(FakeClock())
    batches = []
    for stream, text, save in writes:
        log.write(stream, text)  # type: ignore[arg-type]
        if save and log.next_batch() is not None:
            batches.append(take(log))
    if log.next_batch() is not None:
        batches.append(take(log))
    lines = [line for batch in batches for line in batch.lines]
    assert [line.seq for line in lines] == list(range(1, len(lines) + 1))
    for wanted in ("stdout", "stderr"):
        expected = "".join(text for stream, text, _ in writes if stream == wanted)
        assert "".join(line.text for line in lines if line.stream == wanted) == expected.replace(
            "\x00", "\ufffd"
        )
    sizes = [0, *(batch.size_after for batch in batches)]
    assert [batch.size_before for batch in batches] == sizes[:-1]
    assert sizes[-1] == sum(len(line.text.encode()) for line in lines)
