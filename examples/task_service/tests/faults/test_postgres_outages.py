"""PostgreSQL stopped, crashed, frozen and slow under a running service, and its connections used up.

Each time: what does not need the database goes on, everything else is 503 with `Retry-After` within bounded time (G5),
and afterwards the same processes work, with nothing that was acknowledged lost (G8).
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from examples.task_service.tests.faults.clients import (
    BOUND_SECONDS,
    Answer,
    Client,
    NoAnswer,
    check_is_outage,
)
from examples.task_service.tests.faults.deployment import (
    Deployment,
    log_in,
    new_key,
    new_task,
    set_up,
    start_run,
    wait_for_run,
)
from examples.task_service.tests.faults.nursery import Nursery, nursery, until
from examples.task_service.tests.faults.proxy import Wire, wire
from examples.task_service.tests.service_support import ADMIN_PASSWORD, secrets_in
from tests.own_postgres import OwnPostgres, own_postgres

pytestmark = pytest.mark.faults

WELL_FORMED = "msk_AAAAAAAAAAAA_000000000000000000000000000000002uGo9O"


@dataclass
class World:
    """One API process and one worker, both on a wire to a database of their own."""

    postgres: OwnPostgres
    wire: Wire
    processes: Nursery
    port: int
    admin: Client
    program: Client
    task_id: str

    def outage(self) -> list[Answer]:
        """Every kind of client gets the same 503 while the database is down, all at once; the bodies are checked."""
        anonymous = Client(self.port)
        unknown = Client(self.port, WELL_FORMED)
        login = {"username": "admin", "password": ADMIN_PASSWORD}
        questions = [
            (self.program, "GET", "/api/tasks", None),
            (self.program, "POST", f"/api/tasks/{self.task_id}/run", None),
            (self.admin, "GET", "/api/auth/me", None),
            (self.admin, "POST", "/api/keys", {"name": "k"}),
            (self.admin, "PATCH", "/api/admin/config", {"max_keys_per_user": 7}),
            (unknown, "GET", "/api/auth/me", None),
            (anonymous, "POST", "/api/auth/login", login),
            (anonymous, "GET", "/readyz", None),
        ]
        with ThreadPoolExecutor(len(questions)) as pool:
            answers = list(
                pool.map(lambda each: each[0].send(each[1], each[2], each[3]), questions)
            )
        for answer in answers:
            check_is_outage(answer)
        self.check_what_needs_no_database()
        return answers

    def check_what_needs_no_database(self) -> None:
        anonymous = Client(self.port)
        assert anonymous.get("/healthz").status == 200
        assert anonymous.get("/login").status == 200
        missing = anonymous.get("/api/tasks")
        assert (missing.status, missing.code) == (401, "credentials_missing")
        malformed = Client(self.port, "msk_nonsense").get("/api/tasks")
        assert (malformed.status, malformed.code) == (401, "key_malformed")
        assert malformed.seconds < 2
        assert anonymous.get("/metrics").status == 200

    def recovers(self, seconds: float = 60) -> None:
        """The same processes serve again, and execute runs."""
        until(lambda: Client(self.port).get("/readyz").status == 200, "it is ready", seconds)
        # The pool may hold more lost connections, and detects them one by one.
        until(lambda: self.program.get("/api/tasks").status == 200, "it serves", seconds)
        run_id = until(self._run, "it takes runs", seconds)
        assert wait_for_run(self.admin, run_id)["state"] == "succeeded"
        assert log_in(self.port).get("/api/auth/me").status == 200

    def _run(self) -> str | None:
        answer = self.program.post(f"/api/tasks/{self.task_id}/run")
        return answer.body["id"] if answer.status == 202 else None


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("outages")
    with (
        # A connection without a message holds up the stopping of the server for as long as it may log in.
        own_postgres(fsync="off", authentication_timeout="5s") as postgres,
        nursery(folder) as processes,
        wire(postgres.port) as cable,
    ):
        url = postgres.service_url.replace(f":{postgres.port}/", f":{cable.port}/")
        deployment = Deployment(processes, folder, database_url=url)
        api = deployment.serve()
        admin = set_up(api, allowed_commands=["echo", "sleep"])
        deployment.work()
        program = new_key(admin)
        task_id = new_task(program, "echo", "hello")
        world = World(postgres, cable, processes, api.port, admin, program, task_id)
        assert wait_for_run(admin, start_run(program, task_id))["state"] == "succeeded"
        yield world
        logs = processes.logs()
        assert not secrets_in(logs)
        assert "Traceback" not in logs, logs[logs.index("Traceback") - 500 :][:5000]


@pytest.fixture
def world(everything: World) -> Iterator[World]:
    yield everything
    everything.wire.delay = 0
    everything.wire.mend()


def test_a_stopped_database_is_503_until_it_is_back(world: World) -> None:
    world.postgres.stop()
    try:
        answers = world.outage()
        # No process listens there, which is an error at once.
        assert max(answer.seconds for answer in answers) < 8
    finally:
        world.postgres.start()
    world.recovers()


def test_a_frozen_database_is_503_within_bounded_time(world: World) -> None:
    # A warm connection is the hard case: nothing at all arrives on it.
    assert world.program.get("/api/tasks").status == 200
    world.postgres.freeze()
    try:
        world.outage()
    finally:
        world.postgres.thaw()
    world.recovers()


def test_a_cut_cable_is_503_within_bounded_time(world: World) -> None:
    assert world.program.get("/api/tasks").status == 200
    world.wire.cut()
    world.outage()
    world.wire.mend()
    world.recovers()


def test_a_slow_database_only_slows_answers(world: World) -> None:
    world.wire.delay = 0.08
    answers = [world.program.get("/api/tasks") for _ in range(3)]
    assert {answer.status for answer in answers} == {200}
    assert min(answer.seconds for answer in answers) > 0.16
    made = world.admin.must("POST", "/api/keys", {"name": "slowly"}, status=201)
    assert Client(world.port, made["key"]).get("/api/auth/me").status == 200
    world.admin.must("POST", f"/api/keys/{made['id']}/revoke")
    refused = Client(world.port, made["key"]).get("/api/auth/me")
    assert (refused.status, refused.code) == (401, "key_revoked")
    assert wait_for_run(world.admin, start_run(world.program, world.task_id))["state"] == (
        "succeeded"
    )


def test_a_pool_that_is_used_up_is_503_and_recovers(world: World) -> None:
    """More requests than connections, each of which takes seconds: some wait in vain, none for long."""
    world.wire.delay = 0.6

    def read(_: int) -> Answer:
        return world.program.get("/api/tasks")

    with ThreadPoolExecutor(60) as pool:
        answers = list(pool.map(read, range(60)))
    refused = [answer for answer in answers if answer.status != 200]
    assert refused, "the pool was never used up: the test shows nothing"
    for answer in refused:
        check_is_outage(answer)
    assert max(answer.seconds for answer in answers) < BOUND_SECONDS
    world.check_what_needs_no_database()
    world.wire.delay = 0
    world.recovers()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["restarted", "crashed"])
def test_everything_acknowledged_survives_a_restart_of_the_database_under_load(
    world: World, how: signal.Signals
) -> None:
    stop = threading.Event()
    keys: dict[str, str] = {}
    revoked: set[str] = set()
    unclear: set[str] = set()
    runs: list[str] = []
    codes: list[int] = []

    def make_keys() -> None:
        n = 0
        while not stop.is_set():
            n += 1
            made = _acknowledged(world.admin, "/api/keys", {"name": "k"}, codes)
            if made is None:
                continue
            keys[made["id"]] = made["key"]
            if n % 2:
                unclear.add(made["id"])
                if _acknowledged(world.admin, f"/api/keys/{made['id']}/revoke", None, codes):
                    revoked.add(made["id"])

    def make_runs() -> None:
        while not stop.is_set():
            made = _acknowledged(world.program, f"/api/tasks/{world.task_id}/run", None, codes)
            if made is not None:
                runs.append(made["id"])
                time.sleep(0.05)

    threads = [threading.Thread(target=work) for work in (make_keys, make_keys, make_runs)]
    for thread in threads:
        thread.start()
    try:
        for times in (1, 2, 3):
            until(lambda times=times: len(keys) >= 5 * times <= len(runs) * 5 / 3, "work is done")
            if times < 3:
                world.postgres.stop(how)
                time.sleep(0.5)
                world.postgres.start()
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert 503 in codes
    world.recovers()
    for key_id, key in keys.items():
        answer = until(lambda key=key: _known(Client(world.port, key)), "it is known")
        if key_id in revoked:
            assert (answer.status, answer.code) == (401, "key_revoked")
        elif key_id not in unclear:
            assert answer.status == 200, answer
    for run_id in runs:
        assert wait_for_run(world.admin, run_id)["state"] == "succeeded"


def _acknowledged(who: Client, path: str, body: object, codes: list[int]) -> dict[str, str] | None:
    try:
        answer = who.post(path, body)
    except NoAnswer:
        return None
    codes.append(answer.status)
    if answer.status in {200, 201, 202}:
        return dict(answer.body)
    check_is_outage(answer)
    return None


def _known(someone: Client) -> Answer | None:
    answer = someone.get("/api/auth/me")
    return None if answer.status == 503 else answer
