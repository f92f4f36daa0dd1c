"""examples/mcp_server.py, through an MCP client in memory."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import textwrap
from pathlib import Path
from typing import Any

from mcp import Client, ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client

from examples.mcp_server import Provider, make_server
from fastdedup import Dedup, business_key

from .programs import ended

ROOT = Path(__file__).parent.parent
ORDER = {"order": "o-1", "cents": 500}
PROGRAM = """
import asyncio, json, os, pathlib, signal, sys
from mcp import Client
from examples.mcp_server import Provider, make_server
from fastdedup import Dedup

class Kills(Provider):
    async def refund(self, reference, order, cents):
        await super().refund(reference, order, cents)
        pathlib.Path(sys.argv[2]).write_text(json.dumps(self.refunds))
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    dedup = Dedup(sys.argv[1], namespace="agent", lease=1.0)
    async with dedup, Client(make_server(dedup, Kills())) as client:
        await client.call_tool("refund", {"order": "o-1", "cents": 500})

asyncio.run(main())
"""


async def test_equal_calls_of_a_tool_have_one_effect() -> None:
    """One after the other, and at once."""
    provider = Provider()
    async with Dedup("memory://", namespace="agent") as dedup, Client(make_server(dedup, provider)) as client:
        [tool] = (await client.list_tools()).tools
        assert tool.annotations is not None
        assert tool.annotations.idempotent_hint is True
        answers = [(await client.call_tool("refund", ORDER)).structured_content for _ in range(3)]
        answers += [
            answer.structured_content
            for answer in await asyncio.gather(*(client.call_tool("refund", ORDER) for _ in range(3)))
        ]
        assert answers == [{"refund": 1, **ORDER}] * 6
        again: Any = await client.call_tool("refund", {**ORDER, "request_id": "2"})
        assert again.structured_content["refund"] == 2
        assert provider.calls == 2


async def test_a_refund_whose_process_was_killed_is_not_made_again(redis_url: str, tmp_path: Path) -> None:
    """SIGKILL comes after the provider's refund, and before its record. The next server asks the provider."""
    made = tmp_path / "refunds.json"
    killed = ended("-c", PROGRAM, redis_url, str(made), cwd=ROOT)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    [(reference, refund)] = json.loads(made.read_text()).items()
    assert reference == business_key("refund", "o-1", 500, "1")
    provider = Provider({reference: refund})
    async with Dedup(redis_url, namespace="agent") as dedup, Client(make_server(dedup, provider)) as client:
        answers = [(await client.call_tool("refund", ORDER)).structured_content for _ in range(2)]
    assert answers == [refund, refund]
    assert provider.calls == 0


async def test_the_program_serves_its_tool() -> None:
    """Over stdio, as an agent's client starts it."""
    example = str(ROOT / "examples/mcp_server.py")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "FASTDEDUP_URL": "memory://"}
    program = StdioServerParameters(command=sys.executable, args=[example], env=environment)
    async with stdio_client(program) as (answers, calls), ClientSession(answers, calls) as session:
        await session.initialize()
        made = [(await session.call_tool("refund", ORDER)).structured_content for _ in range(2)]
    assert made == [{"refund": 1, **ORDER}] * 2


def test_the_recipe_shows_the_lines_of_the_example() -> None:
    page = (ROOT / "docs/recipes/mcp.md").read_text(encoding="utf-8")
    [shown] = re.findall(r"^```py\n(.+?)```$", page, re.DOTALL | re.MULTILINE)
    example = (ROOT / "examples/mcp_server.py").read_text(encoding="utf-8")
    assert textwrap.indent(shown, "    ", lambda line: bool(line.strip())) in example
