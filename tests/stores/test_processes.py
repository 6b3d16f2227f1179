"""What one process did, all others see; and what it acknowledged, survives it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from multiprocessing import get_context

import pytest
from sqlalchemy import URL, Engine, select, text
from tests.stores.support import awaited, engine_on
from tests.stores.workers import ANNOUNCED, work

from msk_auth.stores.sqlalchemy import SQLAlchemyKeyStore
from msk_auth.testing._store_contract import HOUR, NOW, add, count_active

# The processes are forks of one that has loaded what they import: that takes longer than what most of them do.
FORKS = get_context("forkserver")
FORKS.set_forkserver_preload(["tests.stores.workers"])


class Worker:
    """A process that waits for a line before it begins."""

    def __init__(self, *words: str) -> None:
        lines, self._begins = FORKS.Pipe(duplex=False)
        printed, prints = FORKS.Pipe(duplex=False)
        self._process = FORKS.Process(target=work, args=(lines, prints, *words), daemon=True)
        self._process.start()
        # Its ends: what it prints is complete when it has closed them.
        lines.close()
        prints.close()
        self._printed = os.fdopen(os.dup(printed.fileno()), encoding="utf-8")
        printed.close()

    def read(self) -> str:
        """The next line that it prints."""
        return self._printed.readline().strip()

    def read_all(self) -> str:
        """What it prints from here on."""
        return self._printed.read()

    def begin(self) -> None:
        os.write(self._begins.fileno(), b"\n")

    def wait(self) -> int | None:
        """Its exit code; None if it does not end."""
        self._process.join(60)
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self.kill()
        self.wait()
        self._begins.close()
        self._printed.close()


@contextmanager
def worker(what: str, url: URL, *rest: str) -> Iterator[Worker]:
    process = Worker(what, url.render_as_string(hide_password=False), *rest)
    with closing(process):
        yield process


@pytest.mark.slow
def test_a_revocation_is_seen_by_every_process_once_it_returned(url: URL) -> None:
    with engine_on(url) as engine, worker("revoke", url, "k") as other:
        store = SQLAlchemyKeyStore(engine)
        add(store, "k")
        assert other.read() == "ready"
        before = store.find("k")
        assert before is not None
        assert before.revoked_at is None
        other.begin()
        assert other.wait() == 0
        after = store.find("k")
        assert after is not None
        assert after.revoked_at == NOW
        store.close()


@pytest.mark.slow
def test_the_limit_is_exact_across_processes(url: URL) -> None:
    with (
        engine_on(url) as engine,
        worker("insert", url, "a", "25") as first,
        worker("insert", url, "b", "25") as second,
    ):
        processes = [first, second]
        assert [process.read() for process in processes] == ["ready"] * 2
        for process in processes:
            process.begin()
        taken = [int(process.read()) for process in processes]
        assert [process.wait() for process in processes] == [0, 0]
        assert sum(taken) == 25
        store = SQLAlchemyKeyStore(engine)
        assert count_active(store) == 25
        store.close()


@pytest.mark.faults
@pytest.mark.parametrize("acknowledged", [1, 7, 40])
def test_what_was_acknowledged_survives_a_kill(url: URL, acknowledged: int) -> None:
    with engine_on(url) as engine:
        with worker("insert_for_ever", awaited(url)) as process:
            lines = [process.read() for _ in range(acknowledged)]
            process.kill()
            # What it printed before the signal arrived.
            lines += process.read_all().split("\n")[:-1]
        store = SQLAlchemyKeyStore(engine)
        for line in lines:
            what, key_id = line.split()
            record = store.find(key_id)
            assert record is not None, line
            assert what == "inserted" or record.revoked_at == NOW
        if engine.dialect.name == "sqlite":
            with engine.connect() as connection:
                assert connection.scalar(text("PRAGMA integrity_check")) == "ok"
        add(store, "afterwards")
        store.close()


@pytest.fixture
def announcing(url: URL) -> Iterator[Engine]:
    """Keys whose end is to be announced, and the table into which the application's hook writes."""
    with engine_on(url) as engine:
        ANNOUNCED.metadata.drop_all(engine)
        ANNOUNCED.metadata.create_all(engine)
        store = SQLAlchemyKeyStore(engine)
        for number in range(60):
            add(store, f"k{number}", expires_at=NOW + (1 + 12 * number) * HOUR)
        store.close()
        yield engine
        ANNOUNCED.metadata.drop_all(engine)


DUE = {(f"k{n}", 1 if n < 2 else 7 if n < 14 else 30) for n in range(60)}


def rows(engine: Engine) -> Counter[tuple[str, int]]:
    with engine.connect() as connection:
        found = connection.execute(select(ANNOUNCED.c.key_id, ANNOUNCED.c.days))
        return Counter((key_id, days) for key_id, days in found)


def lines(text: str) -> Counter[tuple[str, int]]:
    """What a process has printed, but for the line that a signal has cut off."""
    whole = (line.split() for line in text.split("\n")[:-1])
    return Counter((key_id, int(days)) for key_id, days in whole)


@pytest.mark.slow
def test_several_processes_announce_each_end_once(announcing: Engine, url: URL) -> None:
    with (
        worker("announce", url) as first,
        worker("announce", url) as second,
        worker("announce", url) as third,
    ):
        processes = [first, second, third]
        assert [process.read() for process in processes] == ["ready"] * 3
        printed: Counter[tuple[str, int]] = Counter()
        for process in processes:
            process.begin()
        for process in processes:
            printed += lines(process.read_all())
        assert [process.wait() for process in processes] == [0] * 3
    assert rows(announcing) == printed == Counter(DUE)


@pytest.mark.faults
@pytest.mark.parametrize("printed_before", [1, 5, 20])
def test_a_process_that_is_killed_announces_nothing_twice_and_the_next_one_the_rest(
    announcing: Engine, url: URL, printed_before: int
) -> None:
    with worker("announce", url) as process:
        assert process.read() == "ready"
        process.begin()
        text = "".join(f"{process.read()}\n" for _ in range(printed_before))
        process.kill()
        printed = lines(text + process.read_all())
    with worker("announce", url) as process:
        assert process.read() == "ready"
        process.begin()
        printed += lines(process.read_all())
        assert process.wait() == 0
    # In the transaction: exactly once. After it: at most once, and one was lost at most.
    assert rows(announcing) == Counter(DUE)
    assert printed <= Counter(DUE)
    assert printed.total() >= len(DUE) - 1
