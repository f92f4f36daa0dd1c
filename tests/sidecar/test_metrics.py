"""The figures: every answer is counted once, on both wires; what the gate is up to is shown, also over TCP."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import platform
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any, cast

import httpx
import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families
from redis.backoff import NoBackoff
from redis.retry import Retry

from fastdedup import (
    Dedup,
    LocalLRU,
    __version__,
)
from fastdedup.declarations import BOUNDS
from fastdedup.kernel.operations import SettleOp, Verdict
from fastdedup.model import Outcome
from fastdedup.sidecar.counters import Counters, outcome_found
from fastdedup.sidecar.http.routes import metrics
from fastdedup.sidecar.namespaces import Namespaces, RawCodec
from fastdedup.sidecar.service.checked import split_address
from fastdedup.sidecar.service.config import Config
from fastdedup.sidecar.service.metrics import Exposition, wire_of
from fastdedup.sidecar.service.metrics_port import _shown
from fastdedup.sidecar.service.run import make_namespaces

from ..fixtures import fixture_of, fixture_with
from .conftest import Serve
from .running import DEADLINE, Sidecar, figure

TOTAL = "fastdedup_operations_total"


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[Namespaces]:
    counters = Counters()
    root = Dedup("memory://", codec=RawCodec(), on_event=counters.on_event, **options)
    root.gate.observers.beside = counters
    async with root:
        yield Namespaces(root, counters=counters)


def shown(namespaces: Namespaces) -> str:
    return Exposition(namespaces).render().decode()


async def test_all_who_ask_at_once_share_one_text_and_who_asks_later_gets_another() -> None:
    """Each had its own, and 200 clients that pipelined /metrics delayed a new connection's claim by 14 s."""
    texts = itertools.count()
    async with running() as namespaces:
        namespaces.render_metrics = lambda: b"%d" % next(texts)
        for expected in (b"0", b"1"):
            asked = [metrics(namespaces, None, cast(Any, None)) for _ in range(200)]
            assert {answer.text for answer in await asyncio.gather(*asked)} == {expected}


# Counting


async def test_an_answer_is_counted_by_namespace_verb_and_outcome_and_timed_by_verb() -> None:
    async with running() as namespaces:
        namespaces.dedup("shop"), namespaces.dedup("sms")
        namespaces.counters.observe("shop", "claim", "acquired", 0.0003)
        namespaces.counters.observe("shop", "claim", "in_progress", 0.7)
        namespaces.counters.observe("sms", "issue", "ok", 99.0)
        text = shown(namespaces)
    assert figure(text, TOTAL, namespace="shop", verb="claim", outcome="acquired") == 1
    assert figure(text, TOTAL, namespace="shop") == 2
    seconds = "fastdedup_operation_seconds"
    assert figure(text, f"{seconds}_bucket", verb="claim", le="0.00025") == 0
    assert figure(text, f"{seconds}_bucket", verb="claim", le="0.0005") == 1
    assert figure(text, f"{seconds}_bucket", verb="claim", le="1.0") == 2
    assert figure(text, f"{seconds}_bucket", verb="issue", le="10.0") == 0
    assert figure(text, f"{seconds}_bucket", verb="issue", le="+Inf") == 1
    assert figure(text, f"{seconds}_count", verb="claim") == 2
    assert figure(text, f"{seconds}_sum", verb="claim") == pytest.approx(0.7003)


async def test_the_hot_path_counts_the_same_also_where_claims_share_a_verdict() -> None:
    shared, other = Verdict(Outcome.ACQUIRED), Verdict(Outcome.IN_PROGRESS)
    async with running(namespace="shop") as namespaces:
        judged, sms = namespaces.counters.judged, namespaces.dedup("sms")
        for verdict in (shared, shared, other, shared):
            judged(namespaces.root, verdict, 0.0)
        judged(namespaces.root, shared, 1.0)
        judged(sms, shared, 1.0)
        text = shown(namespaces)
    assert figure(text, TOTAL, namespace="shop", outcome="acquired") == 4
    assert figure(text, TOTAL, namespace="shop", outcome="in_progress") == 1
    assert figure(text, TOTAL, namespace="sms") == 1
    assert figure(text, "fastdedup_operation_seconds_count", verb="claim") == 6


@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        (SettleOp(b"k", b"o", 1, succeeded=True, keep_ms=1, payload=b""), "ok"),
        (Verdict(Outcome.ACQUIRED), "acquired"),
        (Verdict(Outcome.SUCCEEDED), "succeeded"),
        (None, "absent"),
        ({"key": "a"}, "ok"),
        (False, "absent"),
        (True, "ok"),
        ([False], "ok"),
    ],
)
def test_what_was_found_says_its_outcome(found: object, outcome: str) -> None:
    assert outcome_found(found) == outcome


def test_both_wires_count_errors_under_the_words_of_the_library(
    serve: Serve, redis_url: str, redis_server: Any
) -> None:
    """A foreign value was `foreign` in the library's figures, and `error` in the sidecar's."""
    sidecar = serve(redis_url)
    ask = redis.Redis(unix_socket_path=sidecar.path, retry=Retry(NoBackoff(), 0))
    with ask, redis_server.client() as raw, sidecar.http() as http:
        raw.set("fastdedup:=k", "mine", px=60_000)
        for command in (("FD.CLAIM", "k"), ("FD.CLAIM", "k", "OWNER", "o"), ("FD.GET", "k")):
            with pytest.raises(redis.ResponseError, match="did not write"):
                ask.execute_command(*command)
        for body in ({"key": "k"}, {"key": "k", "owner": "o"}):
            assert http.post("/v1/claims", json=body).status_code == 409
            assert http.post("/v1/batch", json=[{"op": "claim", **body}]).json()[0]["status"] == 409
        assert http.get("/v1/records?key=k").status_code == 409
        text = http.get("/metrics").text
    assert figure(text, TOTAL, verb="claim", outcome="foreign") == 6
    assert figure(text, TOTAL, verb="get", outcome="foreign") == 2
    assert figure(text, TOTAL, outcome="error") == 0


async def test_batches_are_counted_by_size() -> None:
    async with running() as namespaces:
        await namespaces.root.claim_many([str(number) for number in range(40)])
        text = shown(namespaces)
    assert figure(text, "fastdedup_batch_size_sum") == 40
    assert 1 <= figure(text, "fastdedup_batch_size_count") <= 40
    assert figure(text, "fastdedup_batch_size_bucket", le="+Inf") == figure(
        text, "fastdedup_batch_size_count"
    )


async def test_forty_claims_of_one_moment_are_two_batches(redis_url: str) -> None:
    """A library's gate makes three of them, while Redis works on the first."""
    sizes: list[int] = []
    counters = Counters()
    counters.batch_ended = lambda verb, size, seconds: sizes.append(size)  # type: ignore[method-assign]
    namespaces = make_namespaces(Config(url=redis_url), counters, lambda event: None)
    async with namespaces.root as dedup:
        await asyncio.gather(*(dedup.claim(f"order:{number}") for number in range(40)))
    assert sizes == [32, 8]


async def test_before_opening_there_is_nothing_pending() -> None:
    text = shown(Namespaces(Dedup("memory://", codec=RawCodec())))
    assert figure(text, "fastdedup_pending_operations") == 0
    assert figure(text, "fastdedup_breaker_state", state="closed") == 1


async def test_a_journal_that_namespaces_share_is_counted_once() -> None:
    async with running(on_unavailable=LocalLRU()) as namespaces:
        namespaces.dedup("sms")
        assert shown(namespaces).count("fastdedup_journal_records{") == 1


def test_connections_are_told_apart_by_what_they_speak() -> None:
    kinds = [type(name, (), {})() for name in ("RespConnection", "Sniffer", "HttpProtocol")]
    assert [wire_of(kind) for kind in kinds] == ["resp", "unknown", "http"]


async def test_the_format_is_one_that_prometheus_reads_and_labels_are_bounded() -> None:
    async with running() as namespaces:
        namespaces.counters.observe("shop", "claim", "acquired", 0.1)
        families = list(text_string_to_metric_families(shown(namespaces)))
    labels = {label for family in families for sample in family.samples for label in sample.labels}
    assert labels - {"version", "python", "build"} == {
        "namespace",
        "verb",
        "outcome",
        "le",
        "state",
        "answered",
        "kept",
        "wire",
    }
    assert all(family.documentation for family in families)
    assert len(BOUNDS) == len(set(BOUNDS))


# A running sidecar


def ask_all(ask: redis.Redis) -> None:
    """Every verb of the Redis protocol once, with both outcomes where it has two."""
    run = ask.execute_command
    owner = run("FD.CLAIM", "a", "NS", "shop")[1]
    run("FD.CLAIM", "a", "NS", "shop")
    run("FD.RENEW", "a", owner, "NS", "shop")
    run("FD.COMPLETE", "a", owner, "done", "NS", "shop")
    with pytest.raises(redis.ResponseError, match="CLAIMLOST"):
        run("FD.COMPLETE", "a", "somebody", "done", "NS", "shop")
    run("FD.CLAIM", "b", "OWNER", "me", "NS", "shop")
    run("FD.RELEASE", "b", "me", "NS", "shop")
    run("FD.CLAIM", "c", "OWNER", "me", "NS", "shop")
    run("FD.FAIL", "c", "me", "no", "NS", "shop")
    token = run("FD.ISSUE", "NS", "shop")
    run("FD.REDEEM", token, "NS", "shop")
    run("FD.CONSUME", run("FD.ISSUE", "NS", "shop"), "NS", "shop")
    run("FD.GET", "a", "NS", "shop")
    run("FD.FORGET", "a", "NS", "shop")
    run("FD.FORGET", "a", "NS", "shop")
    with pytest.raises(redis.ResponseError):
        run("FD.CLAIM", "a", "NONSENSE", "1")


def test_every_verb_of_the_redis_protocol_is_counted() -> None:
    with Sidecar() as sidecar, sidecar.client() as ask:
        ask_all(ask)
        text = sidecar.figures()
        done = {
            ("claim", "acquired"): 3,
            ("claim", "in_progress"): 1,
            ("renew", "ok"): 1,
            ("complete", "ok"): 1,
            ("complete", "claim_lost"): 1,
            ("release", "ok"): 1,
            ("fail", "ok"): 1,
            ("issue", "ok"): 2,
            ("redeem", "acquired"): 1,
            ("consume", "acquired"): 1,
            ("get", "ok"): 1,
            ("forget", "ok"): 1,
            ("forget", "absent"): 1,
        }
        for (verb, outcome), count in done.items():
            assert figure(text, TOTAL, namespace="shop", verb=verb, outcome=outcome) == count, (verb, outcome)
        assert figure(text, TOTAL) == 16
        assert figure(text, "fastdedup_bad_requests_total") == 1
        assert figure(text, "fastdedup_connections", wire="resp") == 1
        assert figure(text, "fastdedup_connections", wire="http") == 1  # it is asking
        assert figure(text, "process_resident_memory_bytes") > 0


def test_what_http_is_answered_is_counted_too() -> None:
    with Sidecar() as sidecar:
        with sidecar.http() as ask:
            owner = ask.post("/v1/claims", json={"key": "a", "namespace": "shop"}).json()["owner"]
            assert ask.post("/v1/claims", json={"key": "a", "namespace": "shop"}).status_code == 409
            done = {"key": "a", "owner": owner, "namespace": "shop"}
            assert ask.post("/v1/claims/complete", json=done).status_code == 200
            lost = {"key": "a", "owner": "somebody", "namespace": "shop"}
            assert ask.post("/v1/claims/complete", json=lost).status_code == 409
            many = [{"op": "claim", "key": str(number), "namespace": "sms"} for number in range(5)]
            assert ask.post("/v1/batch", json=many).status_code == 200
            record = {"key": "a", "namespace": "shop"}
            assert ask.get("/v1/records", params=record).status_code == 200
            assert ask.get("/v1/records", params=record | {"key": "new"}).status_code == 404
            assert [ask.delete("/v1/records", params=record).json()["forgotten"] for _ in "12"] == [
                True,
                False,
            ]
            assert ask.get("/v1/records/list", params={"namespace": "shop"}).status_code == 200
        text = sidecar.figures()
    assert figure(text, TOTAL, namespace="shop", verb="claim", outcome="acquired") == 1
    assert figure(text, TOTAL, namespace="shop", verb="claim", outcome="in_progress") == 1
    assert figure(text, TOTAL, namespace="shop", verb="complete", outcome="ok") == 1
    assert figure(text, TOTAL, namespace="shop", verb="complete", outcome="claim_lost") == 1
    assert figure(text, TOTAL, namespace="sms", verb="claim", outcome="acquired") == 5
    for verb, outcome in (
        ("get", "ok"),
        ("get", "absent"),
        ("forget", "ok"),
        ("forget", "absent"),
        ("list", "ok"),
    ):
        assert figure(text, TOTAL, namespace="shop", verb=verb, outcome=outcome) == 1, (verb, outcome)
    assert figure(text, "fastdedup_bad_requests_total") == 0  # an absent record is no fault of the request


def test_namespaces_that_nobody_configured_do_not_multiply_without_end() -> None:
    config = "[limits]\nnamespaces = 2\n"
    with Sidecar(config=config) as sidecar, sidecar.client() as ask:
        for number in range(10):
            try:
                ask.execute_command("FD.CLAIM", "k", "NS", f"made-up-{number}")
            except redis.ResponseError as error:
                assert "namespaces" in str(error)  # noqa: PT017 -- some are let in, the others are not
        text = sidecar.figures()
    named = {line.split('namespace="')[1].split('"')[0] for line in text.splitlines() if "namespace=" in line}
    assert len(named) <= 4


# Metrics and health over TCP: for those who cannot open the socket, and nothing else


sidecar = fixture_of(Sidecar, "--metrics-address", "127.0.0.1:0", "--log-format", "json", scope="module")


@pytest.fixture(scope="module")
def address(sidecar: Sidecar) -> str:
    """The address with the port that the system chose, as the log tells it."""
    lines = map(json.loads, sidecar.log.splitlines())
    return next(str(line["metrics"]) for line in lines if line["event"] == "started")


http = fixture_with(
    lambda address: httpx.Client(base_url=f"http://{address}", timeout=DEADLINE), scope="module"
)


def test_the_port_shows_what_the_socket_shows(sidecar: Sidecar, http: httpx.Client) -> None:
    with sidecar.client() as redis:
        redis.execute_command("FD.CLAIM", "secret-key")
    text = http.get("/metrics").text
    assert figure(text, "fastdedup_operations_total", verb="claim", outcome="acquired") == 1
    assert "secret-key" not in text
    assert http.get("/healthz").json()["status"] == "ok"
    assert http.get("/readyz").json()["ready"] is True


def test_the_build_is_a_figure(http: httpx.Client) -> None:
    labels = {"version": __version__, "python": platform.python_version()}
    assert figure(http.get("/metrics").text, "fastdedup_build_info", **labels) == 1


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/claims"),
        ("POST", "/v1/batch"),
        ("DELETE", "/v1/records?key=k"),
        ("GET", "/v1/records?key=k"),
        ("GET", "/v1/gate?principal=everyone"),
        ("POST", "/v1/gate/orders"),
        ("GET", "/openapi.json"),
        ("POST", "/metrics"),
    ],
)
def test_the_port_answers_nothing_else(http: httpx.Client, method: str, path: str) -> None:
    answer = http.request(method, path, json={"key": "k"}, headers={"Idempotency-Key": "k"})
    assert answer.status_code == (405 if path == "/metrics" else 404)


def test_the_port_does_not_speak_the_redis_protocol(address: str) -> None:
    host, port = split_address(address)
    with socket.create_connection((host, port), DEADLINE) as connection:
        connection.sendall(b"*1\r\n$4\r\nPING\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 400 ")


def test_silent_connections_do_not_lock_the_port(address: str) -> None:
    with ExitStack() as stack:
        for _ in range(80):
            stack.enter_context(socket.create_connection(split_address(address), DEADLINE))
        assert httpx.get(f"http://{address}/healthz", timeout=DEADLINE).status_code == 200


def test_a_port_that_is_taken_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        sidecar = Sidecar("--metrics-address", address).begin()
        assert sidecar.process.wait(DEADLINE) == 1
    assert f"metrics_address: cannot listen at {address}: " in sidecar.log
    assert "Traceback" not in sidecar.log
    sidecar.stop()


def test_a_port_that_is_open_to_the_network_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whatever other tests of this process have set up for logs.
    log = logging.getLogger("fastdedup.sidecar")
    monkeypatch.setattr(log, "disabled", False)
    monkeypatch.setattr(log, "propagate", False)
    monkeypatch.setattr(log, "handlers", [caplog.handler])
    caplog.set_level(logging.WARNING, logger=log.name)
    assert (_shown("127.0.0.1", 1), _shown("::1", 1)) == ("127.0.0.1:1", "[::1]:1")
    assert not caplog.messages
    assert _shown("0.0.0.0", 1) == "0.0.0.0:1"
    assert caplog.messages == ["metrics are open to the network, without a password"]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("127.0.0.1:9464", ("127.0.0.1", 9464)),
        ("localhost:1", ("127.0.0.1", 1)),
        ("[::1]:9464", ("::1", 9464)),
        ("0.0.0.0:9464", ("0.0.0.0", 9464)),
    ],
)
def test_an_address_is_an_ip_address_and_a_port(written: str, read: tuple[str, int]) -> None:
    assert split_address(written) == read


@pytest.mark.parametrize(
    "written",
    ["", "9464", ":9464", "::1:9464", "[127.0.0.1]:1", "example.org:1", "1.2.3.4:", "1.2.3.4:65536", "[]:1"],
)
def test_another_text_is_no_address(written: str) -> None:
    with pytest.raises(ValueError, match=r"127\.0\.0\.1:9464"):
        split_address(written)
