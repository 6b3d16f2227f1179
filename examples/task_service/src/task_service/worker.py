"""The worker, which executes runs: a whole `task-service worker`, or a part of a process that serves.

With several machines a queue notifies workers of runs, and processes that serve leave the runs to them.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from msk_auth import Clock, SystemClock
from msk_auth.errors import ConfigurationError

from .accounts.audit import Audit
from .accounts.changes import Accounts
from .accounts.config import ConfigStore
from .db.engine import Database
from .handlers import HandlerEnvironment, HandlerRegistry
from .handlers.command import harmless_of
from .observability import RunMetrics
from .parameter_keys import ParameterKeys
from .settings import Settings
from .tasks.notifications import Notifications, wait_for_event
from .tasks.parameters import TaskParameters
from .tasks.runner import Runner
from .tasks.status import count_live_workers
from .tasks.worker_runs import WorkerRuns

if TYPE_CHECKING:
    from .tracing import Tracing

_log = logging.getLogger(__name__)

RUN_GRACE: Final = timedelta(seconds=5)
"""The time that runs may continue when the service stops, before they return to the queue."""

_RUNNER_PAUSE_SECONDS: Final = 5.0


class Worker:
    """Executes runs.

    A `task-service worker` has no peppers of keys and no signing keys of logins in its memory: its only secrets are the keys
    that open the secrets in the parameters of tasks.

    Args:
        db: The database of the runs.
        config: The administrator's configuration.
        settings: The settings.
        clock: The clock.
        keys: The keys for the secrets in the parameters of tasks.
        serving: True if this process serves the API. Then it leaves runs to other workers, if there are any, unless
            its settings prevent that.
        observer: Called with the executed runs, for metrics.

    Raises:
        ConfigurationError: A setting is invalid.
    """

    def __init__(
        self,
        db: Database,
        config: ConfigStore,
        settings: Settings,
        clock: Clock,
        keys: ParameterKeys,
        *,
        serving: bool,
        observer: RunMetrics,
    ) -> None:
        async def allowed_commands() -> tuple[str, ...]:
            listed = (await config.current()).allowed_commands
            return listed if permits_listed else harmless_of(listed)

        async def no_worker_lives() -> bool:
            return await count_live_workers(db) == 0

        permits_listed = settings.commands == "listed" or (serving and settings.leaves_runs)
        self.db = db
        self._settings = settings
        self._serving = serving
        self.parameters = TaskParameters(
            HandlerRegistry.load(
                HandlerEnvironment(allowed_commands, settings.http_allowed_networks)
            ),
            keys,
        )
        if settings.on_sqlite:
            self.notifications = Notifications()
        else:
            # SQLite needs no queue, so its packages are not imported.
            from .tasks.queue import QueueNotifications

            self.notifications = QueueNotifications(settings.database_url)
        stands_in = serving and settings.execute_runs == "auto" and not settings.on_sqlite
        self.tracing = tracing_of(settings)
        self.runner = Runner(
            WorkerRuns(db, clock, config, self.notifications),
            self.parameters,
            observer,
            concurrency=settings.workers,
            should_acquire=no_worker_lives if stands_in else None,
            tracing=self.tracing,
        )

    @classmethod
    def beside(cls, settings: Settings, observer: RunMetrics) -> Worker:
        """A worker beside processes that serve. Does not use the data folder, and opens no connection.

        Args:
            settings: The settings.
            observer: As for the class.

        Raises:
            ConfigurationError: A setting is invalid.
        """
        clock = SystemClock()
        db = Database.open(settings.database_url)
        config = ConfigStore(Accounts(db, clock, Audit(db, clock)))
        keys = settings.parameter_keys
        return cls(db, config, settings, clock, keys, serving=False, observer=observer)

    async def execute_runs(self, stop: asyncio.Event, grace: timedelta | None = None) -> None:
        """Execute runs until `stop` is set; runs then get `grace`, :data:`RUN_GRACE` by default.

        A process that serves and never executes runs only waits for `stop`.
        """
        if self._serving and self._settings.leaves_runs:
            await stop.wait()
            return
        # Without it, this process executes runs only while there are no workers.
        listens = self._settings.execute_runs == "always" or not self._serving
        async with asyncio.TaskGroup() as group:
            if listens:
                group.create_task(self.notifications.listen(self.runner.handle_notification, stop))
            while not stop.is_set():
                try:
                    await self.runner.run(stop, RUN_GRACE if grace is None else grace)
                except Exception:  # noqa: BLE001 - logged; a worker that stops helps no owner
                    # Only a bug ends the runner. Other workers take over its runs, like those of any dead worker.
                    _log.exception("the runner failed; restarting it")
                    await wait_for_event(stop, _RUNNER_PAUSE_SECONDS)


def tracing_of(settings: Settings) -> Tracing | None:
    """The spans of this process; None if tracing is off.

    Raises:
        ConfigurationError: OpenTelemetry is not installed.
    """
    if settings.tracing == "off":
        return None
    try:
        # Imported here, because its packages are an extra.
        from .tracing import Tracing
    except ImportError as error:
        raise ConfigurationError(
            "TASK_SERVICE_TRACING needs OpenTelemetry. Install task-service[opentelemetry]."
        ) from error
    return Tracing.to_collector()
