"""What a service acknowledged, written down where no kill reaches it."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from examples.task_service.tests.faults.clients import Answer, Client, NoAnswer, check_is_outage


class Ledger:
    """Works with a service whose processes are killed all the time, and remembers each of its promises.

    Args:
        ports: Of the API processes; a request goes to any of them.
        login: The administrator's login token.
        key: An API key of the administrator.
        command: What the runs execute; each is given a number of its own.
        seed: For the choices.
        most: How many runs are started, so that they come to an end.
    """

    def __init__(
        self,
        ports: Sequence[int],
        login: str,
        key: str,
        command: str,
        *,
        seed: int,
        most: int = 200,
    ) -> None:
        self._people = [Client(port, login) for port in ports]
        self._programs = [Client(port, key) for port in ports]
        self._command = command
        self._most = most
        self._random = random.Random(seed)
        self._numbers = itertools.count(1)
        self._stop = threading.Event()
        self._errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []
        self.keys: dict[str, str] = {}
        self.revoked: set[str] = set()
        self.unclear: set[str] = set()
        """Keys whose revocation was requested and not answered."""
        self.tasks: dict[str, str] = {}
        """From task to the number that its command is given."""
        self.runs: dict[str, str] = {}
        """From run to task."""

    def begin(self) -> None:
        for work in (self._make_keys, self._make_runs, self._make_runs):
            thread = threading.Thread(target=self._work, args=(work,))
            self._threads.append(thread)
            thread.start()

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
        assert not self._errors, self._errors

    def _work(self, once: Callable[[], None]) -> None:
        try:
            while not self._stop.is_set():
                once()
                self._stop.wait(0.05)
        except BaseException as error:  # noqa: BLE001 - it is raised in `end`
            self._errors.append(error)

    def _make_keys(self) -> None:
        made = self._ask(self._people, "POST", "/api/keys", {"name": "kept"})
        if made is None:
            return
        self.keys[made["id"]] = made["key"]
        if self._random.random() < 0.5:
            self.unclear.add(made["id"])
            if self._ask(self._people, "POST", f"/api/keys/{made['id']}/revoke"):
                self.revoked.add(made["id"])

    def _make_runs(self) -> None:
        if len(self.runs) >= self._most:
            return
        number = str(next(self._numbers))
        params = {"argv": [self._command, number]}
        task = {"name": f"number {number}", "handler": "command", "params": params}
        made = self._ask(self._programs, "POST", "/api/tasks", task)
        if made is None:
            return
        self.tasks[made["id"]] = number
        run = self._ask(self._programs, "POST", f"/api/tasks/{made['id']}/run")
        if run is not None:
            self.runs[run["id"]] = made["id"]

    def _ask(self, who: Sequence[Client], method: str, path: str, body: Any = None) -> Any:
        """The body, if it was acknowledged."""
        try:
            answer = self._random.choice(who).send(method, path, body)
        except NoAnswer:
            self._stop.wait(0.05)
            return None
        if answer.status in {200, 201, 202}:
            return answer.body
        check_is_outage(answer)
        return None

    def check_keys_and_tasks(self) -> None:
        """Each key and each task is as it was acknowledged to be."""
        port = self._people[0].port
        with ThreadPoolExecutor(4) as pool:
            for key_id, answer in zip(
                self.keys, pool.map(lambda key: _me(port, key), self.keys.values()), strict=True
            ):
                if key_id in self.revoked:
                    assert (answer.status, answer.code) == (401, "key_revoked"), answer
                elif key_id not in self.unclear:
                    assert answer.status == 200, answer
            paths = [f"/api/tasks/{task_id}" for task_id in self.tasks]
            for answer, number in zip(
                pool.map(self._programs[0].get, paths), self.tasks.values(), strict=True
            ):
                assert answer.status == 200, answer
                assert answer.body["params"]["argv"][1] == number

    def wait_for_runs(self, seconds: float) -> dict[str, Any]:
        """Each acknowledged run, once it is over. How many still wait depends on the machine, but none hangs.

        Args:
            seconds: For how long no run at all may come to its end.
        """
        over: dict[str, Any] = {}
        deadline = time.monotonic() + seconds
        while missing := self.runs.keys() - over.keys():
            for run_id in missing:
                run = self._programs[0].must("GET", f"/api/runs/{run_id}")
                if run["finished_at"] is not None:
                    over[run_id] = run
                    deadline = time.monotonic() + seconds
            late = {state(run_id, over) for run_id in missing}
            assert time.monotonic() < deadline, f"{len(missing)} runs are left: {late}"
            time.sleep(0.2)
        return over


def state(run_id: str, over: dict[str, Any]) -> str:
    return over[run_id]["state"] if run_id in over else f"{run_id} is not over"


def _me(port: int, key: str) -> Answer:
    return Client(port, key).get("/api/auth/me")
