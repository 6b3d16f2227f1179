"""A whole task service on PostgreSQL, as real processes, with a handler that does nothing."""

from __future__ import annotations

import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from examples.task_service.tests.faults.deployment import (
    Api,
    Deployment,
    credential,
    new_key,
    set_up,
    worker_ids,
)
from examples.task_service.tests.faults.nursery import Nursery, Process, nursery, until
from sqlalchemy import URL

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
        url: Of the database, for SQLAlchemy.
        apis: The processes that serve.
        key: An API key of the administrator.
        login: A login token of the administrator.
        task_id: A task that does nothing.
    """

    processes: Nursery
    deployment: Deployment
    url: URL
    apis: list[Api]
    key: str
    login: str
    task_id: str
    workers: list[Process] = field(default_factory=list[Process])

    @property
    def ports(self) -> list[int]:
        """Where the service listens."""
        return [api.port for api in self.apis]

    def set_workers(self, count: int) -> None:
        """Have so many workers, each ready."""
        while len(self.workers) > count:
            self.workers.pop().terminate()
        while len(self.workers) < count:
            worker = self.deployment.work()
            until(lambda worker=worker: worker_ids(worker), "a worker works")
            self.workers.append(worker)


@contextmanager
def deployed(url: URL, *, apis: int) -> Iterator[Deployed]:
    """A service on an empty database; nothing of it is left afterwards.

    Args:
        url: Of the database.
        apis: How many processes serve.
    """
    with tempfile.TemporaryDirectory(prefix="task-service-benchmark-") as name:
        folder = Path(name)
        _install_handler(folder / "packages")
        with nursery(folder, PYTHONPATH=str(folder / "packages")) as processes:
            deployment = Deployment(
                processes,
                folder,
                database_url=url.set(drivername="postgresql").render_as_string(hide_password=False),
                workers="4",
            )
            first = deployment.serve()
            admin = set_up(first, max_concurrent_runs_per_user=100)
            program = new_key(admin)
            task = {"name": "nothing", "handler": "nothing", "params": {}}
            made = program.must("POST", "/api/tasks", task, status=201)
            yield Deployed(
                processes,
                deployment,
                url,
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
