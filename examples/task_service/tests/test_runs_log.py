"""What a run prints: bounded, cleaned, in batches."""

from __future__ import annotations

import pytest
from examples.task_service.tests.runs_support import FakeClock
from hypothesis import given
from hypothesis import strategies as st

from task_service.tasks.run_log import MAX_LOG_BYTES, TRUNCATION_NOTE, LogBatch, RunLog


def take(log: RunLog) -> LogBatch:
    batch = log.next_batch()
    assert batch is not None
    log.acknowledge()
    return batch


def test_consecutive_writes_to_one_stream_become_one_line() -> None:
    clock = FakeClock()
    log = RunLog(clock, last_seq=4, size=10)
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
    assert (batch.size_before, batch.size_after, batch.truncated) == (10, 14, False)


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


def test_a_full_log_ends_with_one_note() -> None:
    log = RunLog(FakeClock(), size=MAX_LOG_BYTES - 3)
    log.write("stdout", "ab")
    assert not log.full
    log.write("stderr", "üü")  # one byte of room: no part of a character
    assert log.full
    log.write("stdout", "more")
    batch = take(log)
    assert [(line.stream, line.text) for line in batch.lines] == [
        ("stdout", "ab"),
        ("system", TRUNCATION_NOTE),
    ]
    assert batch.truncated
    log.write("stdout", "more")
    assert log.next_batch() is None


def test_a_log_may_be_exactly_as_long_as_allowed() -> None:
    log = RunLog(FakeClock())
    log.write("stdout", "x" * MAX_LOG_BYTES)
    assert not log.full
    log.write("stdout", "y")
    assert [line.text for line in take(log).lines] == ["x" * MAX_LOG_BYTES, TRUNCATION_NOTE]


def test_an_attempt_after_a_full_one_logs_nothing() -> None:
    log = RunLog(FakeClock(), size=MAX_LOG_BYTES, truncated=True)
    assert log.full
    log.write("stdout", "x")
    assert log.next_batch() is None


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
