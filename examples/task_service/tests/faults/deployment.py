"""A deployment of the task service: processes on one data folder and one database, and people who use it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.task_service.tests.faults.clients import Client, NoAnswer
from examples.task_service.tests.faults.nursery import Nursery, Process, until
from examples.task_service.tests.service_support import ADMIN_PASSWORD
from tests.ports import can_listen, free_port


@dataclass
class Api:
    """A `task-service serve` that accepts connections."""

    process: Process
    port: int


class Deployment:
    """Starts processes that belong together.

    Args:
        nursery: Where they come from.
        folder: Their data folder is made in it.
        settings: What all of them are given, such as `database_url`.
    """

    def __init__(self, nursery: Nursery, folder: Path, **settings: str) -> None:
        self._nursery = nursery
        self.settings = {"data_dir": str(folder / "data"), "commands": "listed", **settings}

    def serve(self, port: int | None = None, **settings: str) -> Api:
        """An API process that accepts requests."""
        api = self.begin_to_serve(port, **settings)
        until(lambda: is_serving(api), "the service starts")
        return api

    def begin_to_serve(self, port: int | None = None, **settings: str) -> Api:
        if port is None:
            port = free_port()
        else:
            # A program that a killed process was just starting has its listening socket until it is executed. Here the next
            # process listens within a tenth of a second.
            until(lambda: can_listen(port), f"port {port} is free")
        given = {**self.settings, "port": str(port), **settings}
        return Api(self._nursery.start("serve", **given), port)

    def serve_on_kept_socket(self, port: int) -> Api:
        """An API process that accepts requests, on a socket that stays when it ends."""
        process = self._nursery.start("serve", kept_port=port, **self.settings)
        api = Api(process, port)
        until(lambda: is_serving(api), "the service starts")
        return api

    def work(self, **settings: str) -> Process:
        """A worker, which may still be on its way."""
        return self._nursery.start("worker", **{**self.settings, **settings})


def is_serving(api: Api) -> bool:
    assert not api.process.has_ended(), api.process.log()
    return "data is in" in api.process.stdout.read_text()


def log_in(port: int, password: str = ADMIN_PASSWORD) -> Client:
    """The administrator, with a fresh login."""
    body = {"username": "admin", "password": password}
    token = Client(port).must("POST", "/api/auth/login", body)["access_token"]
    return Client(port, token)


def set_up(api: Api, **config: Any) -> Client:
    """The administrator of a new deployment, logged in, who has configured it."""
    found = re.search(r"/set-password#([\w-]{43})", api.process.stdout.read_text())
    assert found is not None
    body = {"token": found[1], "password": ADMIN_PASSWORD}
    Client(api.port).must("POST", "/api/auth/set-password", body, status=204)
    admin = log_in(api.port)
    admin.must("PATCH", "/api/admin/config", {"max_keys_per_user": 100_000, **config})
    return admin


def new_key(admin: Client) -> Client:
    """A program with a new key of this person."""
    made = admin.must("POST", "/api/keys", {"name": "a program"}, status=201)
    return Client(admin.port, made["key"])


def new_task(someone: Client, *argv: str, **more: Any) -> str:
    task = {"name": "a task", "handler": "command", "params": {"argv": list(argv)}, **more}
    return str(someone.must("POST", "/api/tasks", task, status=201)["id"])


def start_run(someone: Client, task_id: str) -> str:
    return str(someone.must("POST", f"/api/tasks/{task_id}/run", status=202)["id"])


def wait_for_run(someone: Client, run_id: str, seconds: float = 120) -> dict[str, Any]:
    """The run, once it is over."""

    def is_over() -> dict[str, Any] | None:
        try:
            answer = someone.get(f"/api/runs/{run_id}")
        except NoAnswer:
            return None
        return answer.body if answer.status == 200 and answer.body["finished_at"] else None

    run: dict[str, Any] = until(is_over, f"the run {run_id} comes to an end", seconds)
    return run


def credential(someone: Client) -> str:
    return someone._headers["Authorization"].removeprefix("Bearer ")


def worker_ids(process: Process) -> set[str]:
    """What the process calls itself as a worker, once it works."""
    return set(re.findall(r"executing runs as (wrk_\w+)", process.log()))
