"""The count of the bytes that replies take, without a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from fastdedup.sidecar.reply_memory import LARGE, ReplyMemory

WaitUntil = Callable[..., Any]


class Client:
    """A connection whose client has read nothing for a long time.

    Args:
        size: the bytes that its transport keeps.
    """

    stalled_at = 1e-9

    def __init__(self, size: int) -> None:
        self.size = size
        self.is_cut = False

    def unread(self) -> int:
        return self.size

    def cut(self) -> None:
        self.is_cut = True


async def test_bytes_of_a_cut_client_count_until_they_are_freed(wait_until: WaitUntil) -> None:
    memory = ReplyMemory(100_000)
    client = Client(80_000)
    memory.connections = {client}
    memory.grew(80_000)
    assert not memory.reserve(30_000)
    assert client.is_cut
    assert memory.is_clearing
    await asyncio.sleep(0)  # in this turn a transport closes, and frees its bytes at the end
    assert not memory.reserve(30_000)
    await wait_until(lambda: not memory.is_clearing, description="the bytes are given back")
    assert memory.reserve(30_000)


async def test_a_client_is_cut_once() -> None:
    memory = ReplyMemory(100_000)
    memory.connections = {Client(80_000)}
    memory.grew(80_000)
    assert not memory.reserve(30_000)
    assert not memory.reserve(30_000)
    assert memory.cut == 1


async def test_clients_with_few_unread_bytes_are_not_cut() -> None:
    memory = ReplyMemory(100_000)
    small, large = Client(LARGE), Client(98_000)
    small.stalled_at = large.stalled_at / 2
    memory.connections = {small, large}
    memory.grew(LARGE + 98_000 - 3000)
    assert not memory.reserve(30_000)
    assert large.is_cut
    assert not small.is_cut
