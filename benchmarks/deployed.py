"""A whole task service, as real processes, with a handler that does nothing."""

from __future__ import annotations

import os
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from examples.task_service.tests.faults.clients import Client
from examples.task_service.tests.faults.deployment import (
    Api,
    Deployment,
    credential,
    new_key,
    set_up,
    start_run,
    wait_for_run,
    worker_ids,
)
from examples.task_service.tests.faults.nursery import Nursery, Process, nursery, until
from sqlalchemy import URL, make_url

_HANDLER = """
from typing import ClassVar

from task_service.handlers import Handler, HandlerParams, HandlerResult, RunContext


class Nothing(Handler[HandlerParams]):
    name: ClassVar[str] = "nothing"
    title: ClassVar[str] = "Nothing"
    description: ClassVar[str] = "Does nothing, at once."
    Params = HandlerParams

    async def run(self, params: HandlerParams, context: RunContext) -> HandlerResult:
        return HandlerResult()
"""


@dataclass
class Deployed:
    """A deployment, and a program that uses it.

    Attributes:
        processes: Where all processes come from.
        apis: The processes that serve.
        key: An API key of the administrator.
        login: A login token of the administrator.
        task_id: A task that does nothing.
    """

    processes: Nursery
    deployment: Deployment
    apis: list[Api]
    key: str
    login: str
    task_id: str
    workers: list[Process] = field(default_factory=list[Process])

    @property
    def url(self) -> URL:
        """The PostgreSQL database, for SQLAlchemy."""
        url = make_url(self.deployment.settings["database_url"])
        return url.set(drivername="postgresql+psycopg")

    @property
    def ports(self) -> list[int]:
        """Where the service listens."""
        return [api.port for api in self.apis]

    def run_tasks(self, count: int) -> None:
        """Add tasks until there are so many, each with a run that is over."""
        program = Client(self.ports[0], self.key)
        task = {"name": "nothing", "handler": "nothing", "params": {}}
        added = [
            program.must("POST", "/api/tasks", task, status=201)["id"] for _ in range(count - 1)
        ]
        # On SQLite the process that serves executes them.
        self.set_workers(int("database_url" in self.deployment.settings))
        for run_id in [start_run(program, task_id) for task_id in [self.task_id, *added]]:
            wait_for_run(program, run_id)
        self.set_workers(0)

    def set_workers(self, count: int) -> None:
        """Have so many workers, each ready."""
        while len(self.workers) > count:
            self.workers.pop().terminate()
        while len(self.workers) < count:
            worker = self.deployment.work()
            until(lambda worker=worker: worker_ids(worker), "a worker works")
            self.workers.append(worker)


@contextmanager
def deployed(url: URL | None, *, apis: int, **settings: str) -> Iterator[Deployed]:
    """A service on an empty database; nothing of it is left afterwards.

    Args:
        url: Of a PostgreSQL database; None means the service's own SQLite file.
        apis: How many processes serve.
        settings: More of the service's settings, such as `lease_ms`.
    """
    with tempfile.TemporaryDirectory(prefix="task-service-benchmark-") as name:
        folder = Path(name)
        _install_handler(folder / "packages")
        # Before what finds the code where it is not installed.
        path = os.pathsep.join(
            filter(None, (str(folder / "packages"), os.environ.get("PYTHONPATH")))
        )
        with nursery(folder, PYTHONPATH=path) as processes:
            if url is not None:
                plain = url.set(drivername="postgresql")
                settings["database_url"] = plain.render_as_string(hide_password=False)
            deployment = Deployment(processes, folder, workers="4", **settings)
            first = deployment.serve()
            admin = set_up(first, max_concurrent_runs_per_user=100)
            program = new_key(admin)
            task = {"name": "nothing", "handler": "nothing", "params": {}}
            made = program.must("POST", "/api/tasks", task, status=201)
            yield Deployed(
                processes,
                deployment,
                [first, *(deployment.serve() for _ in range(apis - 1))],
                credential(program),
                credential(admin),
                made["id"],
            )


def _install_handler(folder: Path) -> None:
    """As a deployer does it: a distribution with an entry point."""
    about = folder / "nothing-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: nothing\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[task_service.handlers]\nnothing = nothing:Nothing\n")
    (folder / "nothing.py").write_text(textwrap.dedent(_HANDLER))
