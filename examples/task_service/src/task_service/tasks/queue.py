"""Notifications for several machines: a queue of procrastinate in the same PostgreSQL database.

The transaction that queues a run adds a job. A worker fetches one job at a time and acquires the next runs, as many as it has
room for; the jobs of those runs are withdrawn. The worker keeps the fetched job until it has room again, and so leaves other
jobs to other workers. A shared periodic task deletes the jobs of dead workers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from procrastinate import App, JobContext, PsycopgConnector
from procrastinate.exceptions import ConnectorException
from procrastinate.jobs import Job, Status
from sqlalchemy import URL, text
from sqlalchemy.ext.asyncio import AsyncConnection

from msk_auth.errors import StoreUnavailable
from task_service.db.engine import POSTGRES_CONNECT, parse_url

from .notifications import Notifications, wait_for_event
from .status import STALLED_SECONDS

_log = logging.getLogger(__name__)

HEARTBEAT_SECONDS: Final = 5.0

_QUEUE: Final = "runs"
_TASK: Final = "execute_run"
# Every fifteen seconds; the last field is for seconds.
_RESCUE: Final = "* * * * * */15"
_POLL_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 2.0
_STOP_SECONDS: Final = 3.0
# The listener needs one more; runs are read and written through the service's own pool.
_MAX_CONNECTIONS: Final = 2

_WITHDRAW: Final = text(
    "DELETE FROM procrastinate_jobs WHERE queueing_lock = ANY(:run_ids) AND status = 'todo'"
)


class QueueNotifications(Notifications):
    """The notifications of this process, and of others through the queue.

    Args:
        url: The URL of the service's PostgreSQL database.
    """

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = parse_url(url)
        self._app = _app(self._url)

    async def announce(self, connection: AsyncConnection, run_id: str) -> None:
        """Add a job; see :meth:`.Notifications.announce`."""
        driver = (await connection.get_raw_connection()).driver_connection
        job = Job(
            queue=_QUEUE,
            lock=None,
            queueing_lock=run_id,
            task_name=_TASK,
            task_kwargs={"run_id": run_id},
        )
        try:
            await self._app.job_manager.batch_defer_jobs_async([job], connection=driver)
        except ConnectorException as error:
            raise StoreUnavailable from error

    async def withdraw(self, connection: AsyncConnection, run_ids: Sequence[str]) -> None:
        """Delete the jobs of runs, except for fetched jobs; see :meth:`.Notifications.withdraw`."""
        await connection.execute(_WITHDRAW, {"run_ids": list(run_ids)})

    async def listen(
        self, handle_notification: Callable[[], Awaitable[None]], stop: asyncio.Event
    ) -> None:
        """Handle jobs, and reconnect while the database does not answer; see :meth:`.Notifications.listen`."""
        # Procrastinate logs each job twice, and each lost connection with a traceback. This module logs the important events.
        logging.getLogger("procrastinate").setLevel(logging.CRITICAL)
        _log_failures_in_one_line(asyncio.get_running_loop())
        stopping = asyncio.create_task(stop.wait(), name="stop of the queue")
        try:
            while not stop.is_set():
                working = asyncio.create_task(_work(self._url, handle_notification), name="queue")
                await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
                # It then ends in order, and removes itself from the list of workers.
                working.cancel()
                # A frozen database must not keep this process from stopping.
                await asyncio.wait({working}, timeout=_STOP_SECONDS)
                if not stop.is_set():
                    ended = None if working.cancelled() else working.exception()
                    why = "" if ended is None else f" ({type(ended).__name__})"
                    _log.warning(
                        "cannot listen to the queue%s; this worker polls the database for runs", why
                    )
                    await wait_for_event(stop, _PAUSE_SECONDS)
        finally:
            stopping.cancel()


async def _work(url: URL, handle_notification: Callable[[], Awaitable[None]]) -> None:
    app = _app(url)

    @app.task(name=_TASK, queue=_QUEUE)
    async def execute_run(run_id: str) -> None:  # noqa: ARG001 - whichever run is next is executed
        await handle_notification()

    @app.periodic(cron=_RESCUE)
    @app.task(name="rescue", queue=_QUEUE, queueing_lock="rescue", pass_context=True)
    async def rescue(context: JobContext, timestamp: int) -> None:  # noqa: ARG001 - always given
        await _delete_stalled_jobs(context.app)

    async with app.open_async():
        await app.run_worker_async(
            queues=[_QUEUE],
            concurrency=1,
            fetch_job_polling_interval=_POLL_SECONDS,
            # The runner continues the run without its job.
            shutdown_graceful_timeout=0,
            update_heartbeat_interval=HEARTBEAT_SECONDS,
            stalled_worker_timeout=STALLED_SECONDS,
            delete_jobs="always",
            install_signal_handlers=False,
        )


def _log_failures_in_one_line(loop: asyncio.AbstractEventLoop) -> None:
    """Procrastinate leaves tasks behind when the database goes away; their failures need no traceback."""
    previous = loop.get_exception_handler() or type(loop).default_exception_handler

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if isinstance(context.get("exception"), ConnectorException):
            _log.warning("the queue dropped a statement, because the database did not answer")
        else:
            previous(loop, context)

    loop.set_exception_handler(handle)


async def _delete_stalled_jobs(app: App) -> None:
    """Delete the jobs of dead workers. Other workers have already found the runs by their rows."""
    manager = app.job_manager
    for job in await manager.get_stalled_jobs(
        queue=_QUEUE, seconds_since_heartbeat=STALLED_SECONDS
    ):
        # Deleting fails if another worker has just deleted the job.
        with suppress(ConnectorException):
            await manager.finish_job(job, Status.ABORTED, delete_job=True)


def _app(url: URL) -> App:
    _, kwargs = url.get_dialect()().create_connect_args(url)
    return App(
        connector=PsycopgConnector(
            kwargs={**POSTGRES_CONNECT, **kwargs},
            min_size=1,
            max_size=_MAX_CONNECTIONS,
            timeout=POSTGRES_CONNECT["connect_timeout"],
        )
    )
