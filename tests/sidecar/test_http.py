"""Every request of the HTTP wire, and every status that it answers with."""

from __future__ import annotations

import itertools
import math
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from fastdedup import LocalLRU, fingerprint
from fastdedup.sidecar.limits import Limits
from fastdedup.sidecar.wire_verbs import VERBS, WireVerb

from ..fixtures import fixture_with
from ..programs import until
from .conftest import Running, Serve

PROBLEM = "application/problem+json"
NOWHERE = "unix:///nowhere/redis.sock"


http = fixture_with(lambda sidecar: sidecar.http())


def post(http: httpx.Client, path: str, body: Any, status: int) -> dict[str, Any]:
    answer = http.post(path, json=body)
    assert answer.status_code == status, answer.text
    facts = answer.json()
    shaped = PROBLEM if status >= 400 else "application/json"
    assert answer.headers["content-type"] == shaped
    if status >= 400:
        assert facts["status"] == status
        assert facts["type"].startswith("urn:fastdedup:problem:")
        assert facts["title"]
    return facts


def held(http: httpx.Client, key: str = "k", **more: Any) -> dict[str, Any]:
    claim = post(http, "/v1/claims", {"key": key, **more}, 201)
    return {"key": key, "owner": claim["owner"], "fence": claim["fence"]}


def test_a_first_claim_is_acquired(http: httpx.Client) -> None:
    claim = post(http, "/v1/claims", {"key": "k", "lease": 5000}, 201)
    assert set(claim) == {
        "outcome", "owner", "fence", "attempt", "lease", "result", "error", "retry_after", "degraded",
    }  # fmt: skip
    assert (claim["outcome"], claim["attempt"], claim["degraded"]) == ("acquired", 1, False)
    assert len(claim["owner"]) == 20
    assert 4000 < claim["lease"] <= 5000
    assert claim["result"] is claim["error"] is claim["retry_after"] is None


def test_a_duplicate_in_progress_is_told_when_to_retry(http: httpx.Client) -> None:
    first = held(http, lease=2500)
    answer = http.post("/v1/claims", json={"key": "k"})
    facts = answer.json()
    assert answer.status_code == 409
    assert answer.headers["content-type"] == PROBLEM
    assert (facts["type"], facts["outcome"]) == ("urn:fastdedup:problem:in-progress", "in_progress")
    assert 1.5 < facts["retry_after"] <= 2.5
    assert answer.headers["retry-after"] == str(math.ceil(facts["retry_after"]))
    assert facts["owner"] != first["owner"]


def test_a_duplicate_of_a_success_gets_its_result(http: httpx.Client) -> None:
    result = {"order": 7, "big": 10**30, "text": "ü\u0000", "list": [1.5, None, True]}
    assert post(http, "/v1/claims/complete", {**held(http), "result": result}, 200) == {}
    claim = post(http, "/v1/claims", {"key": "k"}, 200)
    assert claim["outcome"] == "succeeded"
    assert claim["result"]["text"] == "ü\u0000"
    assert claim["result"] == result
    assert claim["error"] is claim["lease"] is None


def test_a_duplicate_of_a_failure_gets_its_error(http: httpx.Client) -> None:
    post(http, "/v1/claims/fail", {**held(http), "error": "no stock", "ttl": 60_000}, 200)
    claim = post(http, "/v1/claims", {"key": "k"}, 200)
    assert (claim["outcome"], claim["error"], claim["result"]) == ("failed", "no stock", None)


def test_another_fingerprint_is_a_mismatch(http: httpx.Client) -> None:
    held(http, fingerprint={"b": 1, "a": 2})
    same = {"key": "k", "fingerprint": {"a": 2, "b": 1}}
    assert post(http, "/v1/claims", same, 409)["outcome"] == "in_progress"
    digest = fingerprint({"a": 2, "b": 1}).hex()
    assert post(http, "/v1/claims", {"key": "k", "fingerprint": digest}, 422)["outcome"] == "mismatch"
    facts = post(http, "/v1/claims", {"key": "k", "fingerprint": "else"}, 422)
    assert (facts["type"], facts["outcome"]) == ("urn:fastdedup:problem:key-reused", "mismatch")


def test_a_renewed_lease_starts_anew(http: httpx.Client) -> None:
    assert post(http, "/v1/claims/renew", {**held(http, lease=1000), "lease": 60_000}, 200) == {
        "lease": 60_000
    }
    assert post(http, "/v1/claims", {"key": "k"}, 409)["retry_after"] > 50


def test_a_renewal_without_a_lease_never_shortens_one(http: httpx.Client) -> None:
    """It took the namespace's 30 s from a claim with a lease of ten minutes: two owners were at work."""
    mine = held(http, lease=600_000)
    assert post(http, "/v1/claims/renew", mine, 200)["lease"] > 500_000
    assert http.post("/v1/batch", json=[{"op": "renew", **mine}]).json()[0]["body"]["lease"] > 500_000
    assert http.get("/v1/records", params={"key": "k"}).json()["lease"] > 500_000
    assert post(http, "/v1/claims/renew", {**mine, "lease": 1000}, 200) == {"lease": 1000}
    assert post(http, "/v1/claims/renew", mine, 200) == {"lease": 30_000}
    token = post(http, "/v1/tokens", {}, 201)["token"]
    owner = post(http, "/v1/tokens/redeem", {"token": token, "lease": 600_000}, 201)["owner"]
    redeemed = {"key": token, "token": True, "owner": owner}
    assert post(http, "/v1/claims/renew", redeemed, 200)["lease"] > 500_000


def test_a_touched_record_lives_longer(http: httpx.Client) -> None:
    mine = held(http, lease=1000, ttl=1000)
    assert post(http, "/v1/claims/touch", {**mine, "ttl": 60_000}, 200) == {}
    record = http.get("/v1/records", params={"key": "k"}).json()
    assert record["lease"] <= 1000
    assert record["ttl"] > 50_000


@pytest.mark.parametrize("verb", ["complete", "fail", "release", "renew", "touch"])
def test_whoever_is_not_the_owner_settles_nothing(http: httpx.Client, verb: str) -> None:
    mine = held(http)
    facts = post(http, f"/v1/claims/{verb}", {**mine, "owner": "somebody else"}, 409)
    assert facts["type"] == "urn:fastdedup:problem:claim-lost"
    stale = {**mine, "fence": mine["fence"] + 1}
    assert post(http, f"/v1/claims/{verb}", stale, 409)["type"] == "urn:fastdedup:problem:claim-lost"
    assert post(http, f"/v1/claims/{verb}", {"key": mine["key"], "owner": mine["owner"]}, 200) is not None


def test_namespaces_keep_keys_apart(http: httpx.Client) -> None:
    held(http)
    held(http, namespace="other")
    facts = post(http, "/v1/claims", {"key": "k", "namespace": "other"}, 409)
    assert facts["outcome"] == "in_progress"


# Tokens


def test_a_token_is_consumed_once(http: httpx.Client) -> None:
    token = post(http, "/v1/tokens", {"subject": "user:7", "ttl": 60_000}, 201)
    assert token["ttl"] == 60_000
    ask = {"token": token["token"], "subject": "user:7"}
    assert post(http, "/v1/tokens/consume", {**ask, "subject": "user:8"}, 422)["outcome"] == "mismatch"
    assert post(http, "/v1/tokens/consume", ask, 200) == {"outcome": "acquired", "degraded": False}
    used = post(http, "/v1/tokens/consume", ask, 409)
    assert (used["type"], used["outcome"]) == ("urn:fastdedup:problem:token-used", "succeeded")


def test_an_unknown_token_is_not_found(http: httpx.Client) -> None:
    assert (
        post(http, "/v1/tokens/consume", {"token": "never"}, 404)["type"]
        == "urn:fastdedup:problem:unknown-token"
    )
    facts = post(http, "/v1/tokens/redeem", {"token": "never"}, 404)
    assert (facts["type"], facts["outcome"]) == ("urn:fastdedup:problem:unknown-token", "unknown")


def test_a_redeemed_token_is_settled_as_a_claim(http: httpx.Client) -> None:
    token = post(http, "/v1/tokens", {}, 201)["token"]
    claim = post(http, "/v1/tokens/redeem", {"token": token, "lease": 9000, "ttl": 9000}, 201)
    busy = http.post("/v1/tokens/consume", json={"token": token})
    assert (busy.status_code, busy.json()["outcome"]) == (409, "in_progress")
    assert 1 <= int(busy.headers["retry-after"]) <= 9
    assert post(http, "/v1/tokens/redeem", {"token": token, "wait": 10}, 409)["outcome"] == "in_progress"
    mine = {"key": token, "token": True, "owner": claim["owner"]}
    post(http, "/v1/claims/complete", {**mine, "result": "order 1"}, 200)
    assert post(http, "/v1/tokens/redeem", {"token": token}, 200)["result"] == "order 1"


# Batches


def test_a_batch_mixes_operations(http: httpx.Client) -> None:
    mine, token = held(http, "a"), post(http, "/v1/tokens", {}, 201)["token"]
    others = [held(http, key) for key in ("b", "c", "d")]
    answers = http.post(
        "/v1/batch",
        json=[
            {"op": "claim", "key": "new"},
            {"op": "claim", "key": "new2", "owner": "me"},
            {"op": "complete", **mine, "result": [1]},
            {"op": "fail", **others[0]},
            {"op": "release", **others[1]},
            {"op": "renew", **others[2]},
            {"op": "issue"},
            {"op": "consume", "token": token},
            {"op": "redeem", "token": "never"},
            {"op": "complete", "key": "a", "owner": "nobody"},
            {"op": "claim", "key": "ü" * 1000},
        ],
    ).json()
    assert [answer["status"] for answer in answers] == [201, 201, 200, 200, 200, 200, 201, 200, 404, 409, 422]
    assert answers[0]["body"]["outcome"] == "acquired"
    assert answers[9]["body"]["type"] == "urn:fastdedup:problem:claim-lost"
    assert post(http, "/v1/claims", {"key": "a"}, 200)["result"] == [1]
    post(http, "/v1/claims/release", {"key": "new", "owner": answers[0]["body"]["owner"]}, 200)


def test_a_batch_of_duplicates_has_one_first(http: httpx.Client) -> None:
    answers = http.post("/v1/batch", json=[{"op": "claim", "key": "k"}] * 50).json()
    assert sorted(answer["status"] for answer in answers) == [201] + [409] * 49
    assert http.post("/v1/batch", json=[]).json() == []


def test_a_waiting_claim_in_a_batch_waits(http: httpx.Client) -> None:
    held(http)
    asks = [{"op": "claim", "key": "k", "wait": 20}, {"op": "claim", "key": "free"}]
    assert [answer["status"] for answer in http.post("/v1/batch", json=asks).json()] == [409, 201]


def test_a_batch_that_outlasts_its_leases_claims_again(http: httpx.Client, sidecar: Running) -> None:
    """It said "acquired" for a key that another owner had since the lease's end."""
    first, last = held(http, "first"), held(http, "last")
    brief = {"op": "claim", "lease": 300}
    asks = [
        {**brief, "key": "taken"},
        {**brief, "key": "free"},
        {**brief, "key": "first", "wait": 60_000},
        {"op": "claim", "key": "long"},
        {"op": "claim", "key": "last", "wait": 60_000},
    ]

    def holder(key: str) -> str:
        owner: str = http.get("/v1/records", params={"key": key}).json().get("owner", "")
        return owner

    def take(key: str) -> dict[str, Any]:
        return post(http, "/v1/claims", {"key": key, "wait": 60_000, "lease": 60_000}, 201)

    with ThreadPoolExecutor(1) as pool, sidecar.http() as second:
        batch = pool.submit(second.post, "/v1/batch", json=asks)
        until(lambda: holder("taken"), "the batch has claimed")
        assert take("taken")["attempt"] == 2
        post(http, "/v1/claims/release", first, 200)
        until(lambda: holder("first") not in ("", first["owner"]), "the batch has won what it waited for")
        take("first")
        post(http, "/v1/claims/release", last, 200)
        answers = batch.result().json()
    assert [answer["status"] for answer in answers] == [409, 201, 409, 201, 201]
    assert [answers[number]["body"]["attempt"] for number in (1, 3)] == [2, 1]


def test_a_batch_has_a_limit(serve: Serve) -> None:
    with serve(limits=Limits(batch=3)).http() as http:
        assert http.post("/v1/batch", json=[{"op": "issue"}] * 3).status_code == 200
        assert (
            post(http, "/v1/batch", [{"op": "issue"}] * 4, 422)["type"]
            == "urn:fastdedup:problem:invalid-request"
        )


# Administration


def test_a_record_is_shown_and_forgotten(http: httpx.Client) -> None:
    mine = held(http, "ordér 1", fingerprint="0" * 32, namespace="n")
    where = {"key": "ordér 1", "namespace": "n"}
    record = http.get("/v1/records", params=where).json()
    assert (record["state"], record["owner"], record["fence"]) == ("processing", mine["owner"], mine["fence"])
    assert (record["fingerprint"], record["attempt"]) == (fingerprint("0" * 32).hex(), 1)
    assert 0 < record["lease"] <= 30_000 < record["ttl"]
    assert http.delete("/v1/records", params=where).json() == {"forgotten": True}
    assert http.delete("/v1/records", params=where).json() == {"forgotten": False}
    missing = http.get("/v1/records", params=where)
    assert (missing.status_code, missing.json()["type"]) == (404, "urn:fastdedup:problem:no-record")


@pytest.mark.parametrize("query", ["", "key=", "key=a&key=b", "key=a&x=1", "key=%ff", "key=a&namespace=%20"])
def test_a_query_is_checked(http: httpx.Client, query: str) -> None:
    answer = http.get(f"/v1/records?{query}")
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:fastdedup:problem:invalid-request")


@pytest.mark.parametrize(
    ("method", "path", "name"),
    [
        ("GET", "/v1/ledgers/ids?x=1", "x"),
        ("GET", "/v1/ledgers/ids?namespace=n", "namespace"),
        ("POST", "/v1/claims?namespace=n", "namespace"),
        ("POST", "/v1/ledgers/ids/first?x=1", "x"),
        ("POST", "/v1/batch?x=1", "x"),
        ("DELETE", "/v1/records?key=a&x=1", "x"),
    ],
)
def test_a_parameter_that_a_request_does_not_take_is_named(
    http: httpx.Client, method: str, path: str, name: str
) -> None:
    """It was ignored beside a body, and of a ledger: a claim with ?namespace= was made in another namespace."""
    answer = http.request(method, path, json=None if method != "POST" else {"key": "a"})
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:fastdedup:problem:invalid-request")
    assert [fault["field"] for fault in answer.json()["errors"]] == [name]


def test_it_says_that_it_lives_and_is_ready(http: httpx.Client) -> None:
    assert http.get("/healthz").json()["status"] == "ok"
    assert http.get("/readyz").json() == {"ready": True, "breaker": "closed", "degraded": False}
    figures = http.get("/metrics")
    assert figures.headers["content-type"].startswith("text/plain")


def test_every_problem_has_a_page(http: httpx.Client) -> None:
    from fastdedup.sidecar.http.problems import PROBLEMS

    assert len(PROBLEMS) > 15
    for problem in PROBLEMS:
        page = http.get(f"/problems/{problem.name}")
        assert page.status_code == 200
        assert problem.title in page.text


# What is turned down


def test_an_unknown_address_is_not_found(http: httpx.Client) -> None:
    answer = http.get("/v2")
    assert (answer.status_code, answer.json()["type"]) == (404, "urn:fastdedup:problem:not-found")
    assert answer.json()["detail"] == "nothing is served at '/v2': GET /openapi.json lists all paths"


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/claims", "POST"),
        ("POST", "/healthz", "GET, HEAD"),
        ("PUT", "/v1/records", "DELETE, GET, HEAD"),
    ],
)
def test_a_wrong_method_is_told_the_right_ones(
    http: httpx.Client, method: str, path: str, allow: str
) -> None:
    answer = http.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allow)
    assert answer.json()["type"] == "urn:fastdedup:problem:method-not-allowed"


def test_head_is_get_without_its_body(http: httpx.Client) -> None:
    answer, full = http.head("/healthz"), http.get("/healthz")
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-length"] == full.headers["content-length"]


@pytest.mark.parametrize("path", ["/v1/claims", "/v1/batch", "/v1/tokens"])
@pytest.mark.parametrize("body", [b"", b"{", b'{"key":"\xff"}', b'{"key":"\\ud800"}', b"[" * 5000])
def test_a_body_that_is_no_json_is_malformed(http: httpx.Client, path: str, body: bytes) -> None:
    answer = http.post(path, content=body)
    assert (answer.status_code, answer.json()["type"]) == (400, "urn:fastdedup:problem:malformed-json")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "key"),
        ({"key": ""}, "key"),
        ({"key": 7}, "key"),
        ({"key": "k", "lease": "30"}, "lease"),
        ({"key": "k", "lease": 1.5}, "lease"),
        ({"key": "k", "lease": 0}, "lease"),
        ({"key": "k", "ttl": 10**12}, "ttl"),
        ({"key": "k", "ttl": True}, "ttl"),
        ({"key": "k", "wait": -1}, "wait"),
        ({"key": "k", "owner": "o" * 64}, "owner"),
        ({"key": "k", "namespace": "a b"}, "namespace"),
        ({"key": "k", "colour": "red"}, "colour"),
    ],
)
def test_a_wrong_field_is_named(http: httpx.Client, body: dict[str, Any], field: str) -> None:
    facts = post(http, "/v1/claims", body, 422)
    assert facts["type"] == "urn:fastdedup:problem:invalid-request"
    assert [error["field"] for error in facts["errors"]] == [field]
    batch = post(http, "/v1/batch", [{"op": "issue"}, {"op": "claim", **body}], 422)
    assert batch["errors"][0]["field"] == f"1.{field}"


@pytest.mark.parametrize(
    ("path", "body", "field", "message"),
    [
        ("/v1/ledgers/ids/first", {"ids": ["a", None]}, "ids.1", "must be text or a whole number"),
        ("/v1/ledgers/ids/first", {"ids": ["a", ""]}, "ids.1", "must have at least 1 character"),
        ("/v1/batch", [{"op": "issue"}, {}], "1.op", "is missing"),
        ("/v1/batch", [{"op": "s3cret"}], "0.op", "must be one of 'claim', 'complete', .*"),
        ("/v1/batch", [5], "0", "must be an object"),
        ("/v1/batch", [{"op": "claim"}] * 1001, "", "must have at most 1000 items, got 1001"),
        ("/v1/claims", [], "", "must be an object"),
        ("/v1/claims", {"key": "k", "lease": "s3cret"}, "lease", "must be a whole number of milliseconds"),
        ("/v1/claims", {"key": "k", "lease": 0.5}, "lease", "must be a whole number of milliseconds"),
        ("/v1/claims", {"key": "k", "wait": "5s"}, "wait", "must be a whole number of milliseconds"),
        ("/v1/claims/complete", {"key": "k", "owner": "o", "fence": "x"}, "fence", "must be a whole number"),
    ],
)
def test_a_mistake_is_named_by_its_path_in_the_body(
    http: httpx.Client, path: str, body: Any, field: str, message: str
) -> None:
    """The path had names of pydantic: `ids.1.constrained-str`, `1.claim.lease`; the message began "Value error"."""
    facts = post(http, path, body, 422)
    (error,) = facts["errors"]
    assert error["field"] == field
    assert re.fullmatch(message, error["message"])
    assert facts["detail"] == f"{field or 'the request'}: {error['message']}"
    assert "s3cret" not in str(facts)


WRONG = [None, True, -1, 0, 1.5, 1e300, "", "+1", "é", "x" * 70_000, [], [None], {}, {"a": 1}]


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb.fields], ids=lambda verb: verb.name)
def test_no_wrong_value_is_answered_in_the_words_of_python(http: httpx.Client, verb: WireVerb) -> None:
    path = verb.path.format(name="ids")
    found = []
    for name, value in itertools.product([field.name for field in verb.fields], WRONG):
        over = {"json": {name: value}} if verb.method == "POST" else {"params": {name: str(value)[:5000]}}
        answer = http.request(verb.method, path, **over)
        found += answer.json().get("errors", [])
    assert found
    for error in found:
        assert re.match("must (be|have|match) |is missing$|has too many digits$", error["message"]), error
        assert re.fullmatch("[a-z]+([.][0-9]+)?", error["field"]), error


def test_a_secret_is_not_repeated(http: httpx.Client) -> None:
    assert "s3cret" not in http.post("/v1/tokens/consume", json={"token": ["s3cret"]}).text


@pytest.mark.parametrize("body", [{"key": "ü" * 600}, {"key": "k", "owner": "ü" * 40}])
def test_bytes_count_not_characters(http: httpx.Client, body: dict[str, str]) -> None:
    assert post(http, "/v1/claims", body, 422)["type"] == "urn:fastdedup:problem:invalid-request"


def test_nan_is_no_json(http: httpx.Client) -> None:
    text = b'{"key":"k","owner":"o","result":[NaN]}'
    assert http.post("/v1/claims/complete", content=text).status_code == 422
    for path, body in (
        ("/v1/claims", b'{"key":"k","fingerprint":[NaN]}'),
        ("/v1/tokens", b'{"subject":NaN}'),
    ):
        told = http.post(path, content=body)
        assert told.status_code == 422
        assert "a fingerprint or a subject cannot hold NaN" in told.json()["detail"]  # in no words of Python


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "text/plain"}, 415),
        ({"content-encoding": "gzip"}, 415),
        ({"content-type": "application/json; charset=utf-8"}, 201),
        ({"content-type": "Application/JSON"}, 201),
        ({}, 201),
    ],
)
def test_bodies_are_json(http: httpx.Client, headers: dict[str, str], status: int) -> None:
    assert http.post("/v1/claims", content=b'{"key":"k"}', headers=headers).status_code == status


def test_a_large_body_is_refused(serve: Serve) -> None:
    with serve(limits=Limits(frame=1000)).http() as http:
        body = {"key": "k", "fingerprint": "x" * 1000}
        assert post(http, "/v1/claims", body, 413)["type"] == "urn:fastdedup:problem:body-too-large"
        chunked = http.post("/v1/tokens", content=iter([b'{"subject":"', b"x" * 700, b"x" * 700, b'"}']))
        assert chunked.status_code == 413


def test_a_large_result_is_refused_and_the_claim_stays(serve: Serve) -> None:
    with serve(max_result=100).http() as http:
        mine = held(http)
        facts = post(http, "/v1/claims/complete", {**mine, "result": "x" * 100}, 413)
        assert facts["type"] == "urn:fastdedup:problem:result-too-large"
        post(http, "/v1/claims/complete", {**mine, "result": "x"}, 200)


def test_namespaces_are_bounded(serve: Serve) -> None:
    with serve(limits=Limits(namespaces=2)).http() as http:
        for number in range(2):
            held(http, namespace=f"n{number}")
        assert "namespaces" in post(http, "/v1/claims", {"key": "k", "namespace": "n2"}, 422)["detail"]


# Without the store


def test_without_the_store_it_says_so(serve: Serve) -> None:
    with serve(NOWHERE, timeout=0.25).http() as http:
        assert http.get("/healthz").status_code == 200
        ready = http.get("/readyz")
        assert (ready.status_code, ready.json()["ready"]) == (503, False)
        for path, body in (
            ("/v1/claims", {"key": "k"}),
            ("/v1/claims", {"key": "k", "owner": "o"}),
            ("/v1/claims", {"key": "k", "wait": 5}),
            ("/v1/claims/release", {"key": "k", "owner": "o"}),
            ("/v1/tokens", {}),
            ("/v1/tokens/redeem", {"token": "t"}),
        ):
            answer = http.post(path, json=body)
            assert (answer.status_code, answer.json()["type"]) == (
                503,
                "urn:fastdedup:problem:unavailable",
            ), answer.text
            assert int(answer.headers["retry-after"]) >= 1
        answers = http.post("/v1/batch", json=[{"op": "claim", "key": "k"}]).json()
        assert answers[0]["status"] == 503


def test_without_the_store_the_policy_answers_visibly(serve: Serve) -> None:
    with serve(NOWHERE, on_unavailable=LocalLRU()).http() as http:
        claims = [post(http, "/v1/claims", {"key": f"k{number}"}, 201) for number in range(5)]
        assert all(claim["degraded"] for claim in claims)
        ready = http.get("/readyz")
        assert (ready.status_code, ready.json()) == (
            200,
            {"ready": True, "breaker": "open", "degraded": True},
        )


def test_a_foreign_value_is_left_alone(serve: Serve, redis_url: str, redis_server: Any) -> None:
    with redis_server.client() as raw, serve(redis_url).http() as http:
        raw.set("fastdedup:=k", "mine", px=60_000)
        assert post(http, "/v1/claims", {"key": "k"}, 409)["type"] == "urn:fastdedup:problem:foreign-record"
        assert (
            post(http, "/v1/claims", {"key": "k", "owner": "o"}, 409)["type"]
            == "urn:fastdedup:problem:foreign-record"
        )
        assert http.get("/v1/records", params={"key": "k"}).status_code == 409


def test_a_fault_of_ours_is_a_500(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("broken")

    with serve().http() as http:
        monkeypatch.setattr("fastdedup.sidecar.verbs.draw_owner", broken)
        assert post(http, "/v1/claims", {"key": "k"}, 500)["type"] == "urn:fastdedup:problem:internal-error"
        batch = [{"op": "claim", "key": "k", "lease": 1000}]
        assert http.post("/v1/batch", json=batch).json()[0]["status"] == 500
