"""Log lines on stderr, and metrics for Prometheus.

All code logs through the standard library; structlog only formats the lines. The formatter removes secrets that a dependency
or a traceback might log from each finished line.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping, MutableMapping
from datetime import timedelta
from functools import partial
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from shutil import disk_usage
from typing import Any, Final, Literal, cast

import structlog
from prometheus_client import (
    CONTENT_TYPE_PLAIN_0_0_4,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
    start_http_server,
)

from msk_auth.errors import ConfigurationError
from msk_auth.redaction import redact

from .request_record import current_request

# Without the second series of each counter, a gauge with its time of creation.
disable_created_metrics()  # type: ignore[no-untyped-call]

LogFormat = Literal["console", "json"]

ACCESS_LOGGER: Final = "task_service.access"
"""The logger of each request's line."""

# RFC 9110's methods and PATCH. Others share one label, since clients could invent any number of methods.
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# Seconds. Most answers take less than the 5 ms at which Prometheus' own buckets begin.
_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
# Runs take longer: up to a day.
_RUN_BUCKETS: Final = (*_BUCKETS, 30, 60, 300, 900, 3600, 21600, 86400)


class RunMetrics:
    """Metrics of the runs that this process executes.

    Args:
        registry: Gets the metrics.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        histogram = partial(Histogram, buckets=_RUN_BUCKETS, registry=registry)
        self._ended = Counter(
            "task_service_runs_ended",
            "Runs that this process has ended, by final state.",
            ["state"],
            registry=registry,
        )
        self._wait = histogram(
            "task_service_run_wait_seconds",
            "Time from the request for a run to its start in this process.",
        )
        self._duration = histogram(
            "task_service_run_seconds", "Time from the start of a run in this process to its end."
        )

    def started(self, waited: timedelta) -> None:
        """Count a run that starts now."""
        self._wait.observe(max(0.0, waited.total_seconds()))

    def ended(self, state: str, seconds: float) -> None:
        """Count a run that has ended in a final state."""
        self._ended.labels(state).inc()
        self._duration.observe(seconds)


def serve_worker_metrics(registry: CollectorRegistry, host: str, port: int) -> None:
    """Serve only the metrics of a process, in a thread, until its end.

    Args:
        registry: The metrics.
        host: The address to listen on.
        port: The port.

    Raises:
        ConfigurationError: The port is in use.
    """
    add_process_metrics(registry)
    try:
        start_http_server(port, host, registry)
    except OSError as error:
        raise ConfigurationError(
            f"Cannot serve the worker's metrics on port {port} of {host}: {error.strerror}. Set"
            " TASK_SERVICE_WORKER_METRICS_PORT to another port."
        ) from error


def add_process_metrics(registry: CollectorRegistry) -> None:
    """Add the metrics of every process: the versions, and `process_*` (processor time, memory, open files; Linux only)."""
    Gauge(
        "task_service_build_info",
        "1, with the versions of this process.",
        ["version", "library_version", "python_version"],
        registry=registry,
    ).labels(version("task-service"), version("msk-auth"), python_version()).set(1)
    ProcessCollector(registry=registry)


def free_bytes(folder: Path) -> int:
    """The free space of the folder's file system; 0 if the folder is gone, which raises the alert of a full disk."""
    try:
        return disk_usage(folder).free
    except OSError:
        return 0


class Metrics:
    """The service's metrics, in their own registry. No label names a person, a key or an address.

    Attributes:
        audit_left_out: Counts audit entries that are only in the process's log.
        connections: The used connections of this process's pool.
        data_folder_free: The free space of the data folder's file system.
        in_flight: Counts requests that are being answered.
        refusals: Counts refused requests, by the code of the refusal.
        runs: The metrics of the runs that this process executes.
    """

    content_type: Final = CONTENT_TYPE_PLAIN_0_0_4

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        self._requests = counter(
            "task_service_requests", "Requests answered.", ["method", "route", "status"]
        )
        self._seconds = Histogram(
            "task_service_request_seconds",
            "Time from a request's head to the end of its answer; streams are left out.",
            ["method", "route"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self.in_flight = gauge(
            "task_service_requests_in_flight",
            "Requests that are being answered, streams included.",
        )
        self.refusals = counter(
            "task_service_auth_refusals",
            "Requests refused while authenticating, by code.",
            ["code"],
        )
        self._runs = gauge(
            "task_service_runs", "Runs in the database that have not ended, by state.", ["state"]
        )
        self.audit_left_out = counter(
            "task_service_audit_left_out",
            "Audit entries of refusals that are in the process's log alone.",
        )
        self.connections = gauge(
            "task_service_database_connections_in_use",
            "Connections of this process's pool that are in use.",
        )
        self.data_folder_free = gauge(
            "task_service_data_folder_free_bytes",
            "Free space of the file system that has the data folder.",
        )
        self.runs = RunMetrics(registry)
        add_process_metrics(registry)

    def answered(self, method: str, route: str, status: int, seconds: float | None) -> None:
        """Count the answer to a request.

        Args:
            method: From :func:`known_method`.
            route: The path's template, never the path itself.
            status: The response's status.
            seconds: The response's time; None for a stream.
        """
        self._requests.labels(method, route, status).inc()
        if seconds is not None:
            self._seconds.labels(method, route).observe(seconds)

    def set_runs(self, by_state: Mapping[str, int]) -> None:
        """Set the number of unfinished runs in each state; the other states become unknown."""
        self._runs.clear()
        for state, count in by_state.items():
            self._runs.labels(state).set(count)

    def render(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self._registry)


def known_method(method: str) -> str:
    """The method of a request; `other` for an unknown method."""
    return method if method in _METHODS else "other"


class _RedactingFormatter(structlog.stdlib.ProcessorFormatter):
    def format(self, record: logging.LogRecord) -> str:
        try:
            return redact(super().format(record))
        except Exception as error:  # noqa: BLE001 - a wrong log call fails no request, and is not lost
            reason = type(error).__name__
            record.msg, record.args = f"<a log call that cannot be formatted: {reason}>", None
            return redact(super().format(record))


def configure_logging(log_format: LogFormat, level: str) -> None:
    """Send all log records of this process to stderr.

    Args:
        log_format: `console` for people, `json` for collectors, one object a line.
        level: The least severe level that is logged, such as `INFO`.
    """
    console = structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
    )
    renderer = console if log_format == "console" else structlog.processors.JSONRenderer()
    formatter = _RedactingFormatter(
        foreign_pre_chain=[
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.stdlib.ExtraAdder(),
            _with_ids_of_request,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
        ],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            renderer,
        ],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)
    # A line that cannot be written would be printed with its arguments.
    logging.raiseExceptions = False
    # authlib logs the proof keys of logins.
    for chatty in ("aiosqlite", "alembic", "authlib", "httpx2", "httpcore2", "procrastinate"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def _with_ids_of_request(
    _logger: Any, _method: str, event_dict: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    # The client's X-Request-Id leads to the error.
    request = current_request.get()
    if request is not None:
        event_dict.setdefault("request_id", request.id)
        if request.traceparent is not None:
            event_dict.setdefault("trace_id", request.trace_id)
    # uvicorn adds a copy of each message in colours.
    event_dict.pop("color_message", None)
    return event_dict


def redacted(value: Any) -> Any:
    """A JSON value with a mask in place of each key or token, also in nested values."""
    return json.loads(redact(json.dumps(value, default=_plain)))


def _plain(value: Any) -> Any:
    return dict(cast("Mapping[str, object]", value)) if isinstance(value, Mapping) else list(value)
