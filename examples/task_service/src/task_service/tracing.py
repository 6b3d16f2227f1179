"""Spans of requests and runs, for a collector of OpenTelemetry. Imported only where `TASK_SERVICE_TRACING` asks for it.

The span of a request has the fields of its log line: ids, a route's template, an address, a status. Paths, queries, headers
and messages of errors stay out of it, because clients put keys there by mistake. Its trace is that of the `traceparent` that
the client sent, or a new one. The run that a request starts is a child of the request's span, in whichever process it is
executed, because the request's record carries the `traceparent` of the span.
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
"""How long the end of the process may wait for a collector that does not answer."""

# The fields of the log line of a request, by the names of OpenTelemetry's semantic conventions where they have one.
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
        provider: Records and exports them. It is this object's alone: no code that asks for OpenTelemetry's global
            provider, such as FastAPI's, finds it.
    """

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("task_service", version("task-service"))

    @classmethod
    def to_collector(cls) -> Tracing:
        """Spans go to the collector that the environment variables `OTEL_EXPORTER_OTLP_…` name."""
        named = {"service.name": "task-service", "service.version": version("task-service")}
        provider = TracerProvider(
            # What the operator states in OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES goes before.
            resource=Resource.create(named).merge(OTELResourceDetector().detect()),
            shutdown_on_exit=False,
        )
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        return cls(provider)

    def begin_request(self, record: RequestRecord, method: str) -> Span:
        """Begin the span of a request, as which its log lines, its runs and what they call see it from now on.

        Args:
            record: The request; its `traceparent` becomes that of the span.
            method: The request's.
        """
        return self._begin(record, method, SpanKind.SERVER, {})

    def end_request(self, span: Span, fields: Mapping[str, Any]) -> None:
        """End the span of a request.

        Args:
            span: What :meth:`begin_request` returned.
            fields: Those of the request's log line.
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
        """Begin the span of a run, as which its log lines and what its handler calls see it from now on.

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
            span: What :meth:`begin_run` returned.
            state: The run's final state; None if this process did not end it.
        """
        if state is not None:
            span.set_attribute("task_service.run.state", state)
        if state in {"failed", "timed_out"}:
            span.set_status(StatusCode.ERROR)
        span.end()

    async def close(self) -> None:
        """Export the spans that have ended, for :data:`CLOSE_SECONDS` at most."""
        # A thread of its own: the loop's executor would wait for it without a limit.
        closing = Thread(target=self._provider.shutdown, name="end of tracing", daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, CLOSE_SECONDS)

    def _begin(
        self, record: RequestRecord | None, name: str, kind: SpanKind, attributes: dict[str, Any]
    ) -> Span:
        # An empty context: the span of a program that started this process, or calls it, is no parent.
        parent = Context()
        if record is not None and record.traceparent is not None:
            parent = _TRACE_CONTEXT.extract({"traceparent": record.traceparent}, parent)
        span: Span = self._tracer.start_span(name, context=parent, kind=kind, attributes=attributes)
        if record is not None:
            carrier = {"traceparent": record.traceparent}
            _TRACE_CONTEXT.inject(carrier, set_span_in_context(span, parent))
            record.traceparent = carrier["traceparent"]
        return span
