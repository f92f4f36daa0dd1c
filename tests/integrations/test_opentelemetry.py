"""Spans from claim over work to settling, and metrics, by OpenTelemetry's own SDK in memory."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from opentelemetry import trace
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from fastdedup import (
    ClaimLostError,
    ConfigError,
    Dedup,
    LocalLRU,
    Reject,
    Resolution,
    Takeover,
    UnavailableError,
    UsageError,
)
from fastdedup.core.holder import holder_name
from fastdedup.integrations import opentelemetry as integration
from fastdedup.integrations.opentelemetry import current_context, server_of
from fastdedup.messages import Counts, MessageRules
from fastdedup.messages.deliveries import Deliveries
from fastdedup.sql import Inbox
from fastdedup.sync import Dedup as SyncDedup

from ..otel import Otel, attributes, links, origin, values
from ..proxy import proxied
from ..servers import RedisServer, free_port
from ..waiting import wait_until


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


def test_spans_of_synchronous_code_are_in_the_trace_of_their_caller(otel: Otel) -> None:
    """They were in the trace of whichever thread had woken the background loop last."""
    dedup = otel.instrument(SyncDedup("memory://", namespace="shop"))

    def work(number: int) -> None:
        with otel.tracer.start_as_current_span(f"request {number}"):
            dedup.claim(f"key:{number}").complete()

    with dedup, ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(200)))
    requests = {
        span.context.span_id: span.context.trace_id for span in otel.finished() if span.parent is None
    }
    ours = [span for span in otel.finished() if span.parent is not None]
    assert len(requests) == 200
    assert len([span for span in ours if span.name == "claim shop"]) == 200
    claims = {span.context.span_id: span.context.trace_id for span in ours}
    assert all(span.parent.span_id in requests | claims for span in ours if span.parent is not None)
    claimed = [span for span in ours if span.name == "claim shop"]
    assert {span.parent.span_id for span in claimed if span.parent is not None} == {*requests}


async def test_an_attempt_that_fails_is_an_error_of_its_work(otel: Otel) -> None:
    """The consumer catches what its handler raises, and its span said nothing of that."""

    async def handler(message: str) -> None:
        raise ValueError

    async def lay(decision: Any) -> None:
        return

    dedup = otel.instrument(Dedup("memory://", namespace="shop"), roots=True)
    async with dedup:
        deliveries = Deliveries(MessageRules("billing", lambda message: message, attempts=2), dedup)
        for _ in range(2):
            await deliveries.handle("m-1", handler, lay)
        assert (await dedup.claim("billing|m-1")).outcome == "failed"
    works = [span for span in otel.finished() if span.name == "work shop"]
    assert [span.status.status_code for span in works] == [StatusCode.ERROR] * 2
    assert [dict(span.attributes or {})["error.type"] for span in works] == ["ValueError"] * 2


async def test_the_metrics_are_what_was_done(redis_url: str, otel: Otel) -> None:
    dedup = otel.instrument(Dedup(redis_url, namespace="shop"))
    async with dedup:
        for number in range(3):
            async with dedup.claim(f"k{number}"):
                pass
        found = values(otel.points("fastdedup.operations"), "verb", "outcome")
        assert found == {("claim", "acquired"): 3, ("complete", "ok"): 3}
        assert [point.value for point in otel.points("fastdedup.pending")] == [0]
        assert [point.value for point in otel.points("fastdedup.breaker.open")] == [0]
        calls = {
            point.attributes["db.stored_procedure.name"]: point.value
            for point in otel.points("fastdedup.store.calls")
        }
        assert calls == {"claim": 3, "settle": 3}
        assert all(0 < point.value < 10 for point in otel.points("fastdedup.store.time"))


async def test_the_metrics_of_several_gates_are_added_up(otel: Otel) -> None:
    """Of two metrics with one name the SDK shows the first alone. A gate that is named twice counts once."""
    one, two = (Dedup("memory://", namespace="shop") for _ in range(2))
    for dedup in (one, two, one):
        otel.instrument(dedup)
    other = otel.instrument(SyncDedup("memory://", namespace="mail"))
    async with one, two:
        await one.claim("a")
        await two.claim("a")
        await two.claim("b")
    other.claim("a")
    found = values(otel.points("fastdedup.operations"), "namespace", "outcome")
    assert found == {("shop", "acquired"): 3, ("mail", "acquired"): 1}
    calls = {
        point.attributes["db.stored_procedure.name"]: point.value
        for point in otel.points("fastdedup.store.calls")
    }
    assert calls == {"claim": 4}


def test_the_figures_of_an_outage_stand_at_0_before_it(otel: Otel) -> None:
    """As in Prometheus; test_figures.py has what feeds them."""
    dedup = Dedup("memory://", namespace="shop", on_unavailable=LocalLRU())
    ledger = dedup.scoped("strict", on_unavailable=Reject()).ledger("clicks", window=60, capacity=100)
    otel.instrument(dedup)
    before = {
        (point.attributes["fastdedup.namespace"], point.attributes["fastdedup.verb"]): point.value
        for point in otel.points("fastdedup.operations")
    }
    verbs = ("claim", "complete", "lock", "redeem", "consume")
    expected = {(name, verb): 0 for name in ("shop", "shop:strict") for verb in verbs}
    assert before == expected | {("shop:strict", "first"): 0}
    del ledger


async def test_what_happens_to_messages_shows_in_the_metrics(redis_url: str, otel: Otel) -> None:
    dedup = Dedup(redis_url, namespace="shop", timeout=5.0)

    class Consumer:
        name = "billing"
        deliveries = Deliveries(MessageRules("billing", str, attempts=2), dedup)

        @property
        def counts(self) -> Counts:
            return self.deliveries.counts

    async def fail(message: str) -> None:
        raise ValueError("declined")

    async def lay(decision: Any) -> None:
        pass

    inbox = Inbox("billing", keep=60.0)
    otel.instrument(dedup, Consumer(), inbox)
    async with dedup:
        for _ in range(3):
            await Consumer.deliveries.handle("7", fail, lay)
    inbox.rules.received["first"] += 1
    results = values(otel.points("fastdedup.messages"), "consumer", "result")
    assert results == {
        ("billing", "retried"): 1,
        ("billing", "dead_lettered"): 1,
        ("billing", "duplicate"): 1,
    }
    assert values(otel.points("fastdedup.messages.delivered"), "consumer") == {("billing",): 3}
    letters = values(otel.points("fastdedup.dead_letters"), "consumer", "reason")
    assert letters == {("billing", "failed"): 1}
    received = values(otel.points("fastdedup.inbox.received"), "inbox", "outcome")
    assert received == {("billing", "first"): 1}


async def test_what_is_no_closed_gate_is_refused(otel: Otel) -> None:
    async with Dedup("memory://") as dedup:
        with pytest.raises(UsageError, match=r"call watch\(\) or instrument\(\) before you open it"):
            otel.instrument(dedup)
    assert otel.reader.get_metrics_data() is None, "it shows no figures without a gate"
    for _ in range(2):
        with pytest.raises(AttributeError, match="get_meter"):
            integration.instrument(Dedup("memory://"), meter_provider=otel)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="got str"):
        otel.instrument("dedup")
    with pytest.raises(ConfigError, match="then inboxes and consumers, got str"):
        otel.instrument(Dedup("memory://"), "consumer")


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


# The record's trace


async def test_a_replay_elsewhere_links_to_the_first_run(redis_url: str, otel: Otel) -> None:
    other = Otel()
    async with (
        otel.instrument(Dedup(redis_url, namespace="shop", holder="billing")) as here,
        other.instrument(Dedup(redis_url, namespace="shop")) as there,
    ):
        with otel.tracer.start_as_current_span("request"):
            await (await here.claim("k")).complete()
        with other.tracer.start_as_current_span("request"):
            assert not (await there.claim("k")).acquired
        record = await there.get("k")
    first, replay = otel.spans()["claim shop"], other.spans()["claim shop"]
    assert links(replay) == [origin(first, "first_run")]
    assert replay.links[0].context.is_remote
    assert replay.links[0].context.trace_flags.sampled
    assert replay.context.trace_id != first.context.trace_id
    assert record is not None
    assert record.trace == f"{first.context.trace_id:032x}"
    name = holder_name("billing", socket.gethostname(), os.getpid())
    assert record.holder == name[-13:], "of the holder its end"


async def test_without_a_sampled_trace_a_record_has_no_byte_more(redis_url: str, otel: Otel) -> None:
    """Neither where it is turned off, nor for an owner that the caller has named. A trace costs 40 bytes."""
    silent, off = Otel(sampler=ALWAYS_OFF), Otel()
    names = ("plain", "silent", "off", "named", "traced")
    async with contextlib.AsyncExitStack() as stack:
        plain = await stack.enter_async_context(Dedup(redis_url))
        gates = [
            await stack.enter_async_context(each)
            for each in (
                silent.instrument(Dedup(redis_url)),
                off.instrument(Dedup(redis_url), links=False),
                otel.instrument(Dedup(redis_url)),
            )
        ]
        await plain.claim("plain")
        with silent.tracer.start_as_current_span("request"):
            await gates[0].claim("silent")
        with off.tracer.start_as_current_span("request"):
            await gates[1].claim("off")
        with otel.tracer.start_as_current_span("request"):
            await gates[2].claim("named", owner="0" * 20)
            await gates[2].claim("traced")
            token = await gates[2].tokens.issue()
            await gates[2].tokens.redeem(token)
        records = [await plain.get(name) for name in names]
        used = await plain.get(token, "token")
        with redis.Redis.from_url(redis_url) as raw:
            sizes = [raw.strlen(f"fastdedup:={name}") for name in names]
        with off.tracer.start_as_current_span("request"):
            await gates[1].claim("traced")
    assert [size - sizes[0] for size in sizes] == [0, 0, 0, 0, 40]
    assert [record is not None and record.trace is not None for record in records] == [*[False] * 4, True]
    assert used is not None
    assert used.trace is None
    assert [links(span) for span in off.finished()] == [[]] * len(off.finished())


@pytest.mark.parametrize(
    "owner",
    [
        "x;t=garbage~AAAAAAAAAAAAAA",
        ";t=" + "A" * 32 + "~AAAAAAAAAAAAAA",
        ";t=" + "A" * 32 + "~AAAAAAAAAAAAA",
        "billing@web-1:7~AAAAAAAAAAAAAA",
        "worker-1",
        "0" * 20,
    ],
)
async def test_an_owner_without_a_trace_gives_no_link(owner: str, redis_url: str, otel: Otel) -> None:
    """Be it hostile, of an older version, or named by its caller."""
    async with otel.instrument(Dedup(redis_url)) as dedup:
        await dedup.claim("k", owner=owner)
        with otel.tracer.start_as_current_span("request"):
            assert not (await dedup.claim("k")).acquired
        record = await dedup.get("k")
    assert links(otel.spans()["claim fastdedup"]) == []
    assert record is not None
    assert record.trace is None


async def test_a_takeover_is_told_the_holder_beside_a_trace(redis_url: str, otel: Otel) -> None:
    heard: list[Takeover] = []

    async def check(takeover: Takeover) -> Resolution:
        heard.append(takeover)
        return Resolution.done(7)

    async with otel.instrument(Dedup(redis_url, holder=True)) as dedup:
        ledger = dedup.ledger("clicks", window=60, capacity=100)
        with otel.tracer.start_as_current_span("request"):
            first = await dedup.claim("k", remember=ledger)
            await first.release()
            claim = await dedup.claim("k", remember=ledger, resolve=check)
    assert claim.result == 7
    assert [each.last_owner for each in heard] == [first.owner]
    assert str(heard[0].last_holder).endswith(f":{os.getpid()}")
    one, two = [span for span in otel.finished() if span.name == "claim fastdedup"]
    assert links(two) == [origin(one, "attempt_before")]


async def test_a_claim_that_is_sent_again_keeps_its_owner(
    redis_url: str, redis_server: RedisServer, otel: Otel
) -> None:
    """Its first reply was lost: it gets its own claim back, as the first attempt, and links to no run."""
    async with proxied(redis_server) as proxy, otel.instrument(Dedup(proxy.url, timeout=5.0)) as dedup:
        await dedup.claim("warm")
        with otel.tracer.start_as_current_span("request"):
            proxy.lose("claim")
            claim = await dedup.claim("k")
        record = await dedup.get("k")
    assert (proxy.lost["claim"], claim.acquired, claim.attempt) == (1, True, 1)
    assert record is not None
    assert record.owner == claim.owner
    span = otel.spans()["claim fastdedup"]
    assert links(span) == []
    assert record.trace == f"{span.context.trace_id:032x}"


async def test_a_call_that_is_under_way_keeps_its_owner(redis_url: str, otel: Otel) -> None:
    """To await a call twice is an error, and does not rename the claim that is sent."""
    async with otel.instrument(Dedup(redis_url)) as dedup:
        with otel.tracer.start_as_current_span("request"):
            call = dedup.claim("k")
            task = asyncio.create_task(call)
            await asyncio.sleep(0)
            with pytest.raises(UsageError, match="awaited before"):
                await call
            claim = await task
        await claim.complete()
        record = await dedup.get("k")
    assert record is not None
    assert record.owner == claim.owner


# Histograms


async def test_histograms_hold_every_time_that_is_measured(redis_url: str, otel: Otel) -> None:
    async with otel.instrument(Dedup(redis_url, namespace="shop"), histograms=True) as dedup:
        await asyncio.gather(*[dedup.claim(f"k{number}") for number in range(3)])
        claim = await dedup.claim("k")
        waiter = asyncio.create_task(dedup.claim("k", wait=10.0))
        watched = dedup.gate.connection.wakeups.waiting
        await wait_until(lambda: watched, description="it waits")
        await claim.complete()
        await waiter
        operations = {
            (point.attributes["fastdedup.verb"], point.attributes["fastdedup.outcome"]): point.count
            for point in otel.points("fastdedup.operation.duration")
        }
        (waits,) = otel.points("fastdedup.wait.duration")
        stores = {
            point.attributes["db.stored_procedure.name"]: point
            for point in otel.points("db.client.operation.duration")
        }
    assert operations == {("claim", "acquired"): 4, ("complete", "ok"): 1, ("claim", "succeeded"): 1}
    assert (waits.count, waits.attributes) == (1, {"fastdedup.namespace": "shop"})
    assert set(stores) == {"claim", "settle"}
    assert {"db.system.name": "redis", "db.operation.name": "EVALSHA"}.items() <= dict(
        stores["settle"].attributes
    ).items()
    assert "server.address" in stores["settle"].attributes
    assert {0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10} <= set(stores["settle"].explicit_bounds)
    assert 0 < waits.sum < 10


async def test_without_histograms_there_is_no_instrument(otel: Otel) -> None:
    async with otel.instrument(Dedup("memory://")) as dedup:
        await dedup.claim("k")
        assert otel.points("fastdedup.operation.duration") == []
    async with otel.instrument(Dedup("memory://"), histograms=True) as dedup:
        await dedup.claim("k")
    assert otel.points("db.client.operation.duration") == [], "memory:// is no database"
