"""docs/watching.md: its Python runs, its metrics are those of a program and a sidecar, and its alert fires."""

from __future__ import annotations

import asyncio
import json
import re

import fastapi
import httpx
import pytest
import yaml
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from fastdedup import Claim, ClaimLostError, Dedup, UnavailableError
from fastdedup.core.counters import MAX_NAMESPACES, OTHERS
from fastdedup.core.figures import FIGURES
from fastdedup.core.incidents import AT_ONCE, WINDOW
from fastdedup.integrations.fastapi import Claimed, Idempotency, everyone
from fastdedup.integrations.metrics.otel import name_of
from fastdedup.integrations.metrics.watched import CONSUMERS, INBOXES
from fastdedup.integrations.opentelemetry import instrument
from fastdedup.integrations.prometheus import watch
from fastdedup.messages.decisions import Counts
from fastdedup.sidecar.service.deploy import printed
from fastdedup.testing import FakeStore

from ..sql_pages.pages import Page

PAGE = Page("watching.md")
AT_ZERO = [
    "FastdedupConflicts",
    "FastdedupLeasesLost",
    "FastdedupDeadLetters",
    "FastdedupStoreUnavailable",
    "FastdedupConsumerPaused",
]
"""Rules whose figures exist before anything has happened."""
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
    assert told == {
        f"fastdedup_{row.name}{'_total' * (row.kind == 'counter')}": row.labels
        for row in (*FIGURES, *CONSUMERS, *INBOXES)
        if row.name
    }


def test_the_page_names_each_metric_of_opentelemetry() -> None:
    text = PAGE.text.partition("| metric | attributes ")[2]
    cells = re.findall(r"^\| (`(?:fastdedup|db)\.[^|]+)\|", text, re.MULTILINE)
    told = {name for cell in cells for name in re.findall(r"`([\w.]+)`", cell)}
    assert told == {name_of(row) for row in (*FIGURES, *CONSUMERS, *INBOXES)} - {""}


def test_the_figures_on_the_page_are_the_codes() -> None:
    text = PAGE.text
    assert (AT_ONCE, WINDOW) == (5, 60.0)
    assert "five times a minute at most" in text
    assert f"first {MAX_NAMESPACES:,} namespaces" in text
    assert f"`{OTHERS}`" in text


async def figures_of_a_refused_claim() -> str:
    store, registry = FakeStore(), CollectorRegistry()
    dedup = Dedup(store, namespace="shop")

    class Consumer:
        name = "orders"
        counts = Counts()
        is_running = False

    watch(dedup, Consumer(), registry=registry)
    async with dedup:
        with store.outage("refused"), pytest.raises(UnavailableError):
            await dedup.claim("order:42")
        await dedup.claim("order:43", wait=1.0)
    return generate_latest(registry).decode()


async def test_its_alert_counts_a_refused_claim() -> None:
    ((block,), figures) = PAGE.blocks("Prometheus", "yaml"), await figures_of_a_refused_claim()
    rule, ended = yaml.safe_load(block)
    printed_rules = {
        each.get("alert"): each for each in yaml.safe_load(printed("prometheus"))["groups"][0]["rules"]
    }
    assert {rule["alert"], ended["alert"]} <= printed_rules.keys()
    for each in (ended, *(printed_rules[name] for name in AT_ZERO)):  # before anything has happened
        assert re.search(rf"^{METRIC.findall(each['expr'])[0]}\b.* 0.0$", figures, re.MULTILINE), each
    ((metric, inner),) = re.findall(r"rate\((\w+)\{(.*)\}\[5m\]\)", rule["expr"])
    asked = dict(re.findall(r'(\w+)="(\w+)"', inner))
    samples = [each for family in text_string_to_metric_families(figures) for each in family.samples]
    fitting = [each for each in samples if each.name == metric and asked.items() <= each.labels.items()]
    told = {(each.labels["namespace"], each.labels["verb"]): each.value for each in fitting}
    assert told == {
        ("shop", verb): float(verb == "claim") for verb in ("claim", "complete", "lock", "redeem", "consume")
    }


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


@pytest.mark.skipif(not hasattr(fastapi, "telemetry"), reason="this FastAPI makes no spans")
async def test_fastapi_s_own_spans_are_as_the_page_says(redis_url: str) -> None:
    """Scrapes have no span. A replayed duplicate's dependencies look like an error; its request does not."""
    (block,) = PAGE.blocks("A provider, and FastAPI's own spans", "python")
    names = PAGE.run(block.replace("ConsoleSpanExporter()", "spans"), spans=(spans := InMemorySpanExporter()))
    app, dedup = names["app"], Dedup(redis_url, namespace="shop")
    instrument(dedup, tracer_provider=names["provider"])
    Idempotency(app, dedup)
    claimed = Claimed(principal=everyone, required=True)

    @app.post("/orders")
    async def order(claim: Claim = claimed) -> str:
        return "placed"

    @app.get("/metrics/")
    async def metrics() -> str:
        return "figures"

    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop")
    async with dedup, client:
        await client.get("/metrics/")
        for _ in range(2):
            assert (await client.post("/orders", headers={"idempotency-key": "k"})).is_success
            names["provider"].force_flush()
            made = {each.name: each for each in spans.get_finished_spans()}
            spans.clear()
            assert "work shop:http" not in made
            assert made["POST /orders"].status.is_unset
    names["provider"].shutdown()
    shown = made["fastapi.dependencies"]
    assert (shown.status.status_code, shown.attributes["error.type"]) == (
        StatusCode.ERROR,
        "fastdedup.integrations.fastapi._Answered",
    )


@pytest.mark.parametrize(
    ("renew", "failed"),
    [
        (True, {"work shop": "CancelledError"}),
        (False, {"complete shop": "ClaimLostError"}),
    ],
)
async def test_a_lost_lease_is_in_the_trace_as_the_page_says(renew: bool, failed: dict[str, str]) -> None:
    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    dedup = Dedup("memory://", namespace="shop", lease=0.1)
    instrument(dedup, tracer_provider=provider, roots=True)

    async def work() -> None:
        async with dedup.claim("a", renew=renew):
            await dedup.forget("a")
            if renew:
                await asyncio.Event().wait()

    async with dedup:
        with pytest.raises(ClaimLostError):
            await work()
    shown = {
        each.name: each.attributes["error.type"]
        for each in spans.get_finished_spans()
        if not each.status.is_unset and each.attributes
    }
    assert shown == failed
