"""docs/stuck.md: its Python runs and does what it says, its commands can be given."""

from __future__ import annotations

import asyncio
import re
import shlex
from typing import Any

import click
import httpx
import pytest
from click.testing import CliRunner
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from fastdedup import Dedup, FailedError, State, business_key
from fastdedup.cli.main import cli
from fastdedup.integrations.asgi import IdempotencyMiddleware, by_header
from fastdedup.sql import Inbox
from fastdedup.web.inspection import get_request, principal_of_header

from ..sql_pages.pages import Page
from ..waiting import abandoned

PAGE = Page("stuck.md")
(FIND,) = PAGE.blocks("Find what is stuck", "python")
(HOLDER,) = PAGE.blocks("Who holds it", "python")
(RESOLVE,) = PAGE.blocks("Work that was abandoned", "python")
(NEXT_HOP,) = PAGE.blocks("The next hop must be idempotent, too", "python")
COMMANDS = [*PAGE.blocks("Find what is stuck", "sh"), *PAGE.blocks("Show one, and forget it", "sh")]


class Bank:
    """A provider that keeps the first answer of each Idempotency-Key."""

    def __init__(self) -> None:
        self.charges: dict[str, dict[str, Any]] = {}
        self.keys: list[str | None] = []
        self.knows = True
        self.transport = httpx.ASGITransport(
            Starlette(
                routes=[
                    Route("/charges", self.charge, methods=["POST"]),
                    Route("/charges", self.look_up, methods=["GET"]),
                ]
            )
        )

    async def charge(self, request: Request) -> JSONResponse:
        self.keys.append(request.headers.get("idempotency-key"))
        reference = (await request.json())["reference"]
        return JSONResponse(self.charges.setdefault(reference, {"id": len(self.charges) + 1}))

    async def look_up(self, request: Request) -> JSONResponse:
        found = self.charges.get(request.query_params["reference"])
        return JSONResponse([found] if found else [], 200 if self.knows else 202)


async def test_it_finds_what_is_stuck_and_who_holds_it(redis_url: str) -> None:
    names = PAGE.run("\n".join((FIND, HOLDER)).replace("redis://localhost:6379/0", redis_url))
    async with names["dedup"] as whole:
        dedup = whole.scoped("stuck-page")
        await dedup.claim("order:1", ttl=60)
        found = await dedup.records(state=State.PROCESSING)
        assert str(found.records[0].holder).startswith("billing@")
        assert await names["stuck"](dedup) == []  # none is a minute old


async def test_abandoned_work_is_looked_up_before_it_runs_again(redis_url: str) -> None:
    bank = Bank()
    text = RESOLVE.replace("redis://localhost:6379/0", redis_url)
    text = text.replace("AsyncIdempotentTransport()", "AsyncIdempotentTransport(provider)")
    names = PAGE.run(text, provider=bank.transport)
    dedup, charge = names["dedup"], names["charge"]

    async def left_behind(order: str) -> None:
        await dedup.forget(order)
        await abandoned(dedup, order, ttl=60)

    async with dedup:
        await left_behind("page:done")
        bank.charges["page:done"] = {"id": 77}
        assert await charge("page:done") == {"id": 77}
        assert bank.keys == []
        for _ in range(2):
            await left_behind("page:open")
            bank.charges.pop("page:open", None)
            assert (await charge("page:open"))["id"]
        assert len(bank.keys) == 2
        assert len(set(bank.keys)) == 1, "each attempt sends the same key"
        bank.knows = False
        await left_behind("page:unknown")
        with pytest.raises(FailedError, match="cannot say"):
            await charge("page:unknown")
        for order in ("page:done", "page:open", "page:unknown"):
            await dedup.forget(order)


async def test_the_next_hop_gets_the_key_of_the_claim(redis_url: str) -> None:
    names = PAGE.run("\n".join((FIND, HOLDER, NEXT_HOP)).replace("redis://localhost:6379/0", redis_url))
    seen: list[str] = []

    async def post(url: str, headers: dict[str, str]) -> dict[str, str]:
        seen.append(headers["Idempotency-Key"])
        return {"url": url}

    async with names["dedup"] as dedup:
        for _ in range(2):
            assert (await names["pay"](dedup, "page:order", post))["url"].endswith("/charges")
        assert await dedup.forget("page:order")
        await names["pay"](dedup, "page:order", post)
        await dedup.forget("page:order")
    assert len(seen) == 2
    assert len(set(seen)) == 1


def test_its_commands_can_be_given() -> None:
    lines = [line for block in COMMANDS for line in block.splitlines() if line.startswith("fastdedup ")]
    rows = [row for row in PAGE.text.splitlines() if row.startswith("| ")]
    named = [command for row in rows for command in re.findall(r"`(inspect [^`]+)`", row)]
    table = [f"fastdedup {command} --namespace shop".replace("\\|", "|") for command in named]
    assert (len(lines), len(table)) == (5, 10)
    for line in lines + table:
        _, name, *arguments = shlex.split(line, comments=True)
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        context = click.Context(command)
        command.make_parser(context).parse_args(arguments)


async def test_each_record_is_found_by_its_name_in_the_table(redis_url: str) -> None:
    def command(verb: str, *name: str) -> str:
        said = CliRunner().invoke(cli, [verb, *name, "--namespace", "shop", "--url", redis_url])
        assert said.exit_code == 0, said.output
        return said.output

    async with Dedup(redis_url, namespace="shop") as dedup:
        for key in ("order:42", business_key("orders", "7f3c"), Inbox("billing", keep=60).gate_key("7f3c")):
            await dedup.claim(key)
        await dedup.claim("order:" + "4" * 40)
        (digest,) = [each.key for each in (await dedup.records()).records if each.key[0] == "#"]
        token = await dedup.tokens.issue()
        orders = dedup.machine("order", initial="new", transitions={"new": ("paid",), "paid": ()})
        await orders.transition("42", to="paid")
        names: list[tuple[str, ...]] = [
            ("order:42",),
            ("orders|7f3c",),
            ("billing=7f3c",),
            ("--kind", "token", token),
            ("--kind", "machine", "order/42"),
            ("--digest", digest),
        ]
        for name in names:
            await asyncio.to_thread(command, "inspect", *name)
            await asyncio.to_thread(command, "forget", *name)
        async with dedup.lock("nightly"):
            await asyncio.to_thread(command, "inspect", "--kind", "lock", "nightly")
        assert {each.kind for each in (await dedup.records()).records} == {"lock"}, "which was released"


async def test_a_principal_of_by_header_is_found_by_the_headers_value(redis_url: str) -> None:
    """As the table says it."""
    (row,) = [row for row in PAGE.text.splitlines() if row.startswith("| ") and "principal_of_header" in row]
    command, call = re.findall(r"`(inspect [^`]+|get_request[^`]+)`", row)
    (value,) = re.findall(r'principal_of_header\("(.+?)"\)', call)
    app = Starlette(routes=[Route("/orders", lambda request: JSONResponse(1), methods=["POST"])])
    async with Dedup(redis_url, namespace="shop") as dedup:
        gated = IdempotencyMiddleware(app, dedup, principal=by_header("Authorization"))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(gated), base_url="http://shop") as client:
            await client.post("/orders", headers={"Authorization": value, "Idempotency-Key": "7f3c"})
        names = {"dedup": dedup, "get_request": get_request, "principal_of_header": principal_of_header}
        record = await eval(call, names)
        assert record is not None
        assert record.state is State.SUCCEEDED
        given = [*shlex.split(command), "--namespace", "shop", "--url", redis_url]
        shown = await asyncio.to_thread(CliRunner().invoke, cli, given)
        assert shown.exit_code == 0, shown.output
