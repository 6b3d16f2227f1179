"""Killing processes at random instants, and what their runs did meanwhile."""

from __future__ import annotations

import itertools
import random
import stat
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.task_service.tests.faults.ledger import Ledger
from examples.task_service.tests.faults.nursery import Process, until
from examples.task_service.tests.service_support import secrets_in

from task_service.tasks.worker_runs import LEASE, MAX_ATTEMPTS

SEED = 20261121

# The runs of workers that were killed count until they are taken back.
MANY = {"max_concurrent_runs_per_user": 100}

SCRIPT = """#!/bin/sh
echo "begin $1 $(date +%s.%N)" >> LEDGER
sleep 0.7
echo "end $1 $(date +%s.%N)" >> LEDGER
"""


def make_command(folder: Path) -> tuple[Path, Path]:
    """A program that writes down when it begins and when it has done its work; and where it does."""
    lines, script = folder / "executed", folder / "work"
    lines.touch()
    script.write_text(SCRIPT.replace("LEDGER", str(lines)))
    script.chmod(stat.S_IRWXU)
    return script, lines


@dataclass(frozen=True)
class Execution:
    began: float
    ended: float | None


def executions(lines: Path) -> dict[str, list[Execution]]:
    """For each number: when the program was started, and when it did its work to the end."""
    found: dict[str, list[Execution]] = defaultdict(list)
    for line in lines.read_text().splitlines():
        what, number, at = line.split()
        if what == "begin":
            found[number].append(Execution(float(at), None))
        else:
            # The worker that began last; that no other began meanwhile is checked below.
            assert found[number][-1].ended is None, f"{number} was executed by two at a time"
            found[number][-1] = Execution(found[number][-1].began, float(at))
    return found


def check_executions(ledger: Ledger, over: dict[str, Any], lines: Path) -> int:
    """No run is executed by two at a time, or more often than it was attempted. How many were interrupted."""
    interrupted = 0
    executed = executions(lines)
    for run_id, task_id in ledger.runs.items():
        run, each = over[run_id], executed[ledger.tasks[task_id]]
        hopeless = run["state"] == "failed" and run["attempt"] == MAX_ATTEMPTS
        assert run["state"] == "succeeded" or hopeless, run
        assert len(each) <= run["attempt"], (run, each)
        if run["state"] == "succeeded":
            assert each[-1].ended is not None, (run, each)
        for one, next_one in itertools.pairwise(each):
            # The program ended with its worker, and only after a whole lease another one began.
            last_sign = one.began if one.ended is None else one.ended
            assert next_one.began - last_sign > LEASE.total_seconds() * 2 / 3, (run, each)
        interrupted += run["attempt"] > 1
    return interrupted


def kill_and_start_again(
    times: int, seed: int, start: Callable[[], Process], *, ready: str, within: float = 0.6
) -> tuple[Process, list[tuple[Process, float]]]:
    """Kill what `start` starts so many times, one of five while it starts. The last one is left running; which were killed, and when.

    Args:
        times: How often.
        seed: For the instants.
        start: Gives a process that is on its way.
        ready: What a process prints when it works.
        within: How many seconds it lives at most after that.
    """
    chance = random.Random(seed)
    killed: list[tuple[Process, float]] = []

    def is_ready(process: Process) -> bool:
        is_printed = ready in process.output()
        assert not process.has_ended(), process.output()
        return is_printed

    process = start()
    for _ in range(times):
        if chance.random() < 0.8:
            until(lambda process=process: is_ready(process), f"{ready!r} is printed")
        time.sleep(chance.uniform(0, within))
        process.kill()
        killed.append((process, time.time()))
        process = start()
    until(lambda: is_ready(process), "the last one works")
    return process, killed


def check_output(logs: str) -> None:
    assert not secrets_in(logs)
    assert "Traceback" not in logs, logs[logs.index("Traceback") - 500 :][:5000]
