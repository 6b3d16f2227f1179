"""Spans of requests and runs, for a collector of OpenTelemetry. Imported only with `TASK_SERVICE_TRACING`.

The span of a request has the fields of its log line: ids, a route's template, an address, a status. Paths, queries, headers
and messages of errors are left out, because clients put keys there by mistake. Its trace is the client's
`traceparent`, or a new trace. The run of a request is a child of the request's span in any process, because the request's
record has the `traceparent` of the span.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from importlib.metadata import version
from threading import Thread
from typing import Any, Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from .request_record import RequestRecord

CLOSE_SECONDS: Final = 5.0
"""The time that the end of the process may wait for a collector that does not answer."""

# The fields of a request's log line, with the names of OpenTelemetry's semantic conventions, if they have one.
_ATTRIBUTES: Final = {
    "request_id": "task_service.request_id",
    "method": "http.request.method",
    "route": "http.route",
    "status": "http.response.status_code",
    "address": "client.address",
    "user_id": "user.id",
    "key_id": "task_service.key_id",
}
_TRACE_CONTEXT: Final = TraceContextTextMapPropagator()


class Tracing:
    """Begins and ends the spans of this process.

    Args:
        provider: Records and exports the spans. It is not OpenTelemetry's global provider, which other code, such as
            FastAPI's, would use.
    """

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("task_service", version("task-service"))

    @classmethod
    def to_collector(cls) -> Tracing:
        """Exports to the collector of the environment variables `OTEL_EXPORTER_OTLP_…`."""
        named = {"service.name": "task-service", "service.version": version("task-service")}
        provider = TracerProvider(
            # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES of the operator take precedence.
            resource=Resource.create(named).merge(OTELResourceDetector().detect()),
            shutdown_on_exit=False,
        )
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        return cls(provider)

    def begin_request(self, record: RequestRecord, method: str) -> Span:
        """Begin the span of a request; its log lines, its runs and their calls belong to this span.

        Args:
            record: The request; its `traceparent` becomes that of the span.
            method: The request's method.
        """
        return self._begin(record, method, SpanKind.SERVER, {})

    def end_request(self, span: Span, fields: Mapping[str, Any]) -> None:
        """End the span of a request.

        Args:
            span: The result of :meth:`begin_request`.
            fields: The fields of the request's log line.
        """
        span.update_name(f"{fields['method']} {fields['route']}")
        for name, attribute in _ATTRIBUTES.items():
            if fields[name] is not None:
                span.set_attribute(attribute, fields[name])
        if fields["status"] >= 500:
            span.set_status(StatusCode.ERROR)
        span.end()

    def begin_run(
        self, request: RequestRecord | None, *, run_id: str, attempt: int, handler: str
    ) -> Span:
        """Begin the span of a run; its log lines and its handler's calls belong to this span.

        Args:
            request: The request that started the run, if it is known; its `traceparent` becomes that of the span.
            run_id: The run's id.
            attempt: The number of the attempt.
            handler: The name of its handler.
        """
        attributes = {
            "task_service.run.id": run_id,
            "task_service.run.attempt": attempt,
            "task_service.run.handler": handler,
        }
        return self._begin(request, f"run {handler}", SpanKind.CONSUMER, attributes)

    def end_run(self, span: Span, state: str | None) -> None:
        """End the span of a run.

        Args:
            span: The result of :meth:`begin_run`.
            state: The run's final state; None if this process did not end it.
        """
        if state is not None:
            span.set_attribute("task_service.run.state", state)
        if state in {"failed", "timed_out"}:
            span.set_status(StatusCode.ERROR)
        span.end()

    async def close(self) -> None:
        """Export the ended spans, for at most :data:`CLOSE_SECONDS`."""
        # Its own thread: the loop's executor would wait without a limit.
        closing = Thread(target=self._provider.shutdown, name="end of tracing", daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, CLOSE_SECONDS)

    def _begin(
        self, record: RequestRecord | None, name: str, kind: SpanKind, attributes: dict[str, Any]
    ) -> Span:
        # An empty context: a span of the program that started this process is no parent.
        parent = Context()
        if record is not None and record.traceparent is not None:
            parent = _TRACE_CONTEXT.extract({"traceparent": record.traceparent}, parent)
        span: Span = self._tracer.start_span(name, context=parent, kind=kind, attributes=attributes)
        if record is not None:
            carrier = {"traceparent": record.traceparent}
            _TRACE_CONTEXT.inject(carrier, set_span_in_context(span, parent))
            record.traceparent = carrier["traceparent"]
        return span
