"""The table of figures is what Prometheus, OpenTelemetry and a sidecar show. Each event feeds what its class says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any, get_args

import pytest
from opentelemetry.metrics import NoOpMeter, NoOpMeterProvider
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from fastdedup import Dedup, events
from fastdedup.core.figures import FEEDS, FIGURES
from fastdedup.declarations import Figure
from fastdedup.integrations.metrics.otel import name_of, text_of
from fastdedup.integrations.metrics.watched import CONSUMERS, INBOXES
from fastdedup.integrations.opentelemetry import instrument
from fastdedup.integrations.prometheus import watch
from fastdedup.messages.decisions import Counts, Reason
from fastdedup.sidecar.counters import Counters
from fastdedup.sidecar.namespaces import Namespaces
from fastdedup.sidecar.service.config import Config
from fastdedup.sidecar.service.metrics import OWN
from fastdedup.sidecar.service.run import make_namespaces
from fastdedup.sql import Inbox

from ..otel import Otel


class Consumer:
    name = "orders"
    counts = Counts()
    is_running = False


def sidecar() -> Namespaces:
    return make_namespaces(Config(url="memory://"), Counters(), lambda event: None)


def rows(figures: Iterable[Figure]) -> list[tuple[str, str, str]]:
    """The name, the type and the text of each figure that Prometheus shows."""
    return [(f"fastdedup_{row.name}", row.kind, row.text) for row in figures if row.name]


def test_prometheus_shows_the_table() -> None:
    registry, table = CollectorRegistry(), (*FIGURES, *CONSUMERS, *INBOXES)
    watch(Dedup("memory://"), Inbox("billing", keep=60.0), Consumer(), registry=registry)
    shown = [*registry.collect()]
    assert [(each.name, each.type, each.documentation) for each in shown] == rows(table)
    assert [each._labelnames for each in shown] == [row.labels for row in table if row.name]


def test_a_sidecar_shows_the_table_and_its_own() -> None:
    shown = [*text_string_to_metric_families(sidecar().render_metrics().decode())]
    ours = [each for each in shown if each.name.startswith("fastdedup_")]
    assert [(each.name, each.type, each.documentation) for each in ours] == rows((*FIGURES, *OWN))
    labels = {row.name: {*row.labels} for row in (*FIGURES, *OWN)}
    for each in ours:
        for sample in each.samples:
            assert sample.labels.keys() - {"le"} == labels[each.name.removeprefix("fastdedup_")]


def test_opentelemetry_shows_the_table() -> None:
    made = []

    class Meters(NoOpMeterProvider):
        def get_meter(self, *given: Any, **options: Any) -> Any:
            return Meter("test")

    class Meter(NoOpMeter):
        def create_observable_counter(self, name: str, *given: Any, **options: Any) -> None:
            made.append((name, options["unit"], options["description"], "counter"))

        def create_observable_gauge(self, name: str, *given: Any, **options: Any) -> None:
            made.append((name, options["unit"], options["description"], "gauge"))

        def create_histogram(self, name: str, *given: Any, **options: Any) -> None:
            made.append((name, options["unit"], options["description"], "histogram"))

    instrument(Dedup("memory://"), meter_provider=Meters(), histograms=True)
    table = [row for row in (*FIGURES, *CONSUMERS, *INBOXES) if name_of(row)]
    assert set(made) == {(name_of(row), row.unit, text_of(row), row.kind) for row in table}
    assert len(made) == len(table)


EXAMPLES = {"str": "text", "int": 5, "float": 0.5, "bool": True}


def example(kind: type) -> Any:
    """An event of this kind, whose texts are the names of their fields."""
    kinds = {each.name: str(each.type).partition(" ")[0] for each in fields(kind)}
    return kind(**{name: name if each == "str" else EXAMPLES[each] for name, each in kinds.items()})


def shown(families: Iterable[Any]) -> dict[tuple[str, frozenset[Any]], float]:
    """What Prometheus shows of the figures that events feed: all values that are not 0."""
    fed = {f"fastdedup_{figure.name}" for figure, _ in FEEDS.values()}
    return {
        (each.name, frozenset(sample.labels.items())): sample.value
        for each in families
        for sample in each.samples
        if each.name in fed and sample.value and not sample.name.endswith(("_bucket", "_sum", "_created"))
    }


@pytest.mark.parametrize("kind", get_args(events.Event), ids=events.name_of)
def test_an_event_feeds_its_figure_and_no_other_on_each_face(kind: Any) -> None:
    registry, otel, namespaces, event = CollectorRegistry(), Otel(), sidecar(), example(kind)
    dedup = otel.instrument(Dedup("memory://", namespace="shop"), histograms=True)
    watch(dedup, registry=registry)
    namespaces.dedup("namespace")
    for gate in (dedup, namespaces.root):
        gate.gate.connection.report(event)
    figure, amount = FEEDS.get(kind, (Figure("", ""), 0))
    labels = {name: "yes" if getattr(event, name) is True else name for name in figure.labels}
    number = getattr(event, amount) if isinstance(amount, str) else amount
    number = 1 if figure.kind == "histogram" else number
    expected = {(f"fastdedup_{figure.name}", frozenset(labels.items())): number} if number else {}
    assert shown(registry.collect()) == expected
    assert shown(text_string_to_metric_families(namespaces.render_metrics().decode())) == expected
    points = [(name_of(row), point) for row, _ in FEEDS.values() for point in otel.points(name_of(row))]
    assert {
        (name, frozenset(point.attributes.items())): value
        for name, point in points
        if (value := getattr(point, "count", None) or point.value)
    } == {
        (name_of(figure), frozenset((f"fastdedup.{label}", text) for label, text in labels)): value
        for (_, labels), value in expected.items()
    }


def test_a_consumer_is_paused_until_it_resumes() -> None:
    counters = Counters()
    for event, value in (
        (events.ConsumerPaused("orders", "down"), 1),
        (events.ConsumerPaused("orders", "down"), 1),
        (events.ConsumerResumed("orders", 1.0), 0),
    ):
        counters.on_event(event)
        assert counters.counted[events.ConsumerPaused.figure] == {("orders",): value}


def test_the_reasons_of_dead_letters_that_stand_at_0_are_all() -> None:
    reasons = (Reason.FAILED, Reason.EXHAUSTED, Reason.MISMATCH, Reason.NO_KEY)
    assert events.DeadLettered.figure.values["reason"] == reasons
