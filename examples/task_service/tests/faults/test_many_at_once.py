"""Many requests at the same moment, and a stop in the middle of them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from examples.task_service.tests.faults.clients import Client, NoAnswer
from examples.task_service.tests.faults.deployment import (
    Deployment,
    credential,
    log_in,
    new_key,
    new_task,
    set_up,
    wait_for_run,
    worker_ids,
)
from examples.task_service.tests.faults.nursery import Nursery, nursery, until
from examples.task_service.tests.service_support import secrets_in
from tests.databases import postgres_database

pytestmark = pytest.mark.faults

LIMIT = 50
AT_ONCE = 100


@contextmanager
def deployment_on(kind: str, folder: Path) -> Iterator[tuple[Nursery, Deployment]]:
    with nursery(folder) as processes:
        if kind == "sqlite":
            yield processes, Deployment(processes, folder)
        else:
            with postgres_database() as database:
                url = database.set(drivername="postgresql").render_as_string(hide_password=False)
                yield processes, Deployment(processes, folder, database_url=url)
        logs = processes.logs()
    assert not secrets_in(logs)
    assert "Traceback" not in logs, logs[logs.index("Traceback") - 500 :][:5000]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_hundred_parallel_creations_at_the_limit_make_exactly_the_limit(
    tmp_path: Path, kind: str
) -> None:
    with deployment_on(kind, tmp_path) as (_, deployment):
        api = deployment.serve()
        admin = set_up(api)
        ports = [api.port] if kind == "sqlite" else [api.port, deployment.serve().port]
        there = LIMIT - 5
        for _ in range(there):
            new_key(admin)
        admin.must("PATCH", "/api/admin/config", {"max_keys_per_user": LIMIT})
        people = [Client(port, credential(admin)) for port in ports]
        together = threading.Barrier(AT_ONCE)

        def create(number: int) -> str:
            together.wait(60)
            answer = people[number % len(people)].post("/api/keys", {"name": f"key {number}"})
            return "created" if answer.status == 201 else answer.code

        with ThreadPoolExecutor(AT_ONCE) as pool:
            answers = Counter(pool.map(create, range(AT_ONCE)))
        # An overloaded database may answer 503; it never makes one key too many.
        assert answers["created"] <= LIMIT - there
        assert set(answers) <= {"created", "key_limit_reached", "store_unavailable"}
        while (answer := people[0].post("/api/keys", {"name": "more"})).status == 201:
            answers["created"] += 1
        assert (answer.status, answer.code) == (409, "key_limit_reached")
        assert answers["created"] == LIMIT - there
        assert len(active_keys(people[0])) == LIMIT


def active_keys(someone: Client) -> list[Any]:
    items: list[Any] = []
    cursor = ""
    while cursor is not None:
        page = someone.must("GET", f"/api/keys?status=active&limit=20{cursor}")
        items += page["items"]
        cursor = page["next_cursor"] and f"&cursor={page['next_cursor']}"
    return items


def test_sigterm_under_load_drops_no_request_and_no_run(tmp_path: Path) -> None:
    """One API process after the other is replaced, and both workers, while clients go on: a rolling upgrade."""
    with deployment_on("postgresql", tmp_path) as (_, deployment):
        apis = [deployment.serve()]
        admin = set_up(apis[0], allowed_commands=["sleep"], max_concurrent_runs_per_user=8)
        apis.append(deployment.serve())
        workers = [deployment.work(), deployment.work()]
        program = new_key(admin)
        task_id = new_task(program, "sleep", "0.3")
        stop = threading.Event()
        keys: list[str] = []
        runs: list[str] = []
        wrong: list[object] = []

        def work(number: int) -> None:
            while not stop.is_set():
                api = apis[number % 2]
                try:
                    made = Client(api.port, credential(admin)).post("/api/keys", {"name": "k"})
                    ran = Client(api.port, credential(program)).post(f"/api/tasks/{task_id}/run")
                except NoAnswer as error:
                    # No process listens there for a moment; a proxy in front retries elsewhere. What was accepted
                    # is answered: a connection that breaks is a request that was dropped.
                    if "refused" not in str(error):
                        wrong.append(error)
                    stop.wait(0.05)
                    continue
                if (made.status, ran.status) != (201, 202):
                    wrong.append((made, ran))
                    continue
                keys.append(made.body["key"])
                runs.append(ran.body["id"])
                stop.wait(0.1)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        try:
            for number in range(2):
                until(lambda number=number: len(keys) > 10 * (number + 1), "keys are made")
                assert apis[number].process.terminate() == 0
                apis[number] = deployment.serve(apis[number].port)
                # A signal while it is on its way would end it at once.
                until(lambda number=number: worker_ids(workers[number]), "the worker works")
                assert workers[number].terminate() == 0
                workers[number] = deployment.work()
            until(lambda: len(keys) > 30, "keys are made")
        finally:
            stop.set()
            for thread in threads:
                thread.join(60)
        assert wrong == []
        admin = log_in(apis[0].port)
        for key in keys:
            assert Client(apis[1].port, key).get("/api/auth/me").status == 200
        for run_id in runs:
            run = wait_for_run(admin, run_id)
            # Given back in order, so no attempt is lost and none is repeated.
            assert (run["state"], run["attempt"]) == ("succeeded", 1), run
