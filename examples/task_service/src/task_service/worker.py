"""The worker, which executes runs: a whole `task-service worker`, or a part of a process that serves.

With several machines a queue notifies workers of runs, and processes that serve leave the runs to them.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
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
from .tasks.notifications import LocalEvents
from .tasks.parameters import TaskParameters
from .tasks.runner import Runner
from .tasks.status import count_live_workers

if TYPE_CHECKING:
    from .tasks.queue import QueueNotifier
    from .tracing import Tracing

_log = logging.getLogger(__name__)

RUN_GRACE: Final = timedelta(seconds=5)
"""The time that runs may continue when the service stops, before they return to the queue."""

_RUNNER_PAUSE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Worker:
    """Executes runs.

    A `task-service worker` has no peppers of keys and no signing keys of logins in its memory: its only secrets are the keys
    that open the secrets in the parameters of tasks.
    """

    settings: Settings
    db: Database
    parameters: TaskParameters
    events: LocalEvents
    notifier: QueueNotifier | None
    runner: Runner
    config: ConfigStore
    tracing: Tracing | None
    serving: bool

    @classmethod
    def build(
        cls,
        settings: Settings,
        *,
        clock: Clock | None = None,
        observer: RunMetrics | None = None,
    ) -> Worker:
        """A worker beside processes that serve. Does not use the data folder, and opens no connection.

        Args:
            settings: The settings.
            clock: The clock; the machine's own by default.
            observer: As for :meth:`on`.

        Raises:
            ConfigurationError: A setting is invalid.
        """
        clock = SystemClock() if clock is None else clock
        db = Database.open(settings.database_url)
        config = ConfigStore(Accounts(db, clock, Audit(db, clock)))
        return cls.on(
            db, config, settings, clock, settings.parameter_keys, serving=False, observer=observer
        )

    @classmethod
    def on(
        cls,
        db: Database,
        config: ConfigStore,
        settings: Settings,
        clock: Clock,
        keys: ParameterKeys,
        *,
        serving: bool,
        observer: RunMetrics | None = None,
    ) -> Worker:
        """A worker on an open database.

        Args:
            db: The database of the runs.
            config: The administrator's configuration.
            settings: As for :meth:`build`.
            clock: As for :meth:`build`.
            keys: The keys for the secrets in the parameters of tasks.
            serving: True if this process serves the API. Then it leaves runs to other workers, if there are any, unless
                its settings prevent that.
            observer: Called with the executed runs, for metrics.

        Raises:
            ConfigurationError: As for :meth:`build`.
        """

        async def allowed_commands() -> tuple[str, ...]:
            listed = (await config.current()).allowed_commands
            return listed if permits_listed else harmless_of(listed)

        async def no_worker_lives() -> bool:
            return await count_live_workers(db) == 0

        permits_listed = settings.commands == "listed" or (serving and settings.leaves_runs)
        parameters = TaskParameters(
            HandlerRegistry.load(
                HandlerEnvironment(allowed_commands, settings.http_allowed_networks)
            ),
            keys,
        )
        events = LocalEvents()
        notifier = None
        if not settings.on_sqlite:
            # SQLite needs no queue, so its packages are not imported.
            from .tasks.queue import QueueNotifier

            notifier = QueueNotifier(settings.database_url)
        stands_in = serving and settings.execute_runs == "auto" and notifier is not None
        tracing = tracing_of(settings)
        runner = Runner(
            db,
            clock,
            parameters,
            config,
            events,
            concurrency=settings.workers,
            notifier=notifier,
            should_acquire=no_worker_lives if stands_in else None,
            observer=observer,
            tracing=tracing,
        )
        return cls(
            settings=settings,
            db=db,
            parameters=parameters,
            events=events,
            notifier=notifier,
            runner=runner,
            config=config,
            tracing=tracing,
            serving=serving,
        )

    async def execute_runs(self, stop: asyncio.Event, grace: timedelta | None = None) -> None:
        """Execute runs until `stop` is set; runs then get `grace`, :data:`RUN_GRACE` by default.

        A process that serves and never executes runs only waits for `stop`.
        """
        if self.serving and self.settings.leaves_runs:
            await stop.wait()
            return
        stopping = asyncio.create_task(stop.wait(), name="stop of the runner")
        listening = self._listen_to_queue(stop)
        try:
            while not stop.is_set():
                working = asyncio.create_task(self.runner.run(), name="runner")
                await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if working.done():
                    # Only a bug ends the runner. Other workers take over its runs, like those of any dead worker.
                    _log.error("the runner failed; restarting it", exc_info=working.exception())
                    await asyncio.wait({stopping}, timeout=_RUNNER_PAUSE_SECONDS)
                else:
                    self.runner.stop(RUN_GRACE if grace is None else grace)
                    await working
        finally:
            stopping.cancel()
            if listening is not None:
                await listening

    def _listen_to_queue(self, stop: asyncio.Event) -> asyncio.Task[None] | None:
        """Listen to the queue, unless this process executes runs only while there are no workers, or is on SQLite."""
        if self.settings.on_sqlite or (self.serving and self.settings.execute_runs != "always"):
            return None
        from .tasks.queue import listen

        listening = listen(self.settings.database_url, self.runner.handle_notification, stop=stop)
        return asyncio.create_task(listening, name="queue")


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
