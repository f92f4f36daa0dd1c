"""Ledgers for every language: FD.FIRST and `/v1/ledgers/…`, over a sidecar of its own and a real Redis."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis

from fastdedup import Dedup
from fastdedup.events import Event, LedgerFilling
from fastdedup.kernel.operations import ForgetOp
from fastdedup.sidecar.ledgers import MAX_IDS, Ledgers, UnknownLedgerError
from fastdedup.sidecar.service.config import load
from fastdedup.sidecar.service.mistakes import Mistakes
from fastdedup.sidecar.service.texts import summary
from fastdedup.stores.redis.scripts import pack

from ..fixtures import fixture_with
from ..servers import RedisServer
from ..waiting import wait_until
from .attacks import connect
from .running import Sidecar, client, figure

CONFIG = """
url = "{url}"
namespace = "shop"
timeout = 5.0
allow_stores = true

[namespaces.mail]

[ledgers.orders]
window = 3600
capacity = 10_000

[ledgers.letters]
window = 3600
capacity = 1000
namespace = "mail"

[ledgers.tiny]
window = 3600
capacity = 1

[ledgers.offsets]
window = 3600
capacity = 10_000
dense = true

[ledgers.other]
window = 60
capacity = 100

[[sockets]]
path = "{run}/mail.sock"
namespaces = ["mail"]

[[sockets]]
path = "{run}/look.sock"
verbs = "read"

[[sockets]]
path = "{run}/slow.sock"
claims_per_second = 10
"""


served = fixture_with(lambda server: Sidecar(config=CONFIG.replace("{url}", server.url)), scope="module")
resp = fixture_with(lambda served: served.client())


def ask(wire: redis.Redis, *command: Any) -> Any:
    return wire.execute_command(*command)


def post(served: Sidecar, address: str, body: Any) -> tuple[int, Any]:
    with served.http() as http:
        answer = http.post(f"/v1/ledgers/{address}", json=body)
    return answer.status_code, answer.json()


# Both wires


def test_a_dense_ledger_reads_numbers_from_text(served: Sidecar, resp: redis.Redis) -> None:
    """RESP has no integers among its arguments; what is no decimal text is refused."""
    assert ask(resp, "FD.FIRST", "offsets", 7, "8", b"7") == [1, 1, 0]
    assert post(served, "offsets/first", {"ids": ["8", 9]}) == (200, {"first": [False, True]})
    assert ask(resp, "FD.FORGETID", "offsets", "8") == [1]
    for bad in ("08", "-1", "x", "٣", str(2**63)):
        with pytest.raises(redis.ResponseError, match="a dense ledger"):
            ask(resp, "FD.FIRST", "offsets", bad)
        assert post(served, "offsets/first", {"ids": [bad]})[0] == 422


def test_each_id_is_the_first_once_on_both_wires(served: Sidecar, resp: redis.Redis) -> None:
    assert ask(resp, "FD.FIRST", "orders", "a", "b", "a") == [1, 1, 0]
    assert post(served, "orders/first", {"ids": ["b", "c", 7]}) == (200, {"first": [False, True, True]})
    assert ask(resp, "fd.first", "orders", b"7", b"\xff\x00") == [0, 1]
    assert ask(resp, "FD.SEEN", "orders", "a", "new") == [1, 0]
    assert post(served, "orders/seen", {"ids": ["a", "new"]}) == (200, {"seen": [True, False]})
    assert ask(resp, "FD.FORGETID", "orders", "a", "new") == [1, 0]
    assert post(served, "orders/forget", {"ids": ["b", "new"]}) == (200, {"forgotten": [True, False]})
    assert ask(resp, "FD.FIRST", "orders", "a", "b", "c") == [1, 1, 0]


def test_the_same_name_gets_the_same_answer(served: Sidecar, resp: redis.Redis) -> None:
    for _ in range(2):
        assert ask(resp, "FD.FIRST", "OWNER", "run-1", "orders", "n1", "n2") == [1, 1]
    named = {"ids": ["n1", "n3"], "owner": "run-1"}
    assert post(served, "orders/first", named)[1] == post(served, "orders/first", named)[1]
    assert ask(resp, "FD.FIRST", "orders", "n1", "n2", "n3") == [0, 0, 0]


def test_ids_may_be_the_names_of_options(resp: redis.Redis) -> None:
    assert ask(resp, "FD.FIRST", "NS", "shop", "orders", "OWNER", "NS", "mail") == [1, 1, 1]
    assert ask(resp, "FD.SEEN", "orders", "NS", "shop") == [1, 0]


def test_a_python_store_shares_the_ledger(served: Sidecar, resp: redis.Redis) -> None:
    """What stands in the store is the same, whoever asks."""
    ask(resp, "FD.FIRST", "orders", "from another language")

    async def main() -> list[bool]:
        # It waits two timeouts for an id that another process has just remembered.
        async with Dedup(f"sidecar://{served.path}", namespace="shop", timeout=1.0) as dedup:
            ledger = dedup.ledger("orders", window=timedelta(hours=1), capacity=10_000)
            return await ledger.first_many(["from another language", "from here"])

    assert asyncio.run(main()) == [False, True]
    assert ask(resp, "FD.SEEN", "orders", "from here") == [1]


def test_a_call_without_ids_is_answered_without_any(served: Sidecar, resp: redis.Redis) -> None:
    """So does `first_many([])`; in the Redis protocol it was a wrong number of arguments."""
    for verb, path, name in (
        ("FD.FIRST", "first", "first"),
        ("FD.SEEN", "seen", "seen"),
        ("FD.FORGETID", "forget", "forgotten"),
    ):
        assert ask(resp, verb, "orders") == ask(resp, verb, "NS", "shop", "orders") == []
        assert post(served, f"orders/{path}", {"ids": []}) == (200, {name: []})
    with pytest.raises(redis.ResponseError, match="serves no ledger 'nothing'"):
        ask(resp, "FD.FIRST", "nothing")


def test_a_call_takes_many_ids_and_no_more(served: Sidecar, resp: redis.Redis) -> None:
    ids = [f"many{n}" for n in range(MAX_IDS)]
    assert ask(resp, "FD.FIRST", "orders", *ids) == [1] * MAX_IDS
    assert ask(resp, "FD.SEEN", "orders", *ids) == [1] * MAX_IDS
    with pytest.raises(redis.ResponseError, match=f"at most {MAX_IDS} ids, got {MAX_IDS + 1}"):
        ask(resp, "FD.FIRST", "orders", *ids, "one more")
    assert post(served, "orders/first", {"ids": [*ids, "one more"]})[0] == 422
    assert ask(resp, "FD.SEEN", "orders", "one more") == [0]


def test_a_ledger_shows_what_it_holds(served: Sidecar, resp: redis.Redis) -> None:
    ask(resp, "FD.FIRST", "letters", "a", "b", "c")
    facts = json.loads(ask(resp, "FD.LEDGER", "letters"))
    with served.http() as http:
        assert http.get("/v1/ledgers/letters").json() == facts
        assert http.get("/v1/ledgers/orders/first").status_code == 405
    assert facts["ids"] == 3
    assert (facts["namespace"], facts["window"], facts["capacity"]) == ("mail", 3_600_000, 1000)


def test_answers_are_counted_by_ledger(served: Sidecar, resp: redis.Redis) -> None:
    def counts() -> list[float]:
        text, ids, done = served.figures(), "fastdedup_ledger_ids_total", "fastdedup_operations_total"
        return [
            figure(text, ids, namespace="mail", ledger="letters", answer="first"),
            figure(text, ids, namespace="mail", ledger="letters", answer="duplicate"),
            figure(text, done, namespace="mail", verb="first", outcome="ok"),
            figure(text, done, namespace="mail", verb="claim", outcome="acquired"),
        ]

    before = counts()
    ask(resp, "FD.FIRST", "letters", "counted", "counted", "counted too")
    post(served, "letters/first", {"ids": ["counted"]})
    ask(resp, "FD.CLAIM", "claimed", "REMEMBER", "letters")
    with served.http() as http:
        assert http.post("/v1/claims", json={"key": "claimed too", "remember": "letters"}).status_code == 201
    assert [now - then for now, then in zip(counts(), before, strict=True)] == [2, 2, 2, 2]


# Errors


def test_an_unknown_ledger_says_how_to_configure_it(served: Sidecar, resp: redis.Redis) -> None:
    with pytest.raises(
        redis.ResponseError, match=r"write a table \[ledgers.bills\] with window and capacity"
    ):
        ask(resp, "FD.FIRST", "bills", "a")
    status, problem = post(served, "bills/first", {"ids": ["a"]})
    assert (status, problem["type"]) == (404, "urn:fastdedup:problem:unknown-ledger")
    assert "[ledgers.bills]" in problem["detail"]
    with pytest.raises(redis.ResponseError, match="belongs to the namespace 'shop'"):
        ask(resp, "FD.FIRST", "NS", "mail", "orders", "a")


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        (["FD.FIRST"], "wrong number of arguments"),
        (["FD.FIRST", "OWNER", "me", "NS", "shop"], "wrong number of arguments"),
        (["FD.LEDGER"], "wrong number of arguments"),
        (["FD.FIRST", "OWNER"], "wrong number of arguments|followed by a value"),
        (["FD.SEEN", "OWNER", "me", "orders", "a"], "unknown option 'OWNER'"),
        (["FD.FIRST", "orders", ""], "the id is empty"),
        (["FD.FIRST", "OWNER", "x" * 64, "orders", "a"], "an owner must have"),
        (
            ["FD.LEDGER", "orders", "a"],
            r"wrong number of arguments for 'fd.ledger': write FD.LEDGER \[NS n\] ledger",
        ),
    ],
)
def test_a_wrong_command_says_what_is_wrong(resp: redis.Redis, command: list[str], wrong: str) -> None:
    with pytest.raises(redis.ResponseError, match=wrong):
        ask(resp, *command)


@pytest.mark.parametrize("body", [{}, {"ids": "a"}, {"ids": [""]}, {"ids": [True]}, {"ids": ["a"], "ttl": 1}])
def test_a_wrong_body_is_refused(served: Sidecar, body: Any) -> None:
    assert post(served, "orders/first", body)[0] == 422


def test_settings_that_differ_from_the_stores_are_no_fault_of_the_client(
    served: Sidecar, resp: redis.Redis
) -> None:
    async def found_it() -> None:
        async with Dedup(f"sidecar://{served.path}", namespace="shop") as dedup:
            await dedup.ledger("other", window=60, capacity=200).first("id")

    asyncio.run(found_it())
    bad = figure(served.figures(), "fastdedup_bad_requests_total")
    status, problem = post(served, "other/first", {"ids": ["a"]})
    assert (status, problem["type"]) == (500, "urn:fastdedup:problem:ledger-settings")
    assert "was created with capacity=200" in problem["detail"]
    with pytest.raises(redis.ResponseError, match="was created with capacity=200"):
        ask(resp, "FD.FIRST", "other", "a")
    assert figure(served.figures(), "fastdedup_bad_requests_total") == bad


def test_a_full_ledger_remembers_nothing(served: Sidecar, resp: redis.Redis) -> None:
    """It has one bucket, of 2,000 entries and the places for young ones."""
    for start in range(0, 2000, 500):
        ask(resp, "FD.FIRST", "tiny", *range(start, start + 500))
    with pytest.raises(redis.ResponseError, match=r"UNAVAILABLE 36000 a bucket .* is full"):
        ask(resp, "FD.FIRST", "tiny", *range(2000, 2900))
    status, problem = post(served, "tiny/first", {"ids": [f"x{n}" for n in range(300)]})
    assert (status, problem["type"]) == (503, "urn:fastdedup:problem:ledger-full")

    async def are_new() -> bool:
        return not any(ask(resp, "FD.SEEN", "tiny", *(f"x{n}" for n in range(300))))

    asyncio.run(wait_until(are_new, description="what fitted into free places is taken back"))


# Sockets


def test_a_socket_serves_the_ledgers_of_its_namespaces(served: Sidecar) -> None:
    with client(served.path.parent / "mail.sock") as mail:
        assert ask(mail, "FD.FIRST", "letters", "of mail") == [1]
        with pytest.raises(redis.ResponseError, match="no ledger 'orders', only: letters"):
            ask(mail, "FD.FIRST", "orders", "of mail")


def test_a_sidecar_without_ledgers_says_how_to_serve_one() -> None:
    with pytest.raises(UnknownLedgerError, match="serves no ledger 'orders'; to serve it, write a table"):
        Ledgers([]).find("orders")


def test_a_reading_socket_only_looks(served: Sidecar, resp: redis.Redis) -> None:
    ask(resp, "FD.FIRST", "orders", "looked at")
    with client(served.path.parent / "look.sock") as look:
        assert ask(look, "FD.SEEN", "orders", "looked at") == [1]
        assert json.loads(ask(look, "FD.LEDGER", "orders"))["ids"] > 0
        for name in ("FD.FIRST", "FD.FORGETID"):
            with pytest.raises(redis.exceptions.NoPermissionError):
                ask(look, name, "orders", "looked at")


def test_each_id_counts_towards_the_quota(served: Sidecar) -> None:
    with client(served.path.parent / "slow.sock") as slow:
        assert ask(slow, "FD.FIRST", "orders", *(f"quota{n}" for n in range(50))) == [1] * 50
        with pytest.raises(redis.ResponseError, match="claims_per_second"):
            ask(slow, "FD.FIRST", "orders", "quota50")


def test_ids_that_were_changed_are_told_though_replies_have_no_room(server: RedisServer) -> None:
    """The ids were remembered, and the answer was 503; what only looks is still refused."""
    config = f'url = "{server.url}"\n[limits]\nreplies_in_all = 4096\n[ledgers.long]\nwindow = 60\ncapacity = 1000\n'
    ids = {"ids": [str(n) for n in range(MAX_IDS)]}
    with Sidecar(config=config) as narrow, narrow.http() as http:
        verbs = ("first", "seen", "forget")
        answers = {verb: http.post(f"/v1/ledgers/long/{verb}", json=ids) for verb in verbs}
    assert answers["first"].json() == {"first": [True] * MAX_IDS}
    assert answers["seen"].status_code == 503
    assert answers["forget"].json() == {"forgotten": [True] * MAX_IDS}


def test_a_client_that_goes_leaves_nothing_remembered(
    served: Sidecar, server: RedisServer, resp: redis.Redis
) -> None:
    """Nobody was told that its ids are the first, so somebody else is."""
    ids = [f"gone{n}" for n in range(MAX_IDS)]
    assert ask(resp, "PING")

    told = ""

    async def are_forgotten() -> bool:
        nonlocal told
        try:
            remembered = sum(ask(resp, "FD.SEEN", "orders", *ids))
        except redis.ResponseError as error:  # the store does not answer yet
            told = str(error)
            return False
        told = f"{remembered} are remembered"
        return not remembered

    def clients() -> float:
        return figure(served.figures(), "fastdedup_connections", wire="resp")

    with connect(served.path) as wire:
        wire.sendall(pack("PING"))
        assert wire.recv(16) == b"+PONG\r\n"
        assert clients() == 2
        server.freeze()  # it must not answer before the sidecar has read the client's end
        try:
            with served.frozen():
                wire.sendall(pack("FD.FIRST", "orders", *ids))
                wire.close()
            asyncio.run(
                wait_until(
                    lambda: clients() == 1,
                    description="the sidecar has read the command, and the client's end",
                )
            )
        finally:
            server.thaw()
    asyncio.run(wait_until(are_forgotten, description=lambda: f"its ids are taken back; {told}"))


# Claims whose success a ledger remembers


def claims(served: Sidecar, verb: str, **body: Any) -> tuple[int, Any]:
    with served.http() as http:
        answer = http.post(f"/v1/claims{verb}", json=body)
    return answer.status_code, answer.json()


def end_echo(served: Sidecar, key: str) -> None:
    """Do what the end of the echo's minute does."""

    async def main() -> None:
        async with Dedup(f"sidecar://{served.path}", namespace="shop") as dedup:
            ledger = dedup.ledger("orders", window=timedelta(hours=1), capacity=10_000)
            found = await dedup.claim(key, remember=ledger)
            assert found.attempt == 1, "the echo is not there"
            await dedup.gate.run(ForgetOp(found.settlement.held_key[0]))

    asyncio.run(main())


def test_a_ledger_remembers_a_claim_over_the_redis_protocol(served: Sidecar, resp: redis.Redis) -> None:
    won = ask(resp, "FD.CLAIM", "resp:1", "REMEMBER", "orders", "FP", "a", "LEASE", 60_000)
    assert won[0] == b"acquired"
    assert ask(resp, "FD.CLAIM", "resp:1", "REMEMBER", "orders", "WAIT", 1)[0] == b"in_progress"
    assert ask(resp, "FD.CLAIM", "resp:1", "FP", "b", "REMEMBER", "orders")[0] == b"mismatch"
    assert ask(resp, "FD.SEEN", "orders", "resp:1") == [0]
    with pytest.raises(redis.ResponseError, match="LOST"):
        ask(resp, "FD.COMPLETE", "resp:1", "another", "x", "REMEMBER", "orders")
    assert ask(resp, "FD.RENEW", "resp:1", won[1], 60_000, "REMEMBER", "orders") == b"OK"
    assert ask(resp, "FD.TOUCH", "resp:1", won[1], "TTL", 60_000, "REMEMBER", "orders") == b"OK"
    for _ in range(2):  # a completion may come twice
        assert ask(resp, "FD.COMPLETE", "resp:1", won[1], "done", "REMEMBER", "orders", "FENCE", won[2])
    assert ask(resp, "FD.CLAIM", "resp:1", "REMEMBER", "orders")[::5] == [b"succeeded", b"done"]
    end_echo(served, "resp:1")
    later = ask(resp, "FD.CLAIM", "resp:1", "REMEMBER", "orders", "NS", "shop")
    assert (later[0], later[3], later[5]) == (b"succeeded", 0, None)
    assert ask(resp, "FD.FIRST", "orders", "resp:1") == [0]


def test_a_ledger_remembers_a_claim_over_http(served: Sidecar, resp: redis.Redis) -> None:
    named = {"key": "http:1", "remember": "orders"}
    status, won = claims(served, "", **named)
    assert (status, won["outcome"]) == (201, "acquired")
    mine = {**named, "owner": won["owner"]}
    assert claims(served, "", **named)[0] == 409
    assert claims(served, "/complete", **{**named, "owner": "another"})[0] == 409
    assert claims(served, "/renew", **mine, lease=5000) == (200, {"lease": 5000})
    assert claims(served, "/renew", **mine, lease=600_000)[0] == 200
    assert claims(served, "/renew", **mine)[1]["lease"] > 500_000
    assert claims(served, "/touch", **mine, ttl=5000) == (200, {})
    assert claims(served, "/complete", **mine, result={"n": 1}) == (200, {})
    assert claims(served, "", **named)[1]["result"] == {"n": 1}
    end_echo(served, "http:1")
    status, later = claims(served, "", **named, wait=10)
    assert (status, later["outcome"], later["result"], later["attempt"]) == (200, "succeeded", None, 0)
    assert ask(resp, "FD.SEEN", "orders", "http:1") == [1]
    with served.http() as http:
        listed = http.post("/v1/batch", json=[{"op": "claim", **named}, {"op": "claim", "key": "http:2"}])
    assert [each["body"]["outcome"] for each in listed.json()] == ["succeeded", "acquired"]


def test_what_failed_or_was_released_is_not_remembered(served: Sidecar, resp: redis.Redis) -> None:
    for key, verb in (("failed", "fail"), ("released", "release")):
        _, won = claims(served, "", key=f"http:{key}", remember="orders")
        assert claims(served, f"/{verb}", key=f"http:{key}", remember="orders", owner=won["owner"])[0] == 200
        owner = ask(resp, "FD.CLAIM", f"resp:{key}", "REMEMBER", "orders")[1]
        error = ["no"] if verb == "fail" else []
        assert ask(resp, f"FD.{verb}", f"resp:{key}", owner, *error, "REMEMBER", "orders") == b"OK"
    found = [
        ask(resp, "FD.CLAIM", key, "REMEMBER", "orders")[0]
        for key in ("http:failed", "resp:failed", "http:released", "resp:released")
    ]
    assert found == [b"failed", b"failed", b"acquired", b"acquired"]
    assert ask(resp, "FD.SEEN", "orders", "http:failed", "resp:failed") == [0, 0]


def test_a_claim_for_a_ledger_ends_with_its_connection(served: Sidecar, resp: redis.Redis) -> None:
    with served.client() as leaves:
        assert ask(leaves, "FD.CLAIM", "brief", "EPHEMERAL", "REMEMBER", "orders")[0] == b"acquired"
        done = ask(leaves, "FD.CLAIM", "done", "EPHEMERAL", "REMEMBER", "orders")
        assert ask(leaves, "FD.COMPLETE", "done", done[1], "", "REMEMBER", "orders") == b"OK"

    def is_free() -> bool:
        return bool(ask(resp, "FD.CLAIM", "brief", "OWNER", "me", "REMEMBER", "orders")[0] == b"acquired")

    asyncio.run(wait_until(is_free, description="the claim is released"))
    assert ask(resp, "FD.CLAIM", "done", "REMEMBER", "orders")[0] == b"succeeded"


def test_a_claim_names_a_ledger_of_its_socket(served: Sidecar, resp: redis.Redis) -> None:
    for verb, more in (("", {}), ("/complete", {"owner": "me"}), ("/release", {"owner": "me"})):
        status, problem = claims(served, verb, key="k", remember="bills", **more)
        assert (status, problem["type"]) == (404, "urn:fastdedup:problem:unknown-ledger")
    assert claims(served, "/complete", key="k", owner="me", token=True, remember="orders")[0] == 422
    for command in (["FD.CLAIM", "k"], ["FD.COMPLETE", "k", "me", "x"], ["FD.RENEW", "k", "me"]):
        with pytest.raises(redis.ResponseError, match="serves no ledger 'bills'"):
            ask(resp, *command, "REMEMBER", "bills")
    with pytest.raises(redis.ResponseError, match="belongs to the namespace 'shop'"):
        ask(resp, "FD.CLAIM", "k", "NS", "mail", "REMEMBER", "orders")
    with pytest.raises(redis.ResponseError, match="REMEMBER and TOKEN exclude each other"):
        ask(resp, "FD.RELEASE", "k", "me", "TOKEN", "REMEMBER", "orders")


# Stores


def test_a_claim_cannot_touch_a_ledgers_key(resp: redis.Redis) -> None:
    """A record in its place would take the bucket's ids."""
    owner, looks = b"\0" + b"0123456789", (1, 5, 9, "claim", 0, 9, 7, 9)
    with pytest.raises(redis.ResponseError, match="another kind"):
        ask(resp, "FD.RUN", "claim", 1, "shop:~orders{AAAA}", 1, 5, 9, "claim", 0, owner)
    for wire in ("shop:~orders{AAAA}", "shop:~orders"):
        with pytest.raises(redis.ResponseError, match="another kind"):
            ask(resp, "FD.RUN", "release", 1, wire, 1, 0, bytes(7) + owner)
    with pytest.raises(redis.ResponseError, match="beside a ledger's bucket"):
        ask(resp, "FD.RUN", "claim_remembered", 1, "shop:~orders{AAAA}", *looks, owner, "d" * 7, "k")
    with pytest.raises(redis.ResponseError, match="bucket"):
        ask(resp, "FD.RUN", "seen", 1, "shop:=orders", 1, 9, 7, 9, 0, "d" * 7, "id")


def test_a_store_hears_that_a_ledger_fills(served: Sidecar) -> None:
    """The sidecar reads the scripts' replies, and the ledger that warns is in the store's process."""
    events: list[Event] = []

    async def fill() -> None:
        async with Dedup(f"sidecar://{served.path}", namespace="shop", on_event=events.append) as dedup:
            ledger = dedup.ledger("small", window=3600, capacity=100)
            for start in range(0, 600, 100):
                await ledger.first_many(range(start, start + 100))

    asyncio.run(fill())
    assert [event.ledger for event in events if isinstance(event, LedgerFilling)] == ["small"]


def test_a_store_hears_that_the_sidecars_store_evicts(served: Sidecar) -> None:
    async def policy() -> str | None:
        async with Dedup(f"sidecar://{served.path}", namespace="shop") as dedup:
            return await dedup.gate.connection.store.eviction_policy()  # type: ignore[attr-defined]

    assert asyncio.run(policy()) in (None, "noeviction")


# Settings


def test_ledgers_are_configured_by_the_file_and_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "fastdedup.toml"
    file.write_text('[ledgers.orders]\nwindow = 604800\ncapacity = 600_000_000\nwrite = "append"\n')
    assert any("orders: 600000000 ids in 7 d" in line for line in summary(load(file, environment=False)))
    monkeypatch.setenv("FASTDEDUP_LEDGERS", '{"mails": {"window": 60, "capacity": 9, "namespace": "mail"}}')
    config = load(None)
    assert config.ledger_options()["mails"]["namespace"] == "mail"
    assert "mail" in config.other_namespaces()
    assert not config.configured_only


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("[ledgers.a]\ncapacity = 1", "ledgers.a.window"),
        ("[ledgers.a]\nwindow = 60", "ledgers.a.capacity"),
        ("[ledgers.a]\nwindow = 60\ncapacity = 0", ":3: ledgers.a.capacity"),
        ("[ledgers.a]\nwindow = 60\ncapacity = 9\nwidth = 3", "exact=False"),
        ("[ledgers.a]\nwindow = 60\ncapacity = 9\nwindwo = 9", "did you mean window"),
        ("[ledgers.a]\nwindow = 0.01\ncapacity = 9", "between 0.1 s and"),
        ('[ledgers."a/b"]\nwindow = 60\ncapacity = 9', "no '/'"),
        ("[ledgers.owner]\nwindow = 60\ncapacity = 9", "must not be OWNER"),
    ],
)
def test_a_wrong_setting_of_a_ledger_is_named(tmp_path: Path, text: str, wrong: str) -> None:
    file = tmp_path / "fastdedup.toml"
    file.write_text(text)
    with pytest.raises(Mistakes, match=wrong):
        load(file, environment=False)
