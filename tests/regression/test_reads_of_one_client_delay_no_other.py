"""Fault: lists that one client had asked for, and hung up on, refused all other clients theirs for 10 s."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from fastdedup.sidecar.client import fetch
from fastdedup.sidecar.limits import LimitError
from fastdedup.sidecar.read_turns import ReadTurns

from ..servers import RedisServer
from ..sidecar.running import Sidecar, figure

CONFIG = """
timeout = 5.0

[ledgers.ids]
window = 3600
capacity = 1_000_000
"""
READS = 200


@pytest.mark.parametrize("path", ["/v1/records/list", "/v1/ledgers/ids"])
async def test_a_read_whose_client_has_gone_takes_no_turn(
    server: RedisServer, wait_until: Callable[..., Any], path: str
) -> None:
    def commands() -> int:
        return int(server.client().info("stats")["total_commands_processed"])

    with Sidecar("--url", server.url, config=CONFIG) as sidecar:
        before = commands()
        assert fetch(sidecar.path, path)[0] == 200
        alone = commands() - before
        with server.frozen():
            for _ in range(READS):
                with socket.socket(socket.AF_UNIX) as client:
                    client.connect(str(sidecar.path))
                    client.sendall(f"GET {path} HTTP/1.1\r\nhost: s\r\n\r\n".encode())
            await wait_until(
                lambda: figure(sidecar.figures(), "fastdedup_sidecar_connections", wire="http") <= 1,
                description="their connections are closed",
            )
        assert fetch(sidecar.path, path)[0] == 200
        assert commands() - before < alone * READS / 2


class Reads:
    """Reads that wait for their turns; `order` says which had theirs."""

    def __init__(self) -> None:
        self.turns = ReadTurns(patience=20.0)
        self.order: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def ask(self, name: str, socket: str, process: int | None) -> None:
        peer = None if process is None else SimpleNamespace(pid=process)

        async def read() -> None:
            async with self.turns.turn(socket, peer):
                self.order.append(name)

        self.tasks[name] = asyncio.create_task(read())

    async def all(self) -> list[str]:
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        return self.order


@asynccontextmanager
async def first_under_way(reads: Reads) -> Any:
    """Ask within the block; the turns begin at its end."""
    async with reads.turns.turn("other", None):
        yield
        await asyncio.sleep(0)  # all wait


async def test_sockets_take_turns() -> None:
    reads = Reads()
    async with first_under_way(reads):
        for number in range(50):
            reads.ask(f"a{number}", "a", number)
        reads.ask("b0", "b", 1)
        reads.ask("b1", "b", 1)
    assert (await reads.all())[:5] == ["a0", "b0", "a1", "b1", "a2"]


async def test_the_processes_of_a_socket_take_turns() -> None:
    reads = Reads()
    async with first_under_way(reads):
        for number in range(50):
            reads.ask(f"a{number}", "", 1)
        reads.ask("b", "", 2)
        reads.ask("unknown", "", None)
    assert (await reads.all())[:5] == ["a0", "b", "unknown", "a1", "a2"]


async def test_a_read_that_is_cancelled_leaves_its_turn() -> None:
    reads = Reads()
    async with first_under_way(reads):
        for number in range(4):
            reads.ask(f"a{number}", "", 1)
        reads.ask("b", "b", 2)
        await asyncio.sleep(0)
        reads.tasks["a0"].cancel()
        reads.tasks["b"].cancel()
    assert await reads.all() == ["a1", "a2", "a3"]
    reads.ask("after", "", 1)
    assert (await reads.all())[-1] == "after"


async def test_a_turn_that_comes_as_its_read_is_cancelled_goes_to_the_next() -> None:
    reads = Reads()
    async with first_under_way(reads):
        reads.ask("a0", "", 1)
        reads.ask("a1", "", 1)
    reads.turns._pass_on()  # before a0 runs
    reads.tasks["a0"].cancel()
    assert await reads.all() == ["a1"]


async def test_the_reads_of_one_socket_refuse_no_other() -> None:
    reads = Reads()
    async with first_under_way(reads):
        for number in range(1025):
            reads.ask(f"a{number}", "a", number)
        reads.ask("b", "b", 1)
    with pytest.raises(LimitError, match="take turns"):
        await reads.tasks["a1024"]
    assert "b" in (await reads.all())[:2]


async def test_a_read_waits_for_its_turn_in_vain() -> None:
    reads = Reads()
    reads.turns = ReadTurns(patience=0.0)
    async with first_under_way(reads):
        reads.ask("a", "", 1)
        with pytest.raises(LimitError, match="take turns"):
            await reads.tasks["a"]
    assert await reads.all() == []
