"""docs/watching.md: its Python runs, and its names of metrics are those that a program and a sidecar show."""

from __future__ import annotations

import re

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client import REGISTRY, CollectorRegistry

from fastdedup import Dedup
from fastdedup.gate.counters import MAX_NAMESPACES, OTHERS
from fastdedup.gate.incidents import AT_ONCE, WINDOW
from fastdedup.integrations.prometheus import watch
from fastdedup.messages.decisions import Counts
from fastdedup.sql import Inbox

from ..sql_pages.pages import Page

PAGE = Page("watching.md")


async def test_prometheus_is_told_as_the_page_says(redis_url: str) -> None:
    (block,) = PAGE.blocks("Prometheus", "python")
    names = PAGE.run(block.replace("redis://localhost:6379/0", redis_url))
    try:
        async with names["dedup"] as dedup, dedup.claim("a"):
            pass
        labels = {"namespace": "shop", "verb": "claim", "outcome": "acquired"}
        assert REGISTRY.get_sample_value("fastdedup_operations_total", labels) == 1
    finally:
        REGISTRY.unregister(watch())


async def test_spans_are_made_as_the_page_says(redis_url: str) -> None:
    (block,) = PAGE.blocks("OpenTelemetry", "python")
    names = PAGE.run(block.replace("redis://localhost:6379/0", redis_url))
    async with names["dedup"] as dedup:
        with trace.use_span(TracerProvider().get_tracer("test").start_span("request")):
            await names["place"]("7")
        assert (await dedup.claim("order:7")).result == {"order": "7"}


def test_the_page_names_each_metric_and_its_labels() -> None:
    told = {
        name: tuple(re.findall(r"\w+", labels))
        for names, labels in re.findall(r"^\| (`fastdedup_[^|]+)\|([^|]*)\|", PAGE.text, re.MULTILINE)
        for name in re.findall(r"fastdedup_\w+", names)
    }

    class Consumer:
        _name = "orders"
        counts = Counts()

    registry = CollectorRegistry()
    dedup, inbox = Dedup("memory://"), Inbox("billing", keep=60.0)
    watch(dedup, inbox, Consumer(), registry=registry)
    shown = {
        f"{each.name}_total" if each.type == "counter" else each.name: each._labelnames
        for each in registry.collect()
    }
    assert told == shown


def test_the_figures_on_the_page_are_the_codes() -> None:
    text = PAGE.text
    assert (AT_ONCE, WINDOW) == (5, 60.0)
    assert "five times a minute at most" in text
    assert f"first {MAX_NAMESPACES:,} namespaces" in text
    assert f"`{OTHERS}`" in text
