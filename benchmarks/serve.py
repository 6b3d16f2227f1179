"""Real servers on free ports of this machine, forked from one process: `python -m benchmarks.serve`.

What to serve comes on standard input, a JSON object on each line; the port of each goes to standard output. Everything
is imported once, so that a server starts in a moment. They serve until standard input ends. ASGI applications run
under uvicorn with httptools and uvloop, Flask under gunicorn with one worker of four threads.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
import traceback
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import uvicorn
from gunicorn.app.base import BaseApplication  # type: ignore[import-untyped]
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from msk_auth.stores.sqlalchemy import (
    AsyncSQLAlchemyKeyStore,
    SQLAlchemyKeyStore,
    prepare_sqlite,
)

from . import subjects
from .applications import ASYNC, Way, flask_app

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Setup:
    """What is served.

    Attributes:
        framework: One of `applications.FRAMEWORKS`.
        way: How the route is guarded.
        key: The one that is accepted.
        url: Of the database that has it, for a blocking engine.
        lease_ms: The lease in milliseconds; 0 means none.
        cores: Where the server may run.
    """

    framework: str
    way: Way
    key: str
    url: str
    lease_ms: int
    cores: list[int]

    def to_json(self) -> str:
        """For standard input."""
        return json.dumps(asdict(self))

    @property
    def lease(self) -> timedelta | None:
        """As an authenticator takes it."""
        return timedelta(milliseconds=self.lease_ms) if self.lease_ms else None


def application(setup: Setup) -> Any:
    """What a server serves: ASGI, or WSGI for Flask."""
    if setup.framework == "Flask":
        engine = create_engine(setup.url)
        if engine.dialect.name == "sqlite":
            prepare_sqlite(engine)
        store = SQLAlchemyKeyStore(engine)
        return flask_app(setup.way, subjects.authenticator(store, lease=setup.lease), setup.key)
    async_engine = create_async_engine(setup.url.replace("sqlite:", "sqlite+aiosqlite:", 1))
    if async_engine.dialect.name == "sqlite":
        prepare_sqlite(async_engine)
    authenticator = subjects.async_authenticator(
        AsyncSQLAlchemyKeyStore(async_engine), lease=setup.lease
    )
    return ASYNC[setup.framework](setup.way, authenticator, setup.key)


def serve_asgi(app: Any, listening: socket.socket) -> None:
    """Until SIGTERM."""
    config = uvicorn.Config(
        app, http="httptools", loop="uvloop", log_level="critical", access_log=False
    )
    uvicorn.Server(config).run([listening])


def serve_wsgi(app: Any, listening: socket.socket) -> None:
    """Until SIGTERM."""
    listening.set_inheritable(True)
    _Gunicorn(app, f"fd://{listening.fileno()}").run()


class _Gunicorn(BaseApplication):  # type: ignore[misc]
    def __init__(self, app: Any, bind: str) -> None:
        self._app = app
        self._bind = bind
        super().__init__()

    def load_config(self) -> None:
        settings = {
            "bind": self._bind,
            "workers": 1,
            "worker_class": "gthread",
            "threads": 4,
            "keepalive": 30,
            "loglevel": "critical",
            # One control socket for all servers would be one too few.
            "control_socket_disable": True,
        }
        for name, value in settings.items():
            self.cfg.set(name, value)

    def load(self) -> Any:
        return self._app


def fork(setup: Setup) -> tuple[int, int]:
    """A server in a process of its own: its process id and its port."""
    listening = socket.create_server((HOST, 0), backlog=1024)
    port: int = listening.getsockname()[1]
    process = os.fork()
    if process:
        listening.close()
        return process, port
    try:
        os.close(0)
        os.sched_setaffinity(0, setup.cores)
        serve = serve_wsgi if setup.framework == "Flask" else serve_asgi
        serve(application(setup), listening)
    except SystemExit:
        # gunicorn's way of ending, in its master and in its worker.
        os._exit(0)
    except BaseException:  # noqa: BLE001 - a fork must never return into what its parent was doing
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def main() -> None:
    """See the module."""
    # What is here now lives as long as the servers do: their garbage collectors need not look at it.
    gc.freeze()
    processes: list[int] = []
    try:
        for line in sys.stdin:
            process, port = fork(Setup(**json.loads(line)))
            processes.append(process)
            print(port, flush=True)
    finally:
        for process in processes:
            os.kill(process, signal.SIGTERM)
        for process in processes:
            os.waitpid(process, 0)


if __name__ == "__main__":
    main()
