"""Finding what is stuck through a sidecar: lists, every kind of record, who may, and who is told."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from click.testing import CliRunner

from fastdedup import ConfigError, Dedup, State
from fastdedup.cli.main import cli
from fastdedup.sidecar import client as asking

from ..fixtures import fixture_with
from ..servers import RedisServer
from ..sql_pages.pages import Page
from .running import Sidecar, client, figure

CONFIG = """
namespace = "shop"
allow_stores = true
log_format = "json"
log_keys = true

[ledgers.orders]
window = 60.0
capacity = 1000

[[sockets]]
path = "{run}/look.sock"
namespaces = ["shop"]
verbs = "read"
show_keys = true

[[sockets]]
path = "{run}/narrow.sock"
namespaces = ["shop"]
"""


sidecar = fixture_with(lambda server: Sidecar("--url", server.url, config=CONFIG), scope="module")


def lines(sidecar: Sidecar, event: str) -> list[dict[str, Any]]:
    told = [json.loads(line) for line in sidecar.log.splitlines()]
    return [line for line in told if line["event"] == event]


def test_both_wires_list_the_same(sidecar: Sidecar) -> None:
    with sidecar.client() as ask, sidecar.http() as http:
        ask.execute_command("FD.CLAIM", "list:1", "OWNER", "worker-7")
        ask.execute_command("FD.CLAIM", "list:2")
        ask.execute_command("FD.COMPLETE", "list:1", "worker-7", "1")
        resp = json.loads(ask.execute_command("FD.LIST", "PREFIX", "list:", "REASON", "ticket 7"))
        told = http.get("/v1/records/list?prefix=list:").json()
        keys = [sorted(record["key"] for record in found["records"]) for found in (resp, told)]
        assert keys == [["list:1", "list:2"]] * 2
        held = http.get("/v1/records/list?prefix=list:&state=processing").json()["records"]
        assert [(each["key"], each["kind"], each["state"]) for each in held] == [
            ("list:2", "claim", "processing")
        ]
        assert http.get("/v1/records/list?prefix=list:&older=60000").json()["records"] == []
        assert http.get("/v1/records/list?limit=0").status_code == 422
        assert http.get("/v1/records/list?cursor=wrong").status_code == 422
        with pytest.raises(redis.ResponseError, match="STATE must be one of"):
            ask.execute_command("FD.LIST", "STATE", "wrong")
    audited = lines(sidecar, "records were listed")
    assert (audited[0]["prefix"], audited[0]["reason"], audited[0]["result"]) == (
        "list:",
        "ticket 7",
        "2 records",
    )
    assert {(line["pid"], line["uid"]) for line in audited} == {(os.getpid(), os.getuid())}


def test_a_socket_lists_only_where_it_may(sidecar: Sidecar) -> None:
    with (
        client(sidecar.path.parent / "narrow.sock") as narrow,
        client(sidecar.path.parent / "look.sock") as look,
    ):
        with pytest.raises(redis.exceptions.NoPermissionError, match="does not allow 'list'"):
            narrow.execute_command("FD.LIST")
        with pytest.raises(redis.exceptions.NoPermissionError, match="serves shop only"):
            look.execute_command("FD.LIST", "NS", "other")
        narrow.execute_command("FD.CLAIM", "held:1")
        found = json.loads(look.execute_command("FD.LIST", "PREFIX", "held:"))
        assert [record["owner"] for record in found["records"]] == [None]


def test_every_kind_is_shown_and_forgotten(sidecar: Sidecar) -> None:
    with sidecar.client() as ask, sidecar.http() as http:
        token = ask.execute_command("FD.ISSUE").decode()
        shown = http.get("/v1/records", params={"key": token, "kind": "token"}).json()
        assert (shown["state"], shown["kind"]) == ("issued", "token")
        assert token not in json.dumps(shown)
        named = {"key": shown["key"], "kind": "token", "digest": "true"}
        assert http.get("/v1/records", params=named).status_code == 200
        assert http.delete("/v1/records", params={**named, "reason": "ticket 8"}).json() == {
            "forgotten": True
        }
        assert http.get("/v1/records", params={"key": "k", "kind": "wrong"}).status_code == 422
        ask.execute_command("FD.FIRST", "orders", "id-1")
        assert asking.seen_id(sidecar.path, "orders", "id-1", None) is True
        assert asking.forget_id(sidecar.path, "orders", "id-1", None) is True
        assert asking.forget_id(sidecar.path, "orders", "id-1", None, reason="ticket 9") is False
        ask.execute_command("FD.FIRST", "orders", "REASON")
        again = {"ids": ["REASON"], "reason": "ticket 10"}
        assert http.post("/v1/ledgers/orders/forget", json=again).json() == {"forgotten": [True]}
        with pytest.raises(ConfigError, match="256"):
            asking.forget_id(sidecar.path, "orders", "id-1", None, reason="x" * 257)
        with pytest.raises(ConfigError, match="KIND must be one of"):
            asking.get_record(sidecar.path, "k", None, kind="wrong")
    told = [
        (line["kind"], line["key"], line["result"], line.get("reason"))
        for line in lines(sidecar, "a key was forgotten")
    ]
    assert ("token", shown["key"], "forgotten", "ticket 8") in told
    assert ("id", "orders/id-1", "forgotten", None) in told
    assert ("id", "orders/id-1", "absent", "ticket 9") in told
    assert ("id", "orders/REASON", "forgotten", "ticket 10") in told


@pytest.mark.parametrize(
    "words",
    [
        ["inspect", "\udcff"],
        ["inspect", "--ledger", "orders", "\udcff"],
        ["forget", "\udcff"],
        ["forget", "k", "--reason", "\udcff"],
        ["forget", "k", "--namespace", "\udcff"],
        ["list", "--prefix", "\udcff"],
        ["list", "--cursor", "\udcff"],
    ],
)
def test_the_command_line_refuses_bytes_that_are_no_text(sidecar: Sidecar, words: list[str]) -> None:
    """The shell passes any bytes, and Python reads those that are not UTF-8 as lone surrogates."""
    found = CliRunner().invoke(cli, [*words, "--socket", str(sidecar.path)])
    assert found.exit_code == 2
    assert "text that UTF-8 can encode" in found.stderr
    assert isinstance(found.exception, SystemExit)


@pytest.mark.parametrize("command", ["inspect", "forget"])
def test_the_command_line_says_that_it_looks_at_a_ledgers_ids_only(sidecar: Sidecar, command: str) -> None:
    """Nothing was recorded, it said, though the claim was held."""
    with sidecar.client() as ask:
        assert ask.execute_command("FD.CLAIM", "stuck", "REMEMBER", "orders")[0] in (
            b"acquired",
            b"in_progress",
        )
    asked = [command, "--ledger", "orders", "stuck", "--socket", str(sidecar.path)]
    found = CliRunner().invoke(cli, asked)
    assert found.exit_code == 1
    assert "Nothing is recorded for 'stuck' in the ledger 'orders'. The record of a claim" in found.stderr


async def test_the_command_line_shows_a_large_integer_whole(sidecar: Sidecar) -> None:
    async with Dedup(f"sidecar://{sidecar.path}", namespace="shop", timeout=5.0) as dedup:
        await (await dedup.claim("large")).complete([10**30])
    asked = ["inspect", "large", "--socket", str(sidecar.path), "--namespace", "shop", "--json"]
    found = await asyncio.to_thread(CliRunner().invoke, cli, asked)
    assert json.loads(found.stdout)["result"] == [10**30]


def test_the_command_line_tells_a_redis_from_a_sidecar(server: RedisServer) -> None:
    found = CliRunner().invoke(cli, ["inspect", "k", "--socket", str(server.socket)])
    assert found.exit_code == 2
    assert "is no fastdedup sidecar" in found.stderr


async def test_a_store_of_the_sidecar_tells_who_forgot_and_why(sidecar: Sidecar) -> None:
    """As the other ways to forget do; its take-backs, which nobody asked for, are no lines."""
    async with Dedup(f"sidecar://{sidecar.path}", namespace="shop", timeout=5.0) as dedup:
        await dedup.claim("why:1")
        ledger = dedup.ledger("why", window=60.0, capacity=1000)
        await ledger.first("id-1")
        await asyncio.gather(
            dedup.forget("why:1", reason="ticket 9\nand a line"),
            dedup.forget("why:2"),
            dedup.machine("m", initial="new", transitions={"new": ()}).forget("42", reason="ticket 10"),
        )
        await ledger.forget("id-1", reason="ticket 11")
        await dedup.records(prefix="why:", reason="ticket 12")
    told = {
        (line.get("kind", "claim"), line["key"], line["result"], line.get("reason"))
        for line in lines(sidecar, "a key was forgotten")
    }
    assert told >= {
        ("claim", "why:1", "forgotten", "ticket 9\nand a line"),
        ("claim", "why:2", "absent", None),
        ("claim", "m/42", "absent", "ticket 10"),
        ("id", "why/id-1", "forgotten", "ticket 11"),
    }
    assert [line["reason"] for line in lines(sidecar, "records were listed") if line["prefix"] == "why:"] == [
        "ticket 12"
    ]


async def test_a_store_of_the_sidecar_lists_and_shows_machines(sidecar: Sidecar) -> None:
    async with Dedup(f"sidecar://{sidecar.path}", namespace="lib", timeout=5, holder="lib") as dedup:
        await dedup.claim("k", ttl=60)
        orders = dedup.machine("order", initial="a", transitions={"a": ("b",), "b": ()}, ttl=60)
        await orders.transition("1", to="b")
        (record,) = (await dedup.records(state=State.PROCESSING)).records
        assert (record.key, str(record.holder)[:4]) == ("k", "lib@")
    assert (
        figure(sidecar.figures(), "fastdedup_operations_total", namespace="lib", verb="list", outcome="ok")
        == 1
    )
    machine = asking.get_record(sidecar.path, "order/1", "lib", kind="machine")
    assert machine is not None
    assert (machine.state, machine.result, machine.version) == (State.MACHINE, "b", 1)
    shown = asking.get_record(sidecar.path, "k", "lib")
    assert shown is not None
    assert shown.holder == record.holder


def test_the_pages_request_of_curl_forgets_a_web_key(sidecar: Sidecar) -> None:
    """Its parts are those of a URL's query, which the client encodes as curl does."""
    (line,) = Page("sidecar.md").blocks("Records: show, list, forget", "sh")
    parts = shlex.split(line)
    query = dict(
        value.partition("=")[::2] for option, value in pairwise(parts) if option in {"-d", "--data-urlencode"}
    )
    encoded = {value.partition("=")[0] for option, value in pairwise(parts) if option == "--data-urlencode"}
    assert parts[:4] == ["curl", "-G", "-X", "DELETE"]
    assert {name for name, value in query.items() if not value.isascii() or {*"# "} & {*value}} == encoded
    with sidecar.client() as ask, sidecar.http() as http:
        ask.execute_command("FD.CLAIM", "k" * 41, "NS", "shop:http")
        (record,) = http.get("/v1/records/list?namespace=shop:http").json()["records"]
        query["key"] = record["key"]
        url = urlsplit(next(part for part in parts if part.startswith("http://")))
        assert http.delete(url.path, params=query).json() == {"forgotten": True}
    (told,) = [each for each in lines(sidecar, "a key was forgotten") if each["namespace"] == "shop:http"]
    assert told["reason"] == query["reason"]
