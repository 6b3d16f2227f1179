"""What operators see: log lines for people and for collectors, without secrets, and metrics without names."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry

from msk_auth import KeyFormat
from task_service.observability import (
    ACCESS_LOGGER,
    LogFormat,
    Metrics,
    RunMetrics,
    configure_logging,
    free_bytes,
    serve_worker_metrics,
)
from task_service.request_record import RequestRecord, current_request

KEY = KeyFormat().generate().reveal()
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ1c3IifQ.c2lnbmF0dXJl"


Read = Callable[[], str]


@pytest.fixture
def stderr(capsys: pytest.CaptureFixture[str]) -> Read:
    """Reads what the process logged."""
    return lambda: capsys.readouterr().err


def log_everything_wrongly() -> None:
    log = logging.getLogger("another.package")
    nested = {"list": [JWT, ("a", KEY)], "object": SimpleNamespace(key=KEY)}
    log.info("used %s", KEY, extra={"nested": nested, "number": 5})
    try:
        int(JWT)
    except ValueError:
        log.exception("it failed with %s", KEY)


def test_a_line_of_json_has_the_event_its_origin_and_all_fields(stderr: Read) -> None:
    configure_logging("json", "INFO")
    fields = {"request_id": "req_1", "trace_id": None, "status": 200, "milliseconds": 1.5}
    logging.getLogger(ACCESS_LOGGER).info("answered", extra=fields)
    line = json.loads(stderr())
    assert line.pop("timestamp").endswith("Z")
    assert line == fields | {"event": "answered", "level": "info", "logger": ACCESS_LOGGER}


def test_a_wrong_log_call_is_logged_without_its_arguments(stderr: Read) -> None:
    configure_logging("json", "INFO")
    logging.getLogger("another.package").error("%d keys", KEY)
    line = json.loads(stderr())
    assert line["event"] == "<a log call that cannot be formatted: TypeError>"
    assert (line["logger"], line["level"]) == ("another.package", "error")


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_every_line_of_a_request_has_its_id(stderr: Read, log_format: LogFormat) -> None:
    configure_logging(log_format, "INFO")
    token = current_request.set(RequestRecord("req_7", None))
    logging.getLogger("sqlalchemy").error("it failed")
    current_request.reset(token)
    logging.getLogger("sqlalchemy").error("it failed elsewhere")
    inside, outside = stderr().splitlines()
    assert "req_7" in inside
    assert "request_id" not in outside


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_no_format_lets_a_key_or_token_through(stderr: Read, log_format: LogFormat) -> None:
    configure_logging(log_format, "INFO")
    log_everything_wrongly()
    text = stderr()
    assert "ValueError" in text
    assert KEY not in text
    assert KEY.rsplit("_", 1)[1] not in text
    assert JWT not in text
    assert "[JWT]" in text


def test_uvicorns_coloured_copy_of_its_messages_is_left_out(stderr: Read) -> None:
    configure_logging("json", "INFO")
    logging.getLogger("uvicorn.error").info("started", extra={"color_message": "\x1b[1mstarted"})
    (line,) = stderr().splitlines()
    assert "color_message" not in json.loads(line)


def test_clients_that_log_addresses_are_kept_quiet(stderr: Read) -> None:
    configure_logging("json", "INFO")
    logging.getLogger("httpx2").info("HTTP Request: GET https://internal.example/?token=1")
    logging.getLogger("httpx2").warning("this one matters")
    (line,) = stderr().splitlines()
    assert json.loads(line)["event"] == "this one matters"


def test_streams_are_counted_and_not_timed() -> None:
    metrics = Metrics()
    metrics.answered("GET", "/api/runs/{runId}/log", 200, None)
    text = metrics.render().decode()
    assert 'requests_total{method="GET",route="/api/runs/{runId}/log",status="200"} 1.0' in text
    assert "request_seconds_count{" not in text


def test_a_data_folder_that_is_gone_has_no_free_space(tmp_path: Path) -> None:
    metrics = Metrics()
    metrics.data_folder_free.set_function(lambda: free_bytes(tmp_path / "gone"))
    assert "task_service_data_folder_free_bytes 0.0" in metrics.render().decode()


def test_a_worker_serves_the_metrics_of_its_runs() -> None:
    registry = CollectorRegistry()
    runs = RunMetrics(registry)
    runs.started(timedelta(milliseconds=20))
    # The clocks of two machines may differ.
    runs.started(timedelta(seconds=-3))
    runs.ended("failed", 7.0)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    serve_worker_metrics(registry, "127.0.0.1", port)
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as response:
        text = response.read().decode()
    assert 'task_service_runs_ended_total{state="failed"} 1.0' in text
    assert 'task_service_run_wait_seconds_bucket{le="0.0005"} 1.0' in text
    assert 'task_service_run_wait_seconds_bucket{le="0.025"} 2.0' in text
    assert 'task_service_run_seconds_bucket{le="30.0"} 1.0' in text
    line = next(each for each in text.splitlines() if each.startswith("task_service_build_info{"))
    assert f'version="{version("task-service")}"' in line
    assert f'library_version="{version("msk-auth")}"' in line
    assert "task_service_requests" not in text


def test_a_request_of_half_a_millisecond_has_a_bucket_and_a_counter_one_series() -> None:
    metrics = Metrics()
    metrics.answered("GET", "/healthz", 200, 0.0004)
    text = metrics.render().decode()
    assert 'request_seconds_bucket{le="0.0005",method="GET",route="/healthz"} 1.0' in text
    assert "_created" not in text
