"""docs/watching.md: its Python runs, its metrics are those of a program and a sidecar, and its alert fires."""

from __future__ import annotations

import json
import re

import pytest
import yaml
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from fastdedup import Dedup, UnavailableError
from fastdedup.gate.counters import MAX_NAMESPACES, OTHERS
from fastdedup.gate.incidents import AT_ONCE, WINDOW
from fastdedup.integrations.prometheus import watch
from fastdedup.messages.decisions import Counts
from fastdedup.sidecar.service.deploy import printed
from fastdedup.sql import Inbox
from fastdedup.testing import FakeStore

from ..sql_pages.pages import Page

PAGE = Page("watching.md")
METRIC = re.compile(r"\bfastdedup_[a-z_]+\b")


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


async def figures_of_a_refused_claim() -> str:
    store, registry = FakeStore(), CollectorRegistry()
    dedup = Dedup(store, namespace="shop")
    watch(dedup, registry=registry)
    async with dedup:
        with store.outage("refused"), pytest.raises(UnavailableError):
            await dedup.claim("order:42")
        await dedup.claim("order:43", wait=1.0)
    return generate_latest(registry).decode()


async def test_its_alert_counts_a_refused_claim() -> None:
    ((block,), figures) = PAGE.blocks("Prometheus", "yaml"), await figures_of_a_refused_claim()
    (rule,) = yaml.safe_load(block)
    ((metric, inner),) = re.findall(r"rate\((\w+)\{(.*)\}\[5m\]\)", rule["expr"])
    asked = dict(re.findall(r'(\w+)="(\w+)"', inner))
    samples = [each for family in text_string_to_metric_families(figures) for each in family.samples]
    fitting = [each for each in samples if each.name == metric and asked.items() <= each.labels.items()]
    assert [(each.labels["namespace"], each.value) for each in fitting] == [("shop", 1.0)]


async def test_a_program_leaves_those_panels_empty_that_the_page_names() -> None:
    figures = await figures_of_a_refused_claim()
    has = set(re.findall(r"^# TYPE (\w+) ", figures, re.MULTILINE))
    lacking: dict[str, bool] = {}
    for panel in json.loads(printed("grafana"))["panels"]:
        asked = [name for target in panel["targets"] for name in METRIC.findall(target["expr"])]
        lacks = [name for name in asked if not {name, re.sub("_(bucket|sum|count)$", "", name)} & has]
        if lacks:
            lacking[panel["title"]] = len(lacks) == len(asked)
    assert lacking == {"Sidecars": True, "Connections": True, "Events": False}
    for title in lacking:
        assert f'"{title}"' in PAGE.text
