"""Spans of requests and runs: one trace from the client to what a run calls, without secrets, and nothing where it is off."""

from __future__ import annotations

import asyncio
import gzip
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from examples.task_service.tests.service_support import (
    USER_PASSWORD,
    Service,
    expect,
    running_service,
)
from examples.task_service.tests.waiting import eventually
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id

from msk_auth import KeyFormat
from msk_auth.errors import ConfigurationError
from task_service import cli
from task_service import tracing as tracing_module
from task_service.observability import ACCESS_LOGGER
from task_service.request_record import RequestRecord
from task_service.settings import Settings
from task_service.tracing import Tracing
from task_service.worker import tracing_of

pytestmark = pytest.mark.anyio

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"


class Spans:
    """What was recorded so far, in this process."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracing = Tracing(self.provider)

    def all(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> ReadableSpan:
        (span,) = (span for span in self.all() if span.name == name)
        return span

    def has(self, name: str) -> bool:
        return any(span.name == name for span in self.all())


@pytest.fixture
def spans() -> Spans:
    return Spans()


@pytest.fixture
async def traced(
    template: Path, tmp_path: Path, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Service]:
    monkeypatch.setattr(Tracing, "to_collector", lambda: spans.tracing)
    async with running_service(template, tmp_path / "data", tracing="otlp") as service:
        yield service


def traceparent_of(span: ReadableSpan) -> str:
    context = span.get_span_context()
    assert context is not None
    return f"00-{format_trace_id(context.trace_id)}-{format_span_id(context.span_id)}-01"


def parent_of(span: ReadableSpan) -> str | None:
    """The parent's `traceparent`."""
    if span.parent is None:
        return None
    return f"00-{format_trace_id(span.parent.trace_id)}-{format_span_id(span.parent.span_id)}-01"


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


# Requests and runs


async def test_a_request_and_its_run_belong_to_the_trace_of_the_client(
    traced: Service, spans: Spans
) -> None:
    ulf = await traced.log_in("ulf", USER_PASSWORD)
    program = await traced.key_for(ulf, scopes=["tasks:read", "tasks:run"])
    task = await ulf.new_task()
    run = await program.post(f"/api/tasks/{task['id']}/run", headers={"traceparent": TRACEPARENT})
    # The span ends after the run, once the outcome is written.
    await eventually(lambda: spans.has("run command"))

    request = spans.named("POST /api/tasks/{taskId}/run")
    execution = spans.named("run command")
    assert (request.kind, parent_of(request)) == (SpanKind.SERVER, TRACEPARENT)
    assert (execution.kind, parent_of(execution)) == (SpanKind.CONSUMER, traceparent_of(request))
    assert attributes_of(request) == {
        "http.request.method": "POST",
        "http.route": "/api/tasks/{taskId}/run",
        "http.response.status_code": 202,
        "task_service.request_id": run.headers["x-request-id"],
        "client.address": "127.0.0.1",
        "user.id": task["owner_id"],
        "task_service.key_id": run.json()["requested_by"]["credential"]["key_id"],
    }
    assert attributes_of(execution) == {
        "task_service.run.id": run.json()["id"],
        "task_service.run.attempt": 1,
        "task_service.run.handler": "command",
        "task_service.run.state": "succeeded",
    }
    assert request.status.status_code is StatusCode.UNSET
    assert execution.status.status_code is StatusCode.UNSET


async def test_a_request_without_a_trace_begins_one_that_its_log_line_names(
    traced: Service, spans: Spans, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, ACCESS_LOGGER):
        await traced.caller().get("/api/auth/me")
    (line,) = (vars(record) for record in caplog.records if record.name == ACCESS_LOGGER)
    span = spans.named("GET /api/auth/me")
    assert parent_of(span) is None
    assert line["trace_id"] == traceparent_of(span)[3:35]


async def test_no_secret_of_a_client_is_in_a_span(traced: Service, spans: Spans) -> None:
    key = KeyFormat().generate().reveal()
    await traced.caller().get(
        f"/{key}?api_key={key}", headers={"user-agent": key, "x-api-key": key}
    )
    await traced.caller().request(key[:8], "/api/tasks")
    assert [span.name for span in spans.all()] == ["GET unmatched", "other /api/tasks"]
    for span in spans.all():
        assert key[:8] not in span.to_json()


async def test_what_a_monitor_asks_has_no_span(traced: Service, spans: Spans) -> None:
    for path in ("/healthz", "/readyz", "/metrics"):
        assert (await traced.caller().get(path)).status_code == 200
    assert spans.all() == ()


@pytest.mark.parametrize(
    ("status", "expected"),
    [(200, StatusCode.UNSET), (499, StatusCode.UNSET), (500, StatusCode.ERROR)],
)
def test_the_span_of_a_request_that_failed_says_so(
    spans: Spans, status: int, expected: StatusCode
) -> None:
    record = RequestRecord("req_1", None)
    fields = dict.fromkeys(("address", "user_id", "key_id"))
    span = spans.tracing.begin_request(record, "GET")
    spans.tracing.end_request(
        span, {**fields, "request_id": "req_1", "method": "GET", "route": "/x", "status": status}
    )
    assert spans.named("GET /x").status.status_code is expected


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("succeeded", StatusCode.UNSET),
        ("cancelled", StatusCode.UNSET),
        ("failed", StatusCode.ERROR),
        ("timed_out", StatusCode.ERROR),
        (None, StatusCode.UNSET),
    ],
)
def test_the_span_of_a_run_has_its_outcome(
    spans: Spans, state: str | None, expected: StatusCode
) -> None:
    # A run of an older version is part of no request that is known.
    span = spans.tracing.begin_run(None, run_id="run_1", attempt=2, handler="h")
    spans.tracing.end_run(span, state)
    found = spans.named("run h")
    assert (parent_of(found), found.status.status_code) == (None, expected)
    assert attributes_of(found).get("task_service.run.state") == state


def test_a_trace_that_is_not_recorded_goes_on_as_one(spans: Spans) -> None:
    request = RequestRecord("req_1", None, traceparent=TRACEPARENT[:-1] + "0")
    spans.tracing.begin_request(request, "GET").end()
    assert spans.all() == ()
    assert request.traceparent is not None
    assert request.traceparent.startswith(f"00-{TRACE_ID}-")
    assert request.traceparent.endswith("-00")


def test_a_provider_that_is_switched_off_leaves_the_trace_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    tracing = Spans().tracing
    for given in (TRACEPARENT, None):
        record = RequestRecord("req_1", None, traceparent=given)
        tracing.begin_request(record, "GET").end()
        assert record.traceparent == given


# Export


@contextmanager
def collector(*, silent: threading.Event | None = None) -> Iterator[list[bytes]]:
    """A collector on this machine; yields the bodies that it got. A silent one answers nothing until the event."""
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            is_gzip = self.headers.get("content-encoding") == "gzip"
            bodies.append(gzip.decompress(body) if is_gzip else body)
            if silent is not None:
                silent.wait(60)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        with pytest.MonkeyPatch.context() as patch:
            url = f"http://127.0.0.1:{server.server_address[1]}"
            patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
            yield bodies
        if silent is not None:
            silent.set()
        server.shutdown()
        serving.join()


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({}, "task-service"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=theirs"}, "theirs"),
    ],
)
async def test_spans_are_exported_when_the_process_ends(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], name: str
) -> None:
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    with collector() as bodies:
        tracing = Tracing.to_collector()
        tracing.begin_request(RequestRecord("req_1", None), "GET").end()
        await tracing.close()
    (body,) = bodies
    (exported,) = ExportTraceServiceRequest.FromString(body).resource_spans
    resource = {each.key: each.value.string_value for each in exported.resource.attributes}
    assert resource["service.name"] == name
    assert [span.name for span in exported.scope_spans[0].spans] == ["GET"]


async def test_a_collector_that_does_not_answer_does_not_keep_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tracing_module, "CLOSE_SECONDS", 0.1)
    answer = threading.Event()
    with collector(silent=answer):
        tracing = Tracing.to_collector()
        tracing.begin_request(RequestRecord("req_1", None), "GET").end()
        async with asyncio.timeout(60):
            await tracing.close()
        assert not answer.is_set()


async def test_a_worker_exports_its_last_spans(
    tmp_path: Path, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tracing, "to_collector", lambda: spans.tracing)
    settings = Settings(data_dir=tmp_path, tracing="otlp")
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    working = asyncio.create_task(cli._work(settings, timedelta(0)))
    while signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(60):
        await working
    for number, handler in before.items():
        signal.signal(number, handler)
    # What comes later is not exported any more.
    spans.tracing.begin_request(RequestRecord("req_1", None), "GET").end()
    assert spans.all() == ()


# Off


async def test_fastapi_records_nothing_by_itself_where_the_process_has_a_provider(
    template: Path, tmp_path: Path, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its spans have whole URLs, and its log records have the messages of errors."""
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: spans.provider)
    async with running_service(template, tmp_path / "data") as service:
        expect(await service.caller().get("/healthz?api_key=secret"), 200)
    assert spans.all() == ()


def test_without_its_packages_the_setting_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(data_dir=tmp_path, tracing="otlp")
    monkeypatch.setitem(sys.modules, "task_service.tracing", None)
    with pytest.raises(ConfigurationError, match=r"task-service\[opentelemetry\]"):
        tracing_of(settings)
