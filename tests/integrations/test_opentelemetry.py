"""Spans from claim over work to settling, and metrics, by OpenTelemetry's own SDK in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from fastdedup import ClaimLostError, ConfigError, Dedup, UnavailableError, UsageError
from fastdedup.integrations import opentelemetry as integration
from fastdedup.integrations.opentelemetry import current_context, server_of
from fastdedup.sync import Dedup as SyncDedup

from ..otel import Otel, attributes
from ..servers import RedisServer, free_port


@pytest.fixture
def otel() -> Iterator[Otel]:
    otel = Otel()
    yield otel
    otel.provider.shutdown()
    otel.meters.shutdown()


async def test_claim_work_and_settling_are_spans_of_the_trace(
    redis_url: str, redis_server: RedisServer, otel: Otel
) -> None:
    dedup = otel.instrument(Dedup(redis_url, namespace="shop"))
    async with dedup:
        with otel.tracer.start_as_current_span("request") as request:
            async with dedup.claim("order:7") as claim:
                with otel.tracer.start_as_current_span("charge"):
                    pass
                await claim.complete({"id": 1})
            assert trace.get_current_span() is request, "the work's span is current no more"
            await dedup.claim("order:7")
    assert otel.names() == ["claim shop", "charge", "complete shop", "work shop", "claim shop", "request"]
    first, work, settled = (
        otel.exporter.get_finished_spans()[0],
        otel.spans()["work shop"],
        otel.spans()["complete shop"],
    )
    top = otel.spans()["request"].context.span_id
    assert first.parent
    assert first.parent.span_id == top
    assert otel.spans()["charge"].parent == work.context, "what the body does belongs to the work"
    assert settled.parent == work.context
    assert [link.context for link in work.links] == [first.context]
    assert [link.context for link in settled.links] == [first.context]
    assert (first.kind, work.kind, settled.kind) == (SpanKind.CLIENT, SpanKind.INTERNAL, SpanKind.CLIENT)
    store = {
        "db.system.name": "redis",
        "db.operation.name": "EVALSHA",
        "server.address": str(redis_server.socket),
    }
    assert attributes(first) == {
        **store,
        "db.stored_procedure.name": "claim",
        "fastdedup.namespace": "shop",
        "fastdedup.outcome": "acquired",
        "fastdedup.attempt": 1,
    }
    assert attributes(settled) == {
        **store,
        "db.stored_procedure.name": "complete",
        "fastdedup.namespace": "shop",
    }
    assert attributes(otel.spans()["claim shop"])["fastdedup.outcome"] == "succeeded"


async def test_without_a_trace_or_a_sampled_one_there_is_no_span(otel: Otel) -> None:
    silent = Otel(sampler=ALWAYS_OFF)
    dedup = otel.instrument(Dedup("memory://", namespace="shop"))
    async with dedup:
        async with dedup.claim("a"):
            pass
        with silent.tracer.start_as_current_span("request"):
            async with dedup.claim("b"):
                pass
    assert otel.names() == []


async def test_roots_are_made_where_asked_for(otel: Otel) -> None:
    """The settling is in the trace of its claim."""
    dedup = otel.instrument(Dedup("memory://", namespace="shop"), roots=True, keys=True)
    async with dedup:
        claim = await dedup.claim("order:7")
        await claim.complete()
    assert otel.names() == ["claim shop", "complete shop"]
    assert attributes(otel.spans()["claim shop"])["fastdedup.key"] == "order:7"
    assert otel.spans()["claim shop"].kind is SpanKind.INTERNAL, "memory:// is no server"
    assert [link.context for link in otel.spans()["complete shop"].links] == [
        otel.spans()["claim shop"].context
    ]


async def test_a_settling_after_its_trace_belongs_to_it(otel: Otel) -> None:
    dedup = otel.instrument(Dedup("memory://", namespace="shop"))
    async with dedup:
        with otel.tracer.start_as_current_span("request"):
            claim = await dedup.claim("order:7")
        await claim.release()
    spans = otel.spans()
    assert spans["release shop"].parent == spans["claim shop"].context


async def test_an_error_is_shown_by_its_type_alone(otel: Otel) -> None:
    dedup = otel.instrument(Dedup("memory://", namespace="shop"))
    away = otel.instrument(Dedup(f"redis://127.0.0.1:{free_port()}", namespace="away", timeout=0.1))
    async with dedup, away:
        with otel.tracer.start_as_current_span("request"):
            with contextlib.suppress(ValueError):
                async with dedup.claim("a"):
                    raise ValueError("s3cret")
            lost = await dedup.claim("a")
            await dedup.forget("a")
            with contextlib.suppress(ClaimLostError):
                await lost.complete()
            with contextlib.suppress(UnavailableError):
                await away.claim("a")
    spans = otel.spans()
    for name, kind in (
        ("work shop", "ValueError"),
        ("complete shop", "ClaimLostError"),
        ("claim away", "UnavailableError"),
    ):
        assert attributes(spans[name])["error.type"] == kind
        assert spans[name].status.status_code is StatusCode.ERROR
    assert attributes(spans["claim away"])["server.port"] > 0
    assert spans["release shop"].status.status_code is StatusCode.UNSET
    assert "s3cret" not in "".join(span.to_json() for span in otel.exporter.get_finished_spans())


async def test_claims_in_tasks_and_many_ways_have_spans(otel: Otel) -> None:
    dedup = otel.instrument(Dedup("memory://", namespace="shop"))
    work = dedup.once(key=lambda number: f"k{number}")(_echo)
    ledger = dedup.ledger("clicks", window=60, capacity=100)
    async with dedup:
        with otel.tracer.start_as_current_span("request"):
            await asyncio.create_task(dedup.claim("task"))
            await work(1)
            async with dedup.lock("stock"):
                pass
            async with dedup.tokens.redeem(await dedup.tokens.issue()):
                pass
            async with dedup.claim("remembered", remember=ledger):
                pass
    found = otel.names()
    assert found.count("claim shop") == 3
    assert found.count("work shop") == 3
    assert found.count("complete shop") == 3
    assert {"lock shop", "redeem shop", "release shop"} <= set(found)


async def _echo(number: int) -> int:
    return number


def test_a_gate_of_synchronous_code_is_traced(otel: Otel) -> None:
    dedup = otel.instrument(SyncDedup("memory://", namespace="shop"), roots=True)
    with dedup:
        dedup.claim("a").complete()
    assert otel.names() == ["claim shop", "complete shop"]


async def test_the_metrics_are_what_was_done(redis_url: str, otel: Otel) -> None:
    dedup = otel.instrument(Dedup(redis_url, namespace="shop"))
    async with dedup:
        for number in range(3):
            async with dedup.claim(f"k{number}"):
                pass
        found = {
            (point.attributes["fastdedup.verb"], point.attributes["fastdedup.outcome"]): point.value
            for point in otel.points("fastdedup.operations")
        }
        assert found == {("claim", "acquired"): 3, ("complete", "ok"): 3}
        assert [point.value for point in otel.points("fastdedup.pending")] == [0]
        assert [point.value for point in otel.points("fastdedup.breaker.open")] == [0]
        calls = {
            point.attributes["db.stored_procedure.name"]: point.value
            for point in otel.points("fastdedup.store.calls")
        }
        assert calls == {"claim": 3, "settle": 3}
        assert all(0 < point.value < 10 for point in otel.points("fastdedup.store.time"))


async def test_what_is_no_closed_gate_is_refused(otel: Otel) -> None:
    async with Dedup("memory://") as dedup:
        with pytest.raises(UsageError, match="before you open it"):
            otel.instrument(dedup)
    with pytest.raises(ConfigError, match="got str"):
        otel.instrument("dedup")


def test_the_current_span_is_found_the_short_and_the_long_way(
    otel: Otel, monkeypatch: pytest.MonkeyPatch
) -> None:
    short, short_key = current_context()
    monkeypatch.setattr(integration.contexts, "_RUNTIME_CONTEXT", None)
    long, long_key = current_context()
    monkeypatch.undo()
    assert short is not long
    assert short().get(short_key) is long().get(long_key) is None
    with otel.tracer.start_as_current_span("request") as request:
        assert short().get(short_key) is long().get(long_key) is request


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("Redis at /run/redis.sock", {"server.address": "/run/redis.sock"}),
        ("Redis at db:6379", {"server.address": "db", "server.port": 6379}),
        ("Redis at [::1]:7000", {"server.address": "::1", "server.port": 7000}),
    ],
)
def test_a_server_is_named_by_address_and_port(name: str, found: dict[str, Any]) -> None:
    store = {"db.system.name": "redis", "db.operation.name": "EVALSHA"}
    assert server_of(name) == store | found
    assert server_of("MemoryStore") == {}
