"""The table of figures is what Prometheus, OpenTelemetry and a sidecar show. Each event feeds what its class says."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args

import pytest
from opentelemetry.metrics import NoOpMeter, NoOpMeterProvider
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from fastdedup import Dedup, events
from fastdedup.core.figures import FIGURES
from fastdedup.declarations import Figure
from fastdedup.integrations.opentelemetry import instrument
from fastdedup.integrations.otel_metrics import name_of, text_of
from fastdedup.integrations.prometheus import watch
from fastdedup.integrations.watched import CONSUMERS, INBOXES
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


SHOP, ORDERS = {"namespace": "shop"}, {"consumer": "orders"}
FED: list[tuple[events.Event, str, dict[str, str], float]] = [
    (
        events.Degraded("shop", "claim", True, "down"),
        "degraded",
        {**SHOP, "verb": "claim", "answered": "yes"},
        1,
    ),
    (
        events.Degraded("shop", "claim", False, "down"),
        "degraded",
        {**SHOP, "verb": "claim", "answered": "no"},
        1,
    ),
    (events.LeaseLost("shop", "k", "a", 1), "leases_lost", {}, 1),
    (events.BreakerOpened("redis", "down"), "breaker_opened", {}, 1),
    (events.PrimaryRestarted("redis"), "primary_restarts", {}, 1),
    (events.PrimarySwitched("redis"), "primary_switches", {}, 1),
    (events.ClockSkew("redis", -10.0), "clock_skews", {}, 1),
    (events.Shortfall("shop", "claim", "k", 1), "shortfalls", SHOP, 1),
    (events.Conflict("shop", "k", "a", "b", "ours"), "reconcile_conflicts", {"kept": "ours"}, 1),
    (events.Unreplayed("shop", "k", "a", "closed"), "unreplayed", {}, 1),
    (events.Replayed(5, 1), "reconciled", {}, 5),
    (events.UndoOverflow("shop", "k"), "undo_overflows", {}, 1),
    (events.GateBypassed("shop", "billing", "down"), "gate_bypassed", {**SHOP, "inbox": "billing"}, 1),
    (events.ConsumerPaused("orders", "down"), "consumer_paused", ORDERS, 1),
    (events.ConsumerResumed("orders", 1.0), "consumer_paused", ORDERS, 0),
    (events.DeadLettered("orders", "k", "failed", 5, "E"), "dead_letters", {**ORDERS, "reason": "failed"}, 1),
]
FEED_NOTHING: list[events.Event] = [
    events.BatchedBySlot("redis", "why"),
    events.BreakerClosed("redis", 1.0),
    events.ConsumerEnded("orders", "down"),
    events.KeyForgotten("shop", "claim", "k", True, "me", ""),
    events.LedgerFilling("shop", "clicks", 0.9),
    events.RecordsListed("shop", "", 3, "me", ""),
]


def of_prometheus(families: Iterable[Any], names: set[str]) -> dict[tuple[str, frozenset[Any]], float]:
    """The values that are not 0 of these figures."""
    return {
        (each.name.removeprefix("fastdedup_"), frozenset(sample.labels.items())): sample.value
        for each in families
        for sample in each.samples
        if each.name.removeprefix("fastdedup_") in names and sample.value
    }


@pytest.mark.parametrize(("event", "name", "labels", "value"), FED, ids=[repr(each) for each, *_ in FED])
def test_an_event_feeds_one_figure_on_each_face(
    event: events.Event, name: str, labels: dict[str, str], value: float
) -> None:
    registry, otel, namespaces = CollectorRegistry(), Otel(), sidecar()
    dedup = otel.instrument(Dedup("memory://", namespace="shop"))
    watch(dedup, registry=registry)
    namespaces.dedup("shop")
    for gate in (dedup, namespaces.root):
        if isinstance(event, events.ConsumerResumed):
            gate.gate.connection.report(events.ConsumerPaused(event.consumer, "down"))
        gate.gate.connection.report(event)
    fed = {each.figure.name: each.figure for each in map(type, (row[0] for row in FED))}
    expected = {(name, frozenset(labels.items())): float(value)} if value else {}
    assert of_prometheus(registry.collect(), {*fed}) == expected
    text = namespaces.render_metrics().decode()
    assert of_prometheus(text_string_to_metric_families(text), {*fed}) == expected
    points = {row: otel.points(name_of(row)) for row in fed.values()}
    shown = {
        (row.name, frozenset(point.attributes.items())): float(point.value)
        for row, each in points.items()
        for point in each
        if point.value
    }
    assert shown == {
        (name, frozenset((f"fastdedup.{label}", text) for label, text in labels)): number
        for (name, labels), number in expected.items()
    }


def test_every_event_is_tried() -> None:
    assert {type(event) for event, *_ in FED} | {*map(type, FEED_NOTHING)} == {*get_args(events.Event)}
    assert not [each for each in FEED_NOTHING if hasattr(each, "figure")]
    assert events.DeadLettered.figure.values["reason"] == (
        Reason.FAILED,
        Reason.EXHAUSTED,
        Reason.MISMATCH,
        Reason.NO_KEY,
    )
