"""`fastdedup list`, `inspect` and `forget`: every kind of record, on a terminal that keys cannot attack."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Coroutine
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fastdedup import ConfigError, Dedup, ResultError
from fastdedup.cli.main import cli
from fastdedup.integrations.asgi import IdempotencyMiddleware, by_header, by_host
from fastdedup.sync import Dedup as SyncDedup
from fastdedup.web.inspection import forget_request, get_request, place_of_request, principal_of_header
from fastdedup.web.rules import Rule

from .integrations.desk import client

EVIL = "\x1b[2Jorder\x9b1m\u202e7"


@pytest.fixture
def namespace() -> str:
    return f"cli-{uuid.uuid4().hex}"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, redis_url: str, namespace: str) -> Callable[..., Result]:
    monkeypatch.setenv("COLUMNS", "120")
    return lambda *args: CliRunner().invoke(
        cli, [args[0], "--url", redis_url, "--namespace", namespace, *args[1:]]
    )


@pytest.fixture
def at_gate(redis_url: str, namespace: str) -> Callable[..., None]:
    def at_gate(work: Callable[[Dedup], Coroutine[Any, Any, Any]], **options: Any) -> None:
        async def main() -> None:
            async with Dedup(
                redis_url, namespace=namespace, ttl=60, lease=30, token_ttl=60, **options
            ) as dedup:
                await work(dedup)

        asyncio.run(main())

    return at_gate


def test_list_shows_what_is_held_and_by_whom(
    run: Callable[..., Result], at_gate: Callable[..., None], namespace: str
) -> None:
    async def work(dedup: Dedup) -> None:
        await dedup.claim("order:1")
        await dedup.claim("order:2", owner="worker-7")
        await (await dedup.claim("order:3")).complete(1)
        await dedup.claim("mail:4")

    at_gate(work, holder="shop")
    shown = run("list", "--state", "processing", "--prefix", "order:").stdout
    assert "shop@" in shown
    assert "worker-7" in shown
    assert all(name not in shown for name in ("order:3", "mail:4", "~"))
    facts = json.loads(run("list", "--prefix", "order:", "--json").stdout)
    assert sorted(record["key"] for record in facts["records"]) == ["order:1", "order:2", "order:3"]
    assert facts["cursor"] is None
    none = run("list", "--older", "60s")
    told = f"No record fits. Web keys are in '{namespace}:http': add --http.\n"
    assert (none.exit_code, none.stdout, none.stderr) == (0, "", told)
    long = run("list", "--prefix", "POST /orders")
    assert "more than 40 bytes have no prefix" in long.stderr


def test_a_web_key_that_is_listed_is_inspected_by_its_digest(
    run: Callable[..., Result], at_gate: Callable[..., None], namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(dedup: Dedup) -> None:
        await dedup.scoped("http").claim("a route, a principal and a key: " + "k" * 100)

    at_gate(work, holder="labels-of-this-shop1")
    (record,) = json.loads(run("list", "--http", "--json").stdout)["records"]
    for columns, is_terminal in (("20", ""), ("20", "1"), ("80", "1"), ("200", "1")):
        monkeypatch.setenv("COLUMNS", columns)
        monkeypatch.setenv("FORCE_COLOR", is_terminal)
        lines = run("list", "--http").stdout.splitlines()
        for part in (record["key"], record["holder"]):
            assert any(part in line for line in lines), "it is cut off by no line's end"
        assert any(line == record["key"] for line in lines) == (bool(is_terminal) and columns != "200")
    elsewhere = run("inspect", "--digest", record["key"])
    told = f" Web keys are in '{namespace}:http': give --namespace {namespace}:http.\n"
    assert (elsewhere.exit_code, elsewhere.stderr.endswith(told)) == (1, True)
    for command in "inspect", "forget":
        assert run(command, "--digest", record["key"], "--namespace", f"{namespace}:http").exit_code == 0


def test_list_says_where_it_stopped_and_goes_on(
    run: Callable[..., Result], at_gate: Callable[..., None]
) -> None:
    async def work(dedup: Dedup) -> None:
        await dedup.claim_many([f"k{number}" for number in range(1500)])

    at_gate(work)
    first = run("list", "--limit", "1", "--json")
    found = json.loads(first.stdout)
    assert found["cursor"]
    assert f"go on with --cursor {found['cursor']}" in run("list", "--limit", "1").stderr
    assert run("list", "--within", "0s", "--state", "failed").stderr.startswith("No record fits so far.")
    keys = {record["key"] for record in found["records"]}
    while found["cursor"]:
        found = json.loads(run("list", "--limit", "1", "--cursor", found["cursor"], "--json").stdout)
        keys |= {record["key"] for record in found["records"]}
    assert len(keys) == 1500


def test_a_terminal_gets_no_control_characters(
    run: Callable[..., Result], at_gate: Callable[..., None]
) -> None:
    async def work(dedup: Dedup) -> None:
        await (await dedup.claim(EVIL, owner=EVIL)).complete(EVIL)

    at_gate(work)
    for shown in (run("list"), run("list", "--json"), run("inspect", EVIL), run("inspect", EVIL, "--json")):
        assert shown.exit_code == 0
        assert shown.stdout.replace("\n", "").isprintable(), ascii(shown.stdout)
    assert json.loads(run("inspect", EVIL, "--json").stdout)["key"] == EVIL
    assert run("inspect", EVIL + "!").stderr.strip().isprintable()


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
def test_python_names_a_web_key_by_its_request(
    at_gate: Callable[..., None], redis_url: str, namespace: str, sync: bool
) -> None:
    """By the rule of the command and of the middleware; a result is read whatever codec the gate has."""

    async def work(dedup: Dedup) -> None:
        await answered(dedup)
        named: Any = {"key": "k-1", "principal": "ann"}
        http = dedup.scoped("http")
        for gate in (dedup, http):
            record = await get_request(gate, "post", "/orders/{id}", **named)
            assert record is not None
            assert (record.result["status"], record.result["body"]) == (201, "made")
        with pytest.raises(ResultError, match=r"another codec has stored it.*get_request"):
            await http.get(record.key)
        assert await get_request(dedup, "POST", "/orders/{id}", key="k-1") is None, "everyone is not ann"
        if not sync:
            assert await forget_request(dedup, "POST", "/orders/{id}", **named, reason="ticket 7")
            assert not await forget_request(http, "POST", "/orders/{id}", **named)

    at_gate(work)
    if sync:
        with SyncDedup(redis_url, namespace=namespace) as gate:
            found = get_request(gate, "POST", "/orders/{id}", key="k-1", principal="ann")
            assert found is not None
            assert found.result["status"] == 201
            assert forget_request(gate, "POST", "/orders/{id}", key="k-1", principal="ann")


async def answered(
    dedup: Dedup, principal: Any = lambda _: "ann", tenant: Any = None, status: int = 201, **headers: str
) -> None:
    """Send a request through the middleware."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"made" if status == 201 else b""})

    guarded = IdempotencyMiddleware(app, dedup, routes=["/orders/{id}"], principal=principal, tenant=tenant)
    async with client(guarded, raises=True) as visitor:
        answer = await visitor.post("http://shop/orders/7", headers={"idempotency-key": '"k-1"', **headers})
        assert answer.status_code == status


@pytest.mark.parametrize("scope", ["", ":http"])
def test_a_web_key_is_named_by_its_request(
    run: Callable[..., Result], at_gate: Callable[..., None], namespace: str, scope: str
) -> None:
    """By the middleware's own rule, in the application's namespace or the one that `list` shows."""
    at_gate(answered)
    where = ["--namespace", namespace + scope]
    named = ["--http", "post", "/orders/{id}", "--principal", "ann", "--key", "k-1", *where]
    record = json.loads(run("inspect", *named, "--json").stdout)
    assert (record["state"], record["result"]["body"]) == ("succeeded", "made")
    shown = run("inspect", *named).stdout
    listed = json.loads(run("list", "--http", "--json", *where).stdout)["records"]
    assert [each["key"] for each in listed] == [record["digest"]]
    assert record["digest"] in shown, "the digest connects what inspect shows with the list"
    assert record["key"].startswith("POST /orders/{id}|")
    assert run("inspect", *named, "--key", "k-2").exit_code == 1
    assert run("forget", *named, "--reason", "ticket 7").exit_code == 0
    assert run("inspect", *named).exit_code == 1
    assert (
        Rule("/orders/{id}", principal=lambda _: "ann").scope_key("POST", "/x", "ann", "k-1") == record["key"]
    )


@pytest.mark.parametrize(("status", "kept"), [(204, "result"), (303, "result"), (404, "error")])
def test_a_response_without_a_body_has_parts_too(
    run: Callable[..., Result], at_gate: Callable[..., None], status: int, kept: str
) -> None:
    """It was shown as the list in which its head is stored, because that is JSON."""
    at_gate(partial(answered, status=status))
    named = ["--http", "POST", "/orders/{id}", "--principal", "ann", "--key", "k-1"]
    record = json.loads(run("inspect", *named, "--json").stdout)
    assert record[kept] == {"status": status, "headers": {}, "body": ""}


def test_an_integer_over_64_bits_is_shown_whole(
    run: Callable[..., Result], at_gate: Callable[..., None]
) -> None:
    large = {"cents": 10**30, "of": [-(2**63) - 1], "é": 2**64}

    async def work(dedup: Dedup) -> None:
        await (await dedup.claim("k")).complete(large)

    at_gate(work)
    assert json.loads(run("inspect", "k", "--json").stdout)["result"] == large
    assert f'"cents":{10**30}' in run("inspect", "k").stdout


def test_a_headers_value_beyond_ascii_is_what_a_server_sees() -> None:
    request: Any = SimpleNamespace(headers=[(b"x-user", "josé".encode())])
    assert by_header("x-user")(request) == principal_of_header("josé")


def test_a_caller_of_by_header_is_named_by_the_headers_value(
    run: Callable[..., Result], at_gate: Callable[..., None]
) -> None:
    """The principal is a digest of it. A caller whose principal is that very text is another one."""
    value = "Bearer 47:11"

    async def work(dedup: Dedup) -> None:
        await answered(dedup, by_header("Authorization"), Authorization=value)
        found = await get_request(
            dedup, "POST", "/orders/{id}", key="k-1", principal=principal_of_header(value)
        )
        assert found is not None
        for wrong in ("", b"Bearer 47:11", None):
            with pytest.raises(ConfigError, match="a header's value must be text") as refused:
                principal_of_header(wrong)  # type: ignore[arg-type]
            assert "47:11" not in str(refused.value)

    at_gate(work)
    request = ["--http", "POST", "/orders/{id}", "--key", "k-1"]
    for command in "inspect", "forget":
        plain = run(command, *request, "--principal", value)
        assert plain.exit_code == 1, "no record of another caller is found, or freed"
        assert plain.stderr.endswith("give the header's value by --principal-header.\n")
    assert run("inspect", *request, "--principal-header", value).exit_code == 0
    assert run("forget", *request, "--principal-header", f" {value} ").exit_code == 0
    gone = run("inspect", *request, "--principal-header", value)
    assert (gone.exit_code, "--principal-header" in gone.stderr) == (1, False)


def test_a_web_key_of_a_tenant_is_found_by_the_tenant(
    run: Callable[..., Result], at_gate: Callable[..., None]
) -> None:
    at_gate(partial(answered, tenant=by_host))
    request = ["--http", "POST", "/orders/{id}", "--principal", "ann", "--key", "k-1"]
    assert run("inspect", *request).exit_code == 1
    assert run("inspect", *request, "--tenant", "other").exit_code == 1
    assert run("inspect", *request, "--tenant", "shop").exit_code == 0
    assert run("forget", *request, "--tenant", "shop").exit_code == 0
    assert run("inspect", *request, "--tenant", "shop").exit_code == 1


def test_a_caller_of_a_proxys_gate_is_named_by_the_headers_value(
    run: Callable[..., Result], at_gate: Callable[..., None]
) -> None:
    """There the value itself is the principal; the record is in no scope."""
    request = ["--http", "GATE", "POST /orders", "--key", "k-1"]

    async def work(dedup: Dedup) -> None:
        place = place_of_request("GATE", "POST /orders", "4711", "k-1")
        await dedup.claim(place.key)

    at_gate(work)
    for option in "--principal", "--principal-header":
        assert run("inspect", *request, option, "4711").exit_code == 0
    other = run("inspect", *request, "--principal", "4712")
    assert (other.exit_code, "--principal-header" in other.stderr) == (1, False)


def test_locks_tokens_machines_and_ids_are_reached(
    run: Callable[..., Result], at_gate: Callable[..., None]
) -> None:
    token: list[str] = []

    async def work(dedup: Dedup) -> None:
        token.extend([await dedup.tokens.issue("me"), await dedup.tokens.issue()])
        await dedup.machine("order", initial="a", transitions={"a": ("b",), "b": ()}, ttl=60).transition(
            "1", to="b"
        )
        ledger = dedup.ledger("seen", window=60, capacity=1000)
        await ledger.first("id-1")
        await dedup.claim("open", remember=ledger)

    at_gate(work)
    records = json.loads(run("list", "--kind", "token", "--json").stdout)["records"]
    hidden = json.loads(run("forget", "--kind", "token", token[1], "--json").stdout)
    (listed,) = (record for record in records if record["key"] != hidden["key"])
    assert hidden["forgotten"]
    assert len(records) == 2
    for named, state in (
        (["--kind", "token", token[0]], "issued"),
        (["--kind", "token", "--digest", listed["key"]], "issued"),
        (["--kind", "machine", "order/1"], "machine"),
    ):
        shown = run("inspect", *named, "--json").stdout
        assert json.loads(shown)["state"] == state
        assert token[0] not in shown
    assert json.loads(run("inspect", "--ledger", "seen", "id-1", "--json").stdout)["remembered"] is True
    open_one = json.loads(run("inspect", "--ledger", "seen", "open", "--json").stdout)
    assert (open_one["remembered"], open_one["record"]["state"]) == (False, "processing")
    ended = run("forget", "--kind", "token", token[0])
    assert ended.stdout == "Forgot this token: it can no longer be redeemed.\n"
    for named in (
        ["--kind", "machine", "order/1"],
        ["--ledger", "seen", "id-1"],
        ["--ledger", "seen", "open"],
    ):
        assert run("forget", *named).exit_code == 0, named
        assert run("forget", *named).exit_code == 1, named
    assert run("inspect", "--ledger", "none", "id-1").exit_code == 1


def test_ids_that_no_claim_can_have_are_reached(
    run: Callable[..., Result], at_gate: Callable[..., None]
) -> None:
    """Each was an error with --url, but not with --socket: the claim's record was looked for first."""
    long = "x" * 1025

    async def work(dedup: Dedup) -> None:
        await dedup.ledger("numbers", window=60, capacity=1000, dense=True).first(7)
        resized = dedup.ledger("resized", window=60, capacity=1000)
        await resized.first_many(["7", long])
        await resized.resize(capacity=2000)
        await dedup.ledger("long", window=60, capacity=1000).first(long)

    at_gate(work)
    for ledger, named in (("numbers", "7"), ("resized", "7"), ("resized", long), ("long", long)):
        found = json.loads(run("inspect", "--ledger", ledger, named, "--json").stdout)
        assert (found["remembered"], found["record"]) == (True, None)
        assert run("forget", "--ledger", ledger, named).exit_code == 0
        assert run("forget", "--ledger", ledger, named).exit_code == 1
    assert "must be an integer" in run("inspect", "--ledger", "numbers", "x").stderr


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["inspect"], "the key is missing"),
        (["inspect", "k", "--principal", "ann"], "go with --http"),
        (["forget", "k", "--principal-header", "ann"], "go with --http"),
        (
            ["forget", "--http", "POST", "/o", "--key", "k", "--principal", "a", "--principal-header", "b"],
            "not both",
        ),
        (["forget", "--http", "POST", "/o", "--key", "k", "--principal-header", ""], "is not empty"),
        (["inspect", "--http", "POST", "/o", "--key", "k", "--principal", ""], "the principal is empty"),
        (["forget", "--http", "GATE", "*", "--key", "k", "--principal-header", ""], "the principal is empty"),
        (["forget", "k", "--tenant", "a.test"], "go with --http"),
        (["inspect", "--http", "GATE", "*", "--key", "k", "--tenant", "a"], "knows no tenants"),
        (["forget", "k", "--http", "POST", "/orders", "--key", "k"], "given by --key"),
        (["forget", "--http", "POST", "/orders", "--key", "k", "--digest"], "goes without"),
        (["inspect", "--http", "POST", "orders", "--key", "k"], "must start with '/'"),
        (["inspect", "k", "--ledger", "ids", "--kind", "lock"], "--ledger goes without --kind and --digest"),
        (["forget", "#00", "--ledger", "ids", "--digest"], "--ledger goes without --kind and --digest"),
        (["list", "--older", "60"], "is not a time"),
        (["list", "--older", "999999999w"], "at most ten years"),
        (["list", "--cursor", "x"], "cursor"),
    ],
)
def test_a_mistake_is_told_in_one_line(run: Callable[..., Result], args: list[str], says: str) -> None:
    found = run(*args)
    assert found.exit_code != 0
    assert says in found.stderr
    assert found.exception is None or isinstance(found.exception, SystemExit)
