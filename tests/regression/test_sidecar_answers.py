"""What a sidecar answers and refuses: one catalogue, each mistake told, each limit kept."""

from __future__ import annotations

import httpx
import pytest
import redis

from fastdedup import Dedup, LocalLRU
from fastdedup.errors import ConfigError
from fastdedup.kernel.keyspace import Keyspace, Kind
from fastdedup.kernel.operations import AdoptOp, ClaimOp, Op, SettleOp
from fastdedup.kernel.owners import draw_owner
from fastdedup.kernel.records import Holding
from fastdedup.kernel.terms import Mode, terms
from fastdedup.sidecar.client import fetch
from fastdedup.sidecar.http import problems as sidecars
from fastdedup.sidecar.service.config import load
from fastdedup.sidecar.service.mistakes import Mistakes
from fastdedup.stores.redis.verbs import FACES
from fastdedup.stores.sidecar.answers import read
from fastdedup.web import problems as webs

from ..fixtures import fixture_with
from ..ops import stored
from ..servers import RedisServer
from ..sidecar.running import Sidecar, figure

# A problem has one type and one status wherever it is met, and a time of the wire names its unit. The
# sidecar's `retry_after` was milliseconds, Python's is seconds; the same problem had another type in the
# web and in the sidecar, `key-reused` another name as well.


URN = "urn:fastdedup:problem:"


sidecar = fixture_with(lambda server: Sidecar("--url", server.url), scope="module")
http = fixture_with(lambda sidecar: sidecar.http(), scope="module")


def test_a_type_has_one_status_in_web_and_sidecar() -> None:
    web = {problem.type: problem.status for problem in webs.PROBLEMS}
    sidecar = {problem.type: problem.status for problem in sidecars.PROBLEMS}
    shared = web.keys() & sidecar.keys()
    assert {name.removeprefix(URN) for name in shared} == {
        "in-progress",
        "claim-lost",
        "body-too-large",
        "key-reused",
        "key-missing",
        "key-malformed",
        "principal-required",
        "unavailable",
    }
    assert all(web[name] == sidecar[name] for name in shared)
    assert all(name.startswith(URN) for name in web.keys() | sidecar.keys())


def test_the_document_names_the_unit(http: httpx.Client) -> None:
    schemas = http.get("/openapi.json").json()["components"]["schemas"]
    told = schemas["ClaimProblem"]["properties"]["retry_after"]["description"]
    assert told.startswith("Seconds")


# A name that stands twice in a body is refused: two parsers took one of the two each, so a key could be
# another. A batch of bare claims goes by a fast parser, which took the last; the models took another.


TWICE = [
    '"key": "a", "key": "b"',
    '"key":"a","key":"b"',
    '"key":"a","k\\u0065y":"b"',
    '"key":"a","key"\t:"b"',
    '"key":"a","key"\r\n:"b"',
    '"key":"a","fingerprint":1,"fingerprint":{"x":1}',
]


@pytest.mark.parametrize("members", TWICE)
def test_a_claim_with_a_name_twice_is_refused(http: httpx.Client, members: str) -> None:
    answer = http.post("/v1/claims", content="{" + members + "}")
    assert (answer.status_code, answer.json()["type"].rpartition(":")[2]) == (422, "invalid-request")
    assert "is given twice" in answer.json()["detail"]


@pytest.mark.parametrize("members", TWICE)
@pytest.mark.parametrize("options", ["", ',"wait":0'])
def test_a_batch_with_a_name_twice_is_refused(http: httpx.Client, members: str, options: str) -> None:
    plain = '{"op":"claim","key":"plain"}'
    answer = http.post("/v1/batch", content=f'[{plain},{{"op":"claim",{members}{options}}}]')
    assert (answer.status_code, answer.json()["type"].rpartition(":")[2]) == (422, "invalid-request")
    assert http.get("/v1/records", params={"key": "plain"}).status_code == 404


@pytest.mark.parametrize(
    "members",
    ['"key" : "spaced"', '"key":"a\\":b"', '"key":"order:1","fingerprint":{"a":1,"b":[{"a":1}]}'],
)
def test_names_within_values_and_spaces_are_let_be(http: httpx.Client, members: str) -> None:
    assert http.post("/v1/claims", content="{" + members + "}").status_code == 201
    content = '[{"op":"claim","namespace":"batch",' + members + "}]"
    assert http.post("/v1/batch", content=content).json()[0]["status"] == 201


# What the sidecar ignored or answered wrongly in silence: settings, bad requests, MULTI, CLIENT REPLY, an
# outage. A misspelt variable was ignored, HTTP's own errors were not counted, looking at /readyz in an
# outage counted as a degraded operation, `CLIENT REPLY OFF` was answered OK, a claim inside a refused MULTI
# ran, and a 503 told the address of Redis to every client.


# Settings


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("FASTDEDUP_LEESE", "FASTDEDUP_LEESE: unknown setting; did you mean FASTDEDUP_LEASE?"),
        ("FASTDEDUP_LIMIT__FRAME", "FASTDEDUP_LIMIT__FRAME: unknown setting; did you mean FASTDEDUP_LIMITS?"),
        ("fastdedup_ulr", "fastdedup_ulr: unknown setting; did you mean FASTDEDUP_URL?"),
    ],
)
def test_a_misspelt_variable_is_a_mistake(monkeypatch: pytest.MonkeyPatch, name: str, told: str) -> None:
    monkeypatch.setenv(name, "5")
    monkeypatch.setenv("FASTDEDUP_TTL", "soon")
    with pytest.raises(Mistakes) as mistakes:
        load()
    assert told in mistakes.value.lines
    assert any(line.startswith("FASTDEDUP_TTL") for line in mistakes.value.lines)


@pytest.mark.parametrize(
    "name",
    [
        "FASTDEDUP_CONFIG",
        "FASTDEDUP_SERVICE_HOST",
        "FASTDEDUP_SERVICE_PORT_HTTP",
        "FASTDEDUP_PORT",
        "FASTDEDUP_PORT_6379_TCP_ADDR",
        "FASTDEDUPER",
    ],
)
def test_variables_of_others_are_left_alone(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "5")
    assert load().lease == 30.0


# Requests


def bad(sidecar: Sidecar) -> float:
    return figure(sidecar.figures(), "fastdedup_bad_requests_total")


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/claims", b"{", 400),
        ("POST", "/v1/claims", b'{"kee": "a"}', 422),
        ("POST", "/v1/claims/renew", b"{}", 422),
        ("POST", "/v1/batch", b"[]x", 400),
        ("GET", "/v1/nothing", b"", 404),
        ("PUT", "/v1/claims", b"", 405),
        ("POST", "/v1/claims", b"x" * 2_000_000, 413),
        ("GET", "/healthz" + "x" * 40_000, b"", 431),
    ],
)
def test_a_bad_http_request_is_counted(
    sidecar: Sidecar, method: str, path: str, body: bytes, status: int
) -> None:
    before = bad(sidecar)
    with sidecar.http() as ask:
        assert ask.request(method, path, content=body).status_code == status
    assert bad(sidecar) == before + 1


def test_an_answer_below_500_is_no_bad_request(sidecar: Sidecar) -> None:
    before = bad(sidecar)
    with sidecar.http() as ask:
        assert ask.post("/v1/claims", json={"key": "good"}).status_code == 201
        assert ask.post("/v1/claims", json={"key": "good"}).status_code == 409
        assert ask.post("/v1/claims/fail", json={"key": "good", "owner": "x"}).status_code == 409
        assert ask.post("/v1/tokens/consume", json={"token": "never"}).status_code == 404
        assert ask.get("/v1/records", params={"key": "none"}).status_code == 404
    assert bad(sidecar) == before


@pytest.mark.parametrize(
    "words", ["NOPE", "FD.CLAIM", "FD.CLAIM k LEASE soon", "FD.GET \xff", "FD.CLAIM k WAIT x"]
)
def test_a_bad_command_is_counted(sidecar: Sidecar, words: str) -> None:
    before = bad(sidecar)
    with sidecar.client() as ask, pytest.raises(redis.ResponseError):
        ask.execute_command(*words.encode("latin-1").split())
    assert bad(sidecar) == before + 1


# Commands


def test_nothing_inside_a_refused_multi_runs(sidecar: Sidecar) -> None:
    with sidecar.client() as ask:
        transaction = ask.pipeline(transaction=True)
        transaction.execute_command("FD.CLAIM", "in-multi")
        with pytest.raises(redis.ResponseError, match="there is no MULTI"):
            transaction.execute()
        assert ask.execute_command("FD.GET", "in-multi") is None  # on the same connection: EXEC has ended it
        for end in ("DISCARD", "RESET"):
            assert ask.execute_command(
                "MULTI"
            )  # an error here would be the end of it to phpredis, which sends no EXEC
            with pytest.raises(redis.ResponseError, match="not run"):
                ask.execute_command("FD.CLAIM", "in-multi")
            ask.execute_command(end)
        assert ask.execute_command("FD.CLAIM", "in-multi")[0] == b"acquired"


@pytest.mark.parametrize("mode", ["OFF", "SKIP"])
def test_replies_cannot_be_turned_off_in_silence(sidecar: Sidecar, mode: str) -> None:
    with sidecar.client() as ask:
        with pytest.raises(redis.ResponseError, match="every command is answered"):
            ask.execute_command("CLIENT", "REPLY", mode)
        assert ask.execute_command("CLIENT", "REPLY", "ON") in (b"OK", True)
        assert ask.ping()


# An outage


def test_an_outage_tells_no_client_where_redis_is() -> None:
    server = RedisServer().start()
    with (
        Sidecar(
            "--url", server.url, "--allow-stores", "--timeout", "0.4", "--on-unavailable", "reject"
        ) as sidecar,
        sidecar.client() as ask,
        sidecar.http() as http,
    ):
        assert ask.execute_command("FD.CLAIM", "a")[0] == b"acquired"
        server.stop()
        told = [http.post("/v1/claims", json={"key": "b"}).text, http.get("/v1/records?key=b").text]
        for words in (("FD.CLAIM", "b"), ("FD.GET", "b")):
            with pytest.raises(redis.ResponseError, match="UNAVAILABLE") as error:
                ask.execute_command(*words)
            told.append(str(error.value))
        told.append(str(ask.execute_command("FD.RUN", "read", 1, "t:=b")))
        assert all("the store does not answer" in text for text in told), told
        assert str(server.socket) not in "".join(told)
        assert str(server.socket) in sidecar.log

        before = figure(sidecar.figures(), "fastdedup_degraded_total")
        assert before > 0
        assert fetch(sidecar.path, "/readyz")[0] == 503
        assert figure(sidecar.figures(), "fastdedup_degraded_total") == before


# FD.RUN, with which a `sidecar://` store may write any record, is for sockets that say so, within the
# public limits. Every client of the socket could use it: for keys, leases and results beyond the limits of
# the public commands, and, by adopting a record under an owner that FD.GET shows, for a success that never
# was.


MOST = 100
TEN_YEARS = 10 * 365 * 86_400_000
OWNER = draw_owner()
KEYS = Keyspace("t", Kind.CLAIM)
WIRE = KEYS.wire("k")


limited_sidecar = fixture_with(
    lambda server: Sidecar("--url", server.url, "--allow-stores", config=f"max_result = {MOST}\n"),
    scope="module",
)
"""A sidecar that serves stores."""
trusting = fixture_with(lambda limited_sidecar: limited_sidecar.client())


def run(client: redis.Redis, op: Op) -> object:
    reply = client.execute_command("FD.RUN", op.verb.value, 1, op.wire, *FACES[op.verb].call([op])[1])
    (answer,) = read(reply, 1)
    return answer


def claim_of(wire: bytes, lease: int = 1000, keep: int = 2000) -> Op:
    return ClaimOp(wire, terms(Mode.CLAIM, lease, keep, False), draw_owner(), None)


def success(size: int) -> Op:
    return AdoptOp(
        WIRE, stored("S", OWNER, fence=1, left_ms=1, ttl_ms=9, payload=b"x" * size), Holding(OWNER, 1)
    )


def settle(size: int) -> Op:
    return SettleOp(WIRE, OWNER, 0, succeeded=True, keep_ms=1, payload=b"x" * size)


async def test_a_socket_serves_no_stores_unless_it_says_so(server: RedisServer) -> None:
    with Sidecar("--url", server.url) as limited_sidecar, limited_sidecar.client() as client:
        for words in (("FD.RUN", "read", 1, "t:=k"), ("FD.STORE", 2), ("FD.LISTEN",)):
            with pytest.raises(redis.ResponseError, match="serves no sidecar:// stores"):
                client.execute_command(*words)
        with pytest.raises(ConfigError, match="set allow_stores = true"):
            await Dedup(f"sidecar://{limited_sidecar.path}", on_unavailable=LocalLRU()).open()
        assert client.execute_command("FD.CLAIM", "plain")[0] == b"acquired"


@pytest.mark.parametrize(
    ("wire", "told"),
    [
        (KEYS.wire("k") + b"x" * 1024, "1 to 1024 bytes"),
        (KEYS.wire("k")[:-1], "1 to 1024 bytes"),
        (b"t:=\xff", "UTF-8"),
        (b"t:#short", "digest must have 16 bytes"),
    ],
)
def test_a_store_key_has_the_public_limits(trusting: redis.Redis, wire: bytes, told: str) -> None:
    with pytest.raises(redis.ResponseError, match=told):
        run(trusting, claim_of(wire))


@pytest.mark.parametrize(("lease", "keep"), [(TEN_YEARS + 1, TEN_YEARS + 2), (1, 2 * TEN_YEARS + 1)])
def test_a_lease_has_the_public_limits(trusting: redis.Redis, lease: int, keep: int) -> None:
    with pytest.raises(redis.ResponseError, match="out of bounds"):
        run(trusting, claim_of(WIRE, lease, keep))


@pytest.mark.parametrize("make", [settle, success])
def test_a_result_has_the_public_limit(trusting: redis.Redis, make: object) -> None:
    assert type(run(trusting, make(MOST + 1))).__name__ == "ResultTooLargeError"  # type: ignore[operator]
    assert type(run(trusting, make(MOST))).__name__ != "ResultTooLargeError"  # type: ignore[operator]


def test_keys_at_the_limits_are_taken(trusting: redis.Redis) -> None:
    readable = Keyspace("t", Kind.CLAIM, readable=1024)
    for wire in (readable.wire("x" * 1024), KEYS.wire("x" * 1024), KEYS.wire("\u20ac")):
        assert run(trusting, claim_of(wire, TEN_YEARS, 2 * TEN_YEARS)).outcome == "acquired"  # type: ignore[attr-defined]


@pytest.mark.parametrize("number", [2**64, 10**30, -(2**63) - 1])
@pytest.mark.parametrize("batch", [False, True])
async def test_a_large_integer_reaches_python_as_one(
    http: httpx.Client, server: RedisServer, number: int, batch: bool
) -> None:
    """Of a result or an error that a program in another language has stored over HTTP. It became a float."""

    def send(verb: str, **fields: object) -> None:
        at, body = f"/v1/claims/{verb}".removesuffix("/claim"), {**fields, "namespace": "large"}
        sent = http.post("/v1/batch", json=[{"op": verb, **body}]) if batch else http.post(at, json=body)
        assert sent.is_success, sent.text

    key = f"{number}-{batch}"
    for end in ({"result": {"cents": number}}, {"error": [number]}):
        verb = "complete" if "result" in end else "fail"
        send("claim", key=key + verb, owner="o")
        send(verb, key=key + verb, owner="o", **end)
    async with Dedup(server.url, namespace="large", timeout=5.0) as dedup:
        done, failed = [await dedup.claim(key + verb) for verb in ("complete", "fail")]
        assert (done.result, failed.error) == ({"cents": number}, [number])
        assert type(done.result["cents"]) is int
