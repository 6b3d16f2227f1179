"""`kill -9` of workers and API processes on PostgreSQL at random instants, with a ledger kept outside (G8).

Nothing that was acknowledged is lost; a run ends once and for all, is never executed by two at a time, and does not
hang for longer than the lease of the worker that was killed.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from examples.task_service.tests.faults.deployment import (
    Deployment,
    credential,
    new_key,
    set_up,
    worker_ids,
)
from examples.task_service.tests.faults.kills import (
    MANY,
    SEED,
    check_executions,
    check_output,
    kill_and_start_again,
    make_command,
)
from examples.task_service.tests.faults.ledger import Ledger
from examples.task_service.tests.faults.nursery import Process, nursery, until
from sqlalchemy import URL, create_engine, text
from tests.databases import postgres_database

from task_service.tasks.worker_runs import LEASE

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(1200)]

WORKER_KILLS = 240
API_KILLS = 30
WORKERS = 4

# How late the watching worker may be on a busy machine, besides looking once a second.
SLACK_SECONDS = 10.0

TRANSITIONS = """
CREATE TABLE transitions (
    id bigserial PRIMARY KEY, at double precision, run_id text, was text, is_now text,
    attempt integer, worker text, new_worker text
);
CREATE FUNCTION note_transition() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO transitions (at, run_id, was, is_now, attempt, worker, new_worker) VALUES (
        extract(epoch FROM clock_timestamp()), OLD.id, OLD.state, NEW.state, NEW.attempt,
        OLD.claimed_by, NEW.claimed_by);
    RETURN NULL;
END $$;
CREATE TRIGGER note_transition AFTER UPDATE ON runs FOR EACH ROW
    WHEN (OLD.state <> NEW.state OR OLD.attempt <> NEW.attempt)
    EXECUTE FUNCTION note_transition();
"""

FINAL = {"succeeded", "failed", "timed_out", "cancelled"}


def test_killed_processes_on_postgresql_lose_nothing(tmp_path: Path, record_property: Any) -> None:
    script, lines = make_command(tmp_path)
    with postgres_database() as database, nursery(tmp_path) as processes:
        url = database.set(drivername="postgresql").render_as_string(hide_password=False)
        deployment = Deployment(processes, tmp_path, database_url=url)
        first = deployment.serve(workers="1")
        admin = set_up(first, allowed_commands=[str(script)], **MANY)
        second = deployment.serve(workers="1")
        note_transitions(database)
        # Who watches over the leases of those that are killed.
        deployment.work(workers="1")
        ledger = Ledger(
            [first.port, second.port],
            credential(admin),
            credential(new_key(admin)),
            str(script),
            seed=SEED,
        )
        ledger.begin()
        until(lambda: len(ledger.runs) > 40, "there is work")
        with ThreadPoolExecutor(WORKERS + 1) as pool:
            dying = [
                pool.submit(
                    kill_and_start_again,
                    WORKER_KILLS // WORKERS,
                    SEED + number,
                    lambda: deployment.work(workers="1"),
                    ready="executing runs as",
                )
                for number in range(WORKERS)
            ]
            second.process.kill()
            api_dying = pool.submit(
                kill_and_start_again,
                API_KILLS - 1,
                SEED + WORKERS,
                lambda: deployment.begin_to_serve(second.port, workers="1").process,
                ready="data is in",
            )
            killed = [each for done in dying for each in done.result()[1]]
            _, api_killed = api_dying.result()
        ledger.end()
        ended_at = time.time()
        over = ledger.wait_for_runs(2 * LEASE.total_seconds() + 60)
        ledger.check_keys_and_tasks()
        interrupted = check_executions(ledger, over, lines)
        waited = check_transitions(database, ledger.runs, killed)
        assert first.process.terminate() == 0
        logs = processes.logs()
        count = len(killed) + len(api_killed) + 1
        summary = (
            f"{count} kills; {len(ledger.keys)} keys, {len(ledger.revoked)} revoked,"
            f" {len(over)} runs, {interrupted} of them interrupted, at most {waited:.0f} s after a kill;"
            f" all over {time.time() - ended_at:.0f} s after the last one"
        )
        record_property("kills", summary)
        print(summary)
        assert count == WORKER_KILLS + API_KILLS
        assert waited > 1, "no run of a worker was interrupted: the test shows nothing"
        assert ledger.revoked, summary
    check_output(logs)


def note_transitions(database: URL) -> None:
    engine = create_engine(database)
    with engine.begin() as connection:
        connection.exec_driver_sql(TRANSITIONS)
    engine.dispose()


def check_transitions(
    database: URL, runs: dict[str, str], killed: Sequence[tuple[Process, float]]
) -> float:
    """A run ends once, and a worker whose run was reclaimed had been killed. The longest wait for that."""
    killed_at = {worker: at for process, at in killed for worker in worker_ids(process)}
    engine = create_engine(database)
    with engine.begin() as connection:
        rows = connection.execute(text("SELECT * FROM transitions ORDER BY id")).all()
    engine.dispose()
    ended: dict[str, int] = defaultdict(int)
    lost_its_run: set[str] = set()
    longest = 0.0
    for row in rows:
        assert row.was not in FINAL, f"a run that was over changed: {row}"
        assert row.new_worker not in lost_its_run, f"a run was taken from a living worker: {row}"
        ended[row.run_id] += row.is_now in FINAL
        if row.was == "running" and row.new_worker is None:
            lost_its_run.add(row.worker)
            # Processes that serve execute runs too, and do not print under which name.
            longest = max(longest, row.at - killed_at.get(row.worker, row.at))
    assert {ended[run_id] for run_id in runs} == {1}
    assert longest < LEASE.total_seconds() + SLACK_SECONDS
    return longest
