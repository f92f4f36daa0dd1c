"""Scripts touched a dense ledger's nonces without declaring them: while a slot moved, both nodes made such a key."""

from __future__ import annotations

import pytest

from fastdedup import Dedup, Ledger
from fastdedup.stores.redis.verbs import all_scripts

from ..fixtures import fixture_of
from ..servers import RedisServer
from ..waiting import wait_until

server = fixture_of(RedisServer, scope="module")


async def ask_all(ledger: Ledger) -> None:
    """In cells and beside them; the same call again, another one, and one that is taken back."""
    for some in ([*range(300)], [1], [10**15 + number for number in range(3)]):
        await ledger.first_many(some, owner="me")
        assert all(await ledger.first_many(some, owner="me"))
        assert not any(await ledger.first_many(some, owner="other"))
    _, take_back = await ledger.first_undoable([ledger.bytes_of(7000)])
    take_back()
    await wait_until(lambda: is_new(ledger, 7000), description="it is taken back")
    assert await ledger.seen(2)
    assert await ledger.forget(2)
    await ledger.stats()


async def is_new(ledger: Ledger, id: int) -> bool:
    return not await ledger.seen(id)


@pytest.mark.parametrize("dense", [True, False])
async def test_a_script_touches_only_the_keys_that_it_declares(server: RedisServer, dense: bool) -> None:
    declared: list[str] = []
    touched = 0
    async with Dedup(server.url, namespace="t", timeout=5.0, known_duplicates=0) as dedup:
        with server.client() as raw, server.client() as asking, raw.monitor() as monitor:
            for script in all_scripts():
                asking.script_load(script.text)
            await ask_all(dedup.ledger(f"l{dense}", window=3600.0, capacity=10_000, dense=dense))
            asking.echo("end")
            while (heard := monitor.next_command())["command"] != "ECHO end":
                words = heard["command"].split(" ")
                if words[0] == "EVALSHA":
                    declared = words[3 : 3 + int(words[2])]
                elif heard["client_type"] == "lua" and words[0] != "TIME":
                    assert words[1 + (words[0] == "MEMORY")] in declared
                    touched += 1
    assert touched > 300
