"""Figures in a program of one's own: what was done is what Prometheus reads."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI
from flask import Flask
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from fastdedup import Claim, ClaimLostError, ConfigError, Dedup, LocalLRU, UnavailableError, UsageError
from fastdedup.core.counters import MAX_NAMESPACES, OTHERS
from fastdedup.integrations import starlette
from fastdedup.integrations.asgi import IdempotencyMiddleware, everyone
from fastdedup.integrations.fastapi import Idempotency
from fastdedup.integrations.flask import FastDedup
from fastdedup.integrations.prometheus import watch
from fastdedup.integrations.wsgi import IdempotencyMiddleware as WsgiMiddleware
from fastdedup.messages.decisions import Counts, Reason
from fastdedup.sql import Inbox
from fastdedup.sync import Dedup as SyncDedup

from ..servers import RedisServer
from ..sidecar.running import figure
from ..waiting import wait_until

TOTAL = "fastdedup_operations_total"


class Shown:
    """What Prometheus reads of one registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

    @property
    def text(self) -> str:
        return generate_latest(self.registry).decode()

    def __call__(self, name: str, **labels: str) -> float:
        return figure(self.text, name, **labels)

    def names(self) -> set[str]:
        return {family.name for family in text_string_to_metric_families(self.text)}


@pytest.fixture
def shown() -> Shown:
    return Shown()


async def test_each_operation_is_counted_by_what_came_of_it(redis_url: str, shown: Shown) -> None:
    dedup = Dedup(redis_url, namespace="shop", known_duplicates=0)
    sms = dedup.scoped("sms")
    watch(dedup, registry=shown.registry)
    async with dedup:
        first = await dedup.claim("a")
        await dedup.claim("a")
        await first.complete({"id": 1})
        await dedup.claim("a")
        failed, freed = await dedup.claim_many(["b", "c"])
        await failed.fail("no")
        await freed.release()
        async with dedup.claim("d", renew=True) as held:
            await held.renew()
        await sms.claim("a", fingerprint="x")
        await sms.claim("a", fingerprint="y")
        lost = await sms.claim("z")
        await sms.forget("z")
        with contextlib.suppress(ClaimLostError):
            await lost.complete()
        async with dedup.lock("stock"):
            pass
        token = await dedup.tokens.issue()
        await dedup.tokens.consume(token)
        await dedup.tokens.consume(token)
        async with dedup.tokens.redeem(await dedup.tokens.issue()):
            pass
        await dedup.get("a")
        ledger = dedup.ledger("clicks", window=60, capacity=100)
        await ledger.first("i")
        await ledger.first_many(["i", "j"])
    done = {
        ("shop", "claim", "acquired"): 4,
        ("shop", "claim", "in_progress"): 1,
        ("shop", "claim", "succeeded"): 1,
        ("shop", "complete", "ok"): 3,
        ("shop", "fail", "ok"): 1,
        ("shop", "release", "ok"): 2,
        ("shop", "renew", "ok"): 1,
        ("shop", "lock", "acquired"): 1,
        ("shop", "issue", "ok"): 2,
        ("shop", "consume", "acquired"): 1,
        ("shop", "consume", "succeeded"): 1,
        ("shop", "redeem", "acquired"): 1,
        ("shop", "get", "ok"): 1,
        ("shop", "ledger", "absent"): 1,  # looked for before it is founded
        ("shop", "ledger", "ok"): 1,
        ("shop", "first", "ok"): 2,
        ("shop:sms", "claim", "acquired"): 2,
        ("shop:sms", "claim", "mismatch"): 1,
        ("shop:sms", "forget", "ok"): 1,
        ("shop:sms", "complete", "claim_lost"): 1,
    }
    told = {
        (sample.labels["namespace"], sample.labels["verb"], sample.labels["outcome"]): sample.value
        for family in text_string_to_metric_families(shown.text)
        for sample in family.samples
        if sample.name == TOTAL and sample.value
    }
    assert told == done
    claims = sum(count for (_, verb, _), count in done.items() if verb == "claim")
    assert shown("fastdedup_operation_seconds_count", verb="claim") == claims
    assert 0 < shown("fastdedup_operation_seconds_sum", verb="claim") < 10
    assert shown("fastdedup_ledger_ids_total", ledger="clicks", answer="first") == 2
    assert shown("fastdedup_ledger_ids_total", ledger="clicks", answer="duplicate") == 1
    assert shown("fastdedup_store_call_seconds_count", verb="first") == 2
    assert shown("fastdedup_batch_size_count") == shown("fastdedup_store_call_seconds_count")


async def test_claims_of_one_batch_and_repeats_are_counted_each(redis_url: str, shown: Shown) -> None:
    """Fresh claims of a batch share one verdict; a repeat is answered from memory."""
    dedup = Dedup(redis_url, namespace="shop")
    watch(dedup, registry=shown.registry)
    async with dedup:
        claims: list[Claim] = await asyncio.gather(*(dedup.claim(f"k{number}") for number in range(100)))
        assert shown(TOTAL, verb="claim", outcome="acquired") == 100
        await claims[0].complete()
        for _ in range(5):
            await dedup.claim("k0")
        assert shown(TOTAL, verb="claim", outcome="succeeded") == 5
        for claim in claims[1:]:
            await claim.release()
    assert shown(TOTAL, verb="release", outcome="ok") == 99


async def test_namespaces_that_a_program_makes_up_share_a_label(shown: Shown) -> None:
    dedup = Dedup("memory://", namespace="shop")
    watch(dedup, registry=shown.registry)
    counters = dedup.gate.connections.count()
    for number in range(MAX_NAMESPACES - 1):  # and the gate's
        counters.observe(f"user:{number}", "claim", "acquired", 0.1)
    async with dedup:
        for number in range(3):
            async with dedup.scoped(f"{number}").claim("a"):
                pass
    assert shown(TOTAL, namespace=OTHERS, verb="claim") == 3
    assert shown(TOTAL, namespace=OTHERS, verb="complete") == 3


async def test_a_wait_is_timed(shown: Shown) -> None:
    dedup = Dedup("memory://", namespace="shop")
    watch(dedup, registry=shown.registry)
    async with dedup:
        first = await dedup.claim("a")
        waiting = asyncio.ensure_future(dedup.claim("a", wait=5.0))
        watching = dedup.gate.connection.wakeups.waiting
        await wait_until(lambda: watching, description="it waits for the first")
        await first.complete()
        await waiting
    assert shown("fastdedup_wait_seconds_count", namespace="shop") == 1
    assert shown("fastdedup_wait_seconds_sum", namespace="shop") > 0
    assert shown(TOTAL, verb="claim", outcome="succeeded") == 1


async def test_an_outage_shows_in_the_figures(shown: Shown, own_redis: RedisServer) -> None:
    dedup = Dedup(own_redis.url, namespace="shop", timeout=0.1, on_unavailable=LocalLRU())
    strict = Dedup(own_redis.url, namespace="strict", timeout=0.1)
    ledger = strict.ledger("clicks", window=60, capacity=100)
    watch(dedup, strict, registry=shown.registry)
    async with dedup, strict:
        await ledger.first("i")
        own_redis.kill()
        with pytest.raises(UnavailableError):
            await ledger.first("i")
        with pytest.raises(UnavailableError):
            await ledger.first_many(["i", "j"])
        for number in range(6):
            await dedup.claim(f"k{number}")
            with pytest.raises(UnavailableError):
                await strict.claim(f"k{number}")
        assert shown("fastdedup_breaker_state", state="open") == 1
        assert shown("fastdedup_breaker_opened_total") == 2
        assert shown("fastdedup_journal_records", namespace="shop") == 6
        assert shown("fastdedup_degraded_total", namespace="shop", answered="yes") == 6
        assert shown("fastdedup_degraded_total", namespace="strict", answered="no", verb="claim") == 6
        assert shown(TOTAL, namespace="strict", outcome="unavailable", verb="claim") == 6
        assert shown(TOTAL, namespace="strict", outcome="unavailable", verb="first") == 2
        assert shown(TOTAL, namespace="shop", outcome="acquired") == 6
        own_redis.start()
        await wait_until(
            lambda: shown("fastdedup_reconciled_total") == 6, description="the journal is in the store"
        )
        await wait_until(
            lambda: shown("fastdedup_breaker_state", state="open") == 0, description="both closed"
        )
        assert shown("fastdedup_journal_records") == 0


async def test_the_figures_of_an_outage_stand_at_0_before_it(shown: Shown) -> None:
    """Else its first events make no rate: a series that is born at 9 has grown by nothing, by Prometheus' rules."""
    dedup = Dedup("memory://", namespace="shop")
    mail = dedup.scoped("mail")
    mail.ledger("early", window=60, capacity=100)
    watch(dedup, registry=shown.registry)
    sms = dedup.scoped("sms")
    sms.ledger("late", window=60, capacity=100)

    def zeros() -> set[str]:
        return {line[:-4] for line in shown.text.splitlines() if line.endswith("} 0.0")}

    refused = TOTAL + '{{namespace="{}",outcome="unavailable",verb="{}"}}'
    degraded = 'fastdedup_degraded_total{{answered="{}",namespace="{}",verb="{}"}}'
    before = zeros()
    verbs = ("claim", "complete", "lock", "redeem", "consume")
    assert {
        refused.format(name, verb) for name in ("shop", "shop:mail", "shop:sms") for verb in verbs
    } <= before
    assert {degraded.format(said, "shop", "claim") for said in ("yes", "no")} <= before
    assert {refused.format(f"shop:{name}", "first") for name in ("mail", "sms")} <= before
    assert {degraded.format("no", f"shop:{name}", "first") for name in ("mail", "sms")} <= before
    assert 'fastdedup_shortfalls_total{namespace="shop"}' in before
    assert degraded.format("no", "shop:sms", "claim") in before, "as the policy is asked for a lock"
    async with dedup:
        await sms.get("k")
    assert refused.format("shop:sms", "get") in zeros(), (
        "a verb that nobody expected stands at 0 once it is used"
    )


@pytest.mark.parametrize("watched", ["before", "after"])
async def test_a_callback_for_batches_leaves_the_figures_alone(watched: str, shown: Shown) -> None:
    """Of two that hear of batches, the first heard of none."""
    sizes: list[int] = []
    dedup = Dedup("memory://", namespace="shop")
    if watched == "before":
        watch(dedup, registry=shown.registry)
    dedup.on_batch(sizes.append)
    watch(dedup, registry=shown.registry)
    async with dedup:
        await dedup.claim("k")
    assert sizes == [1]
    assert shown("fastdedup_batch_size_count") == shown("fastdedup_batch_size_sum") == 1


async def test_scopes_that_are_only_made_take_no_label_from_one_that_is_used(shown: Shown) -> None:
    dedup = Dedup("memory://", namespace="shop")
    watch(dedup, registry=shown.registry)
    for number in range(1500):
        dedup.scoped(f"t{number}")
    async with dedup:
        await dedup.scoped("payments").claim("k")
    assert shown(TOTAL, namespace="shop:payments", outcome="acquired") == 1
    assert len(shown.text.splitlines()) < 2000


async def _nothing(*args: Any) -> None:
    """An application that answers nothing, and an endpoint that is not called."""


@pytest.mark.parametrize("watched", ["before", "after"])
@pytest.mark.parametrize(
    "integrate",
    [
        lambda dedup: IdempotencyMiddleware(_nothing, dedup, principal=everyone),
        lambda dedup: Idempotency(FastAPI(), dedup),
        lambda dedup: starlette.idempotent(dedup, principal=everyone)(_nothing),
        lambda dedup: WsgiMiddleware(lambda environ, start_response: [], dedup, principal=everyone),
        lambda dedup: [app := Flask("shop"), FastDedup(app, dedup)],
    ],
    ids=["asgi", "fastapi", "starlette", "wsgi", "flask"],
)
def test_the_first_refused_web_request_is_seen(
    integrate: Callable[[Any], object], watched: str, shown: Shown, request: pytest.FixtureRequest
) -> None:
    """Of a service that starts in an outage, too: the figures of its web keys are there before a request."""
    kind = SyncDedup if request.node.callspec.id.partition("-")[0] in ("wsgi", "flask") else Dedup
    dedup = kind("memory://", namespace="shop")
    if watched == "before":
        watch(dedup, registry=shown.registry)
    integration = integrate(dedup)
    watch(dedup, registry=shown.registry)
    assert f'{TOTAL}{{namespace="shop:http",outcome="unavailable",verb="claim"}} 0.0' in shown.text
    del integration


async def test_a_journal_is_shown_under_the_gate_whose_policy_keeps_it(shown: Shown) -> None:
    server = RedisServer()  # which does not run
    dedup = Dedup(server.url, namespace="shop", timeout=0.1, on_unavailable=LocalLRU())
    sms, strict = dedup.scoped("sms"), dedup.scoped("strict", on_unavailable=LocalLRU())
    watch(dedup, registry=shown.registry)
    async with dedup:
        for gate in (strict, sms, dedup, sms):
            await gate.claim(f"k{shown('fastdedup_degraded_total', answered='yes')}")
        assert shown("fastdedup_journal_records", namespace="shop") == 3
        assert shown("fastdedup_journal_records", namespace="shop:strict") == 1


def test_a_gate_of_synchronous_code_is_watched(redis_url: str, shown: Shown) -> None:
    dedup = SyncDedup(redis_url, namespace="shop")
    watch(dedup, registry=shown.registry)
    with dedup:
        dedup.claim("a").complete()
    with dedup:
        dedup.claim("b").release()
    assert shown(TOTAL, verb="claim", outcome="acquired") == 2


def test_consumers_and_inboxes_are_watched(shown: Shown) -> None:
    class Consumer:
        name = "orders"
        counts = Counts(delivered=5, first=2, duplicate=1, held=1, retried=1, dead_lettered=1)

    inbox = Inbox("billing", keep=60.0)
    consumer = Consumer()
    for _ in range(2):  # what is named twice is counted once
        watch(Dedup("memory://"), consumer, inbox, registry=shown.registry)
    letters = re.compile(
        r'^fastdedup_dead_letters_total{consumer="orders",reason="(\w+)"} 0.0$', re.MULTILINE
    )
    assert {*letters.findall(shown.text)} == {
        Reason.FAILED,
        Reason.EXHAUSTED,
        Reason.MISMATCH,
        Reason.NO_KEY,
    }
    assert 'fastdedup_consumer_paused{consumer="orders"} 0.0' in shown.text
    assert "fastdedup_consumer_running{" not in shown.text, "what a framework runs does not tell"
    inbox.rules.received["acquired"] += 3
    assert shown("fastdedup_messages_total", consumer="orders", result="first") == 2
    assert shown("fastdedup_messages_total", consumer="orders", result="dead_lettered") == 1
    assert shown("fastdedup_messages_delivered_total", consumer="orders") == 5
    assert shown("fastdedup_inbox_received_total", inbox="billing", outcome="acquired") == 3


async def test_a_gate_that_is_open_is_refused(shown: Shown) -> None:
    async with Dedup("memory://") as dedup:
        with pytest.raises(UsageError, match=r"call watch\(\) or instrument\(\) before you open it"):
            watch(dedup, registry=shown.registry)
    with pytest.raises(ConfigError, match="got str"):
        watch("dedup", registry=shown.registry)
