"""OpenTelemetry's own SDK in memory, as a program has it."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from fastdedup.integrations.opentelemetry import instrument


class Otel:
    """A program's SDK: its tracer, and what it has exported."""

    def __init__(self, **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(**options)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider(metric_readers=[self.reader])
        self.tracer = self.provider.get_tracer("test")

    def instrument(self, dedup: Any, *messages: Any, **options: Any) -> Any:
        instrument(dedup, *messages, tracer_provider=self.provider, meter_provider=self.meters, **options)
        return dedup

    def spans(self) -> dict[str, ReadableSpan]:
        """The spans by their names."""
        return {span.name: span for span in self.exporter.get_finished_spans()}

    def finished(self) -> list[ReadableSpan]:
        """All spans, in the order in which they ended."""
        return list(self.exporter.get_finished_spans())

    def names(self) -> list[str]:
        return [span.name for span in self.exporter.get_finished_spans()]

    def points(self, name: str) -> list[Any]:
        data = self.reader.get_metrics_data()
        return [
            point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]


def values(points: list[Any], *labels: str) -> dict[Any, Any]:
    """The values of points that are not 0, by their attributes."""
    return {
        tuple(point.attributes[f"fastdedup.{label}"] for label in labels): point.value
        for point in points
        if point.value
    }


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def links(span: ReadableSpan) -> list[tuple[int, int, Any]]:
    """The links of a span: the ids of trace and span, and what the link leads to."""
    return [
        (link.context.trace_id, link.context.span_id, (link.attributes or {}).get("fastdedup.link"))
        for link in span.links
    ]


def origin(span: ReadableSpan, relation: str) -> tuple[int, int, str]:
    """What a link to a span is."""
    return span.context.trace_id, span.context.span_id, relation
