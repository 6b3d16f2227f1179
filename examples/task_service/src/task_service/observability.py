"""Log lines on stderr, and metrics for Prometheus.

All code logs through the standard library; structlog only formats the lines. Two filters remove secrets that a dependency
or a traceback might log: the library's filter on the handler, and a processor over every value.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping, MutableMapping
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from shutil import disk_usage
from threading import Thread
from typing import Any, Final, Literal, cast
from wsgiref.simple_server import WSGIServer

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

from msk_auth.redaction import RedactingFilter, redact

from .request_record import current_request

# Without the second series of each counter, a gauge with its time of creation.
disable_created_metrics()  # type: ignore[no-untyped-call]

LogFormat = Literal["console", "json"]

ACCESS_LOGGER: Final = "task_service.access"
"""The logger of each request's line. The line has only fields of the service: ids, a route's template, a parsed address. So
it is not searched for secrets."""

_ACCESS_FIELDS: Final = (
    "request_id",
    "trace_id",
    "method",
    "route",
    "status",
    "milliseconds",
    "address",
    "user_id",
    "key_id",
)
_access_log: Final = logging.getLogger(ACCESS_LOGGER)
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
        self._ended = Counter(
            "task_service_runs_ended",
            "Runs that this process has ended, by final state.",
            ["state"],
            registry=registry,
        )
        self._wait = Histogram(
            "task_service_run_wait_seconds",
            "Time from the request for a run to its start in this process.",
            buckets=_RUN_BUCKETS,
            registry=registry,
        )
        self._duration = Histogram(
            "task_service_run_seconds",
            "Time from the start of a run in this process to its end.",
            buckets=_RUN_BUCKETS,
            registry=registry,
        )

    def started(self, waited: timedelta) -> None:
        """Count a run that starts now."""
        self._wait.observe(max(0.0, waited.total_seconds()))

    def ended(self, state: str, seconds: float) -> None:
        """Count a run that has ended in a final state."""
        self._ended.labels(state).inc()
        self._duration.observe(seconds)


def serve_worker_metrics(
    registry: CollectorRegistry, host: str, port: int
) -> tuple[WSGIServer, Thread]:
    """Serve only the metrics of a process, in a thread, until the server is shut down.

    Args:
        registry: The metrics.
        host: The address to listen on.
        port: The port; 0 means any free port.

    Raises:
        OSError: The port is in use.
    """
    add_process_metrics(registry)
    return start_http_server(port, host, registry)


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
        refusals: Counts refused requests, by the code of the refusal.
        runs: The metrics of the runs that this process executes.
    """

    content_type: Final = CONTENT_TYPE_PLAIN_0_0_4

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "task_service_requests",
            "Requests answered.",
            ["method", "route", "status"],
            registry=registry,
        )
        self._seconds = Histogram(
            "task_service_request_seconds",
            "Time from a request's head to the end of its answer; streams are left out.",
            ["method", "route"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self._in_flight = Gauge(
            "task_service_requests_in_flight",
            "Requests that are being answered, streams included.",
            registry=registry,
        )
        self.refusals = Counter(
            "task_service_auth_refusals",
            "Requests refused while authenticating, by code.",
            ["code"],
            registry=registry,
        )
        self._runs = Gauge(
            "task_service_runs",
            "Runs in the database that have not ended, by state.",
            ["state"],
            registry=registry,
        )
        self.audit_left_out = Counter(
            "task_service_audit_left_out",
            "Audit entries of refusals that are in the process's log alone.",
            registry=registry,
        )
        self.connections = Gauge(
            "task_service_database_connections_in_use",
            "Connections of this process's pool that are in use.",
            registry=registry,
        )
        self.data_folder_free = Gauge(
            "task_service_data_folder_free_bytes",
            "Free space of the file system that has the data folder.",
            registry=registry,
        )
        self.runs = RunMetrics(registry)
        add_process_metrics(registry)

    def request_began(self) -> None:
        """Count a request that is being answered, until :meth:`answered`."""
        self._in_flight.inc()

    def answered(self, method: str, route: str, status: int, seconds: float | None) -> None:
        """Count the answer to a request that began.

        Args:
            method: From :func:`known_method`.
            route: The path's template, never the path itself.
            status: The response's status.
            seconds: The response's time; None for a stream.
        """
        self._in_flight.dec()
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


def log_request(fields: Mapping[str, str | float | None], *, routine: bool) -> None:
    """Write the line of a request.

    Args:
        fields: The fields of the line.
        routine: True for a monitor's expected answer, several times a minute: its line has the level DEBUG.
    """
    _access_log.log(logging.DEBUG if routine else logging.INFO, "answered", extra=dict(fields))


class _JsonFormatter(structlog.stdlib.ProcessorFormatter):
    """Writes each request's line directly, in a twentieth of the time of structlog's processors."""

    def format(self, record: logging.LogRecord) -> str:
        if record.name != ACCESS_LOGGER:
            return super().format(record)
        line = {name: getattr(record, name, None) for name in _ACCESS_FIELDS}
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds")
        return json.dumps(
            {
                **line,
                "event": "answered",
                "level": record.levelname.lower(),
                "logger": ACCESS_LOGGER,
                "timestamp": at.replace("+00:00", "Z"),
            }
        )


class _Redaction(RedactingFilter):
    """Leaves the line of each request as it is: see :data:`ACCESS_LOGGER`."""

    def filter(self, record: logging.LogRecord) -> bool:
        return True if record.name == ACCESS_LOGGER else super().filter(record)


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
    make = structlog.stdlib.ProcessorFormatter if log_format == "console" else _JsonFormatter
    formatter = make(
        foreign_pre_chain=[
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.stdlib.ExtraAdder(),
            _with_request_id,
            _without_color_message,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
        ],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            redact_values,
            renderer,
        ],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    handler.addFilter(_Redaction())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)
    # authlib logs the proof keys of logins.
    for chatty in ("aiosqlite", "alembic", "authlib", "httpx2", "httpcore2", "procrastinate"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def _with_request_id(
    _logger: Any, _method: str, event_dict: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    # The client's X-Request-Id leads to the error.
    request = current_request.get()
    if request is not None:
        event_dict.setdefault("request_id", request.id)
        if request.traceparent is not None:
            event_dict.setdefault("trace_id", request.trace_id)
    return event_dict


def _without_color_message(
    _logger: Any, _method: str, event_dict: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    # uvicorn adds a copy of each message in colours.
    event_dict.pop("color_message", None)
    return event_dict


def redact_values(
    _logger: Any, _method: str, event_dict: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """A structlog processor that redacts keys and tokens in every text of an event."""
    return {name: redacted(value) for name, value in event_dict.items()}


def redacted(value: Any) -> Any:
    """A value for a log, with a mask in place of each key or token, also in nested values."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        members = cast("Mapping[object, object]", value)
        return {name: redacted(member) for name, member in members.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [redacted(member) for member in cast("tuple[object, ...]", value)]
    return value
