"""`/v1/gate`, as nginx, Envoy and others ask it, without them. `test_gate_nginx.py` has a real one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fastdedup import LocalLRU, Outcome
from fastdedup.sidecar.http.gate import GateQuery
from fastdedup.sidecar.limits import Limits

from ..fixtures import fixture_with
from ..servers import RedisServer
from ..waiting import wait_until
from .conftest import Running, Serve
from .running import figure

GATE = "/v1/gate"
ANN = {"X-Api-Key": "ann", "Idempotency-Key": "k"}
BY = "principal=X-Api-Key"


http = fixture_with(lambda serve: serve().http())


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """One sidecar for all requests that make no claim."""
    sidecar = Running(tmp_path_factory.mktemp("gate") / "s.sock", "memory://", Limits(), {})
    sidecar.start()
    with sidecar.http() as http:
        yield http
    sidecar.stop()


def outcome(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.headers.get("fastdedup-outcome", "")


def settle(http: httpx.Client, passed: httpx.Response, verb: str = "complete", **facts: Any) -> None:
    names = ("key", "namespace", "owner", "fence")
    told: dict[str, Any] = {name: passed.headers[f"fastdedup-{name}"] for name in names}
    told["fence"] = int(told["fence"])
    assert http.post(f"/v1/claims/{verb}", json=told | facts).status_code == 200


def test_headers_say_what_the_body_says(http: httpx.Client) -> None:
    answer = http.get(f"{GATE}?{BY}&lease=5000&namespace=shop", headers=ANN)
    assert outcome(answer) == (200, "acquired")
    facts = answer.json()
    for name in ("key", "namespace", "owner", "fence", "attempt", "lease"):
        assert answer.headers[f"fastdedup-{name}"] == str(facts[name])
    assert (facts["lease"], facts["namespace"]) == (5000, "shop")
    assert "ann" not in facts["key"], "a principal may be a secret"


def test_a_duplicate_is_stopped_with_403_or_its_own_status(http: httpx.Client) -> None:
    http.get(f"{GATE}?{BY}&lease=5000", headers=ANN)
    stopped = http.get(f"{GATE}?{BY}", headers=ANN)
    assert outcome(stopped) == (403, "in_progress")
    assert stopped.json()["type"].endswith(":stopped")
    own = http.get(f"{GATE}?{BY}&deny=own", headers=ANN)
    assert outcome(own) == (409, "in_progress")
    assert own.json()["type"].endswith(":in-progress")
    assert {answer.headers["retry-after"] for answer in (stopped, own)} <= {"4", "5"}
    assert "fastdedup-owner" not in stopped.headers


@pytest.mark.parametrize(
    ("verb", "field", "told"), [("complete", "result", "succeeded"), ("fail", "error", "failed")]
)
def test_a_settled_claim_is_stopped_with_its_result(
    http: httpx.Client, verb: str, field: str, told: str
) -> None:
    settle(http, http.get(f"{GATE}?{BY}", headers=ANN), verb, **{field: {"name": 'Zoë "😀"\n'}})
    for deny, status in (("403", 403), ("own", 409)):
        answer = http.get(f"{GATE}?{BY}&deny={deny}", headers=ANN)
        assert outcome(answer) == (status, told)
        assert answer.headers[f"fastdedup-{field}"] == r'{"name":"Zo\u00eb \"\ud83d\ude00\"\n"}'
        assert answer.json()[field] == {"name": 'Zoë "😀"\n'}
        assert "retry-after" not in answer.headers


def test_a_result_that_is_too_long_for_a_header_stands_in_the_body_alone(http: httpx.Client) -> None:
    settle(http, http.get(f"{GATE}?{BY}", headers=ANN), result="é" * 400)
    answer = http.get(f"{GATE}?{BY}", headers=ANN)
    assert "fastdedup-result" not in answer.headers
    assert answer.json()["result"] == "é" * 400


def test_lines_of_a_result_stay_one_header(serve: Serve) -> None:
    sidecar = serve()
    with sidecar.http() as http:
        passed = http.get(f"{GATE}?{BY}", headers=ANN).headers
        with sidecar.raw() as raw:  # the Redis protocol takes any bytes for a result
            words = [b"FD.COMPLETE", passed["fastdedup-key"].encode(), passed["fastdedup-owner"].encode()]
            words.append(b'{"a":\r\nInjected: 1}\r\n'.replace(b"Injected: ", b""))
            raw.sendall(b"*4\r\n" + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words))
            assert raw.recv(100) == b"+OK\r\n"
        answer = http.get(f"{GATE}?{BY}", headers=ANN)
    assert answer.headers["fastdedup-result"].split() == ['{"a":', "1}"]
    assert answer.json()["result"] == {"a": 1}


def test_a_released_key_passes_again(http: httpx.Client) -> None:
    first = http.get(f"{GATE}?{BY}", headers=ANN)
    settle(http, first, "release")
    again = http.get(f"{GATE}?{BY}", headers=ANN)
    assert outcome(again) == (200, "acquired")
    assert int(again.headers["fastdedup-fence"]) > int(first.headers["fastdedup-fence"])
    assert again.headers["fastdedup-attempt"] == "2"


def test_a_key_passes_once_where_nobody_settles(http: httpx.Client) -> None:
    once = f"{GATE}?{BY}&once=60000"
    assert outcome(http.get(once, headers=ANN)) == (200, "acquired")
    again = http.get(once, headers=ANN)
    assert outcome(again) == (403, "succeeded")
    assert "retry-after" not in again.headers
    assert http.get(f"{once}&deny=own", headers=ANN).json()["type"].endswith(":passed-before")


async def test_once_ends_after_its_time(http: httpx.Client) -> None:
    once = f"{GATE}?{BY}&once=50"
    assert outcome(http.get(once, headers=ANN)) == (200, "acquired")  # noqa: ASYNC212 -- the sidecar has a thread
    await wait_until(lambda: http.get(once, headers=ANN).is_success, description="the key passes again")


def test_a_duplicate_may_wait_for_the_result(serve: Serve) -> None:
    sidecar = serve()
    with sidecar.http() as http:
        first = http.get(f"{GATE}?{BY}", headers=ANN)
        sidecar.loop.call_soon_threadsafe(
            sidecar.loop.call_later, 0.05, lambda: sidecar.loop.create_task(complete(sidecar, first))
        )
        waited = http.get(f"{GATE}?{BY}&wait=10000", headers=ANN)
    assert (outcome(waited), waited.json()["result"]) == ((403, "succeeded"), 7)


async def complete(sidecar: Running, passed: httpx.Response) -> None:
    told = passed.headers
    claim = sidecar.namespaces.root.claim(told["fastdedup-key"], owner=told["fastdedup-owner"])
    await (await claim).complete(b"7")


def test_callers_and_routes_and_namespaces_do_not_share_keys(http: httpx.Client) -> None:
    asks = [
        (BY, ANN),
        (BY, ANN | {"X-Api-Key": "bob"}),
        ("principal=everyone", ANN),
        (f"{BY}&namespace=other", ANN),
        *(
            (f"{BY}&route=X-Route", ANN | {"X-Route": route})
            for route in (b"/a", b"/b|", b"/b\\|", b"/\xe9", b"x" * 300)
        ),
    ]
    answers = [http.get(f"{GATE}?{query}", headers=headers) for query, headers in asks]
    assert {outcome(answer) for answer in answers} == {(200, "acquired")}
    again = [http.get(f"{GATE}?{query}", headers=headers) for query, headers in asks]
    assert {outcome(answer) for answer in again} == {(403, "in_progress")}


def test_another_fingerprint_is_a_mismatch(http: httpx.Client) -> None:
    ask = f"{GATE}?{BY}&fingerprint=Content-Digest"
    http.get(ask, headers=ANN | {"Content-Digest": "sha-256=:YQ==:"})
    for deny, status in (("403", 403), ("own", 422)):
        other = http.get(f"{ask}&deny={deny}", headers=ANN | {"Content-Digest": "sha-256=:Yg==:"})
        assert outcome(other) == (status, "mismatch")


@pytest.mark.parametrize("envoy", [False, True])
def test_another_host_is_a_mismatch(http: httpx.Client, envoy: bool) -> None:
    ask = ANN | ({"FastDedup-Gate": f"{BY}&deny=own"} if envoy else {})
    url = f"{GATE}/orders" if envoy else f"{GATE}?{BY}&deny=own"
    hosts = ["a.test", "b.test", "A.test.:80"]
    answers = [http.get(url, headers=ask | {"Host": host}) for host in hosts]
    assert [outcome(answer) for answer in answers] == [
        (200, "acquired"),
        (422, "mismatch"),
        (409, "in_progress"),
    ]


@pytest.mark.parametrize(
    ("query", "headers", "told", "own"),
    [
        (BY, {"X-Api-Key": "ann"}, "key-missing", 400),
        (BY, {"X-Api-Key": "ann", "Idempotency-Key": ""}, "key-missing", 400),
        (BY, ANN | {"Idempotency-Key": '"open'}, "key-malformed", 400),
        (BY, ANN | {"Idempotency-Key": "x" * 256}, "key-malformed", 400),
        (BY, ANN | {"Idempotency-Key": '"ends with a space "'}, "key-malformed", 400),
        (BY, [*ANN.items(), ("Idempotency-Key", "k")], "key-malformed", 400),
        (f"{BY}&key=X-Id", ANN | {"X-Id": "x" * 256}, "key-malformed", 400),
        (f"{BY}&key=X-Id", ANN | {"X-Id": b"\xe9"}, "key-malformed", 400),
        (BY, {"Idempotency-Key": "k"}, "principal-required", 400),
        (BY, ANN | {"X-Api-Key": ""}, "principal-required", 400),
        (BY, [*ANN.items(), ("X-Api-Key", "bob")], "invalid-request", 422),
        (f"{BY}&key=X-Id", [*ANN.items(), ("X-Id", "1"), ("X-Id", "2")], "invalid-request", 422),
    ],
)
def test_a_request_that_says_too_little_is_stopped(
    refusing: httpx.Client, query: str, headers: Any, told: str, own: int
) -> None:
    assert outcome(refusing.get(f"{GATE}?{query}", headers=headers)) == (403, told)
    assert outcome(refusing.get(f"{GATE}?{query}&deny=own&missing=refuse", headers=headers)) == (own, told)


def test_a_request_without_a_key_may_pass(refusing: httpx.Client) -> None:
    answer = refusing.get(f"{GATE}?{BY}&missing=pass", headers={"X-Api-Key": "ann"})
    assert outcome(answer) == (200, "no-key")
    assert answer.json() == {"outcome": "no-key"}


@pytest.mark.parametrize(
    "query",
    [
        "",
        "principal=X_Api_Key",
        f"{BY}&lease=0",
        f"{BY}&deny=401",
        f"{BY}&missing=ok",
        f"{BY}&once=5&lease=7",
        f"{BY}&colour=red",
        f"{BY}&{BY}",
        f"{BY}&namespace=a b",
    ],
)
def test_a_wrong_parameter_is_the_proxys_fault(refusing: httpx.Client, query: str) -> None:
    """Not 403: nginx then answers 500 and logs it, instead of stopping every client without a word."""
    answer = refusing.get(f"{GATE}?{query}", headers=ANN)
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:fastdedup:problem:invalid-request")


# Envoy: its client's method and path behind a prefix


def test_envoys_requests_take_their_parameters_from_its_own_header(http: httpx.Client) -> None:
    ask = ANN | {"FastDedup-Gate": f"{BY}&namespace=shop&deny=own"}
    first = http.request("POST", f"{GATE}/orders/7?principal=everyone&missing=pass", headers=ask, content=b"")
    assert (outcome(first), first.headers["fastdedup-namespace"]) == ((200, "acquired"), "shop")
    assert outcome(http.post(f"{GATE}/orders/7?other=1", headers=ask)) == (409, "in_progress")
    assert outcome(http.put(f"{GATE}/orders/7", headers=ask)) == (200, "acquired")
    assert outcome(http.post(f"{GATE}/orders/8", headers=ask)) == (200, "acquired")


def test_envoys_clients_do_not_leave_the_gate_by_dots(serve: Serve) -> None:
    with serve().raw() as raw:
        head = f"fastdedup-gate: {BY}\r\nx-api-key: ann\r\nidempotency-key: k\r\n"
        raw.sendall(f"DELETE {GATE}/../../v1/records?key=a HTTP/1.1\r\nhost: x\r\n{head}\r\n".encode())
        answer = raw.recv(4096)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n"), answer
    assert b'"outcome":"acquired"' in answer


@pytest.mark.parametrize("given", [[], [BY, "principal=everyone"], [""], ["principal"]])
def test_without_one_header_of_envoy_nothing_passes(refusing: httpx.Client, given: list[str]) -> None:
    headers = [*ANN.items(), *(("FastDedup-Gate", value) for value in given)]
    assert refusing.post(f"{GATE}/orders?{BY}", headers=headers).status_code == 422


def test_a_clients_own_gate_header_is_not_read_elsewhere(refusing: httpx.Client) -> None:
    headers = {"Idempotency-Key": "k", "FastDedup-Gate": "principal=everyone&missing=pass"}
    assert outcome(refusing.get(f"{GATE}?{BY}", headers=headers)) == (403, "principal-required")


# The page, outages, figures


def test_the_page_names_each_parameter_and_each_outcome() -> None:
    page = (Path(__file__).parents[2] / "docs" / "sidecar.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^- ([^:]+):", page.partition("\nThe parameters:\n")[2].partition("\n**")[0], re.MULTILINE
    )
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named == GateQuery.model_fields.keys()
    outcomes = page.partition("| outcome |")[2].partition("\n\n")[0]
    assert {*Outcome} - {Outcome.UNKNOWN} <= set(re.findall(r"`([\w-]+)`", outcomes))


def test_in_an_outage_the_policy_answers(serve: Serve, redis_server: RedisServer, redis_url: str) -> None:
    strict = serve(redis_url, timeout=0.1)
    lax = serve(redis_url, timeout=0.1, namespace="lax", on_unavailable=LocalLRU())
    with strict.http() as http, lax.http() as local, redis_server.frozen():
        for deny in ("403", "own"):
            down = http.get(f"{GATE}?{BY}&deny={deny}", headers=ANN)
            assert outcome(down) == (503, "unavailable")
            assert int(down.headers["retry-after"]) >= 1
            assert "fastdedup-redis" not in down.text, "the store's address is not shown"
        passed = local.get(f"{GATE}?{BY}", headers=ANN)
        assert (outcome(passed), passed.headers["fastdedup-degraded"]) == ((200, "acquired"), "true")
        assert outcome(local.get(f"{GATE}?{BY}", headers=ANN)) == (403, "in_progress")


def test_the_gates_answers_are_counted(serve: Serve) -> None:
    with serve().http() as http:
        for _ in range(2):
            http.get(f"{GATE}?{BY}&namespace=shop", headers=ANN)
        http.get(f"{GATE}?{BY}&namespace=shop")
        text = http.get("/metrics").text
    counted = {
        name: figure(text, "fastdedup_operations_total", namespace="shop", verb="gate", outcome=name)
        for name in ("acquired", "in_progress", "key-missing")
    }
    assert counted == {"acquired": 1, "in_progress": 1, "key-missing": 1}


def test_the_body_says_when_to_ask_again_in_seconds(http: httpx.Client) -> None:
    """It has the name and the unit of the other answers; 403 once had a `retry_after_ms` that was always null."""
    http.get(f"{GATE}?{BY}&lease=5000", headers=ANN)
    stopped = http.get(f"{GATE}?{BY}", headers=ANN).json()
    assert 0 < stopped["retry_after"] <= 5
    passed_before = http.get(f"{GATE}?{BY}&once=5000&deny=own", headers=ANN).json()
    assert passed_before["outcome"] == "succeeded"
    assert passed_before["retry_after"] is None
    assert not any("retry_after_ms" in answer for answer in (stopped, passed_before))


@pytest.mark.parametrize(
    ("path", "other", "same"),
    [
        ("/p/a/b", "/p/a%2Fb", False),
        ("/p/a%2fb", "/p/a%2Fb", True),
        ("/p/a;b", "/p/a%3Bb", False),
        ("/p/a%2525", "/p/a%25", False),
        ("/p/%ff", "/p/%fe", False),
        ("/p/%61", "/p/a", True),
        ("/p/%C3%A9%2F", "/p/%c3%a9%2f", True),
    ],
)
def test_envoys_routes_are_apart_as_their_paths_are(
    serve: Serve, redis_url: str, path: str, other: str, same: bool
) -> None:
    """A caller that used its key for /a/b was refused at /a%2Fb, with the result of /a/b."""
    head = f"HTTP/1.1\r\nfastdedup-gate: {BY}\r\nx-api-key: ann\r\nidempotency-key: k\r\nconnection: close\r\n\r\n"
    statuses = []
    sidecar = serve(redis_url, timeout=5.0)
    for each in (path, other):
        with sidecar.raw() as raw:
            raw.sendall(f"GET {GATE}{each} {head}".encode())
            statuses.append(int(b"".join(iter(lambda: raw.recv(65_536), b""))[9:12]))
    assert statuses == [200, 403 if same else 200]
