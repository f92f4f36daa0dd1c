"""What a ledger refuses: a store that evicts keys, and to show its secret."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Sequence
from time import monotonic
from typing import Any

import pytest
from click.testing import CliRunner

from fastdedup import ConfigError, Dedup, ForeignRecordError, Ledger, LedgerFullError, UnavailableError
from fastdedup.cli.main import cli
from fastdedup.events import Event, LedgerFilling
from fastdedup.kernel.codes import Code
from fastdedup.kernel.operations import ClaimOp, Op, Reply
from fastdedup.kernel.verbs import Verb
from fastdedup.ledger.ids import ledger_wire
from fastdedup.stores.base import Store
from fastdedup.testing import Clock, FakeStore

from ..servers import RedisServer, evicting

HOUR = 3600.0


def gate_on(url: str | Store, **settings: Any) -> Dedup:
    return Dedup(url, **{"namespace": "refusals", "timeout": 5.0, **settings})


def ledger_of(dedup: Dedup, name: str = "orders", **settings: Any) -> Ledger:
    return dedup.ledger(name, **{"window": HOUR, "capacity": 90, **settings})


async def test_a_login_that_may_not_ask_is_not_refused(server: RedisServer) -> None:
    """Nobody knows the policy then: `docs/ledger.md` says which one to set."""
    with server.client() as raw:
        raw.execute_command("ACL", "SETUSER", "asker", "on", ">secret", "~*", "&*", "+@all", "-info")
        url = server.url.replace("unix://", "unix://asker:secret@")
        with evicting(raw):
            async with gate_on(url) as dedup:
                assert await ledger_of(dedup, "unasked").first("id") is True


async def test_a_silent_store_is_asked_for_its_policy_later(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gate_on(server.url) as dedup:
        store, ledger = dedup.gate.connection.store, ledger_of(dedup, "later")

        async def silent() -> None:
            raise UnavailableError("no answer in time")

        with monkeypatch.context() as patched:
            patched.setattr(store, "eviction_policy", silent)
            assert await ledger.first("id") is True
        assert ledger.view is not None
        ledger.view.until = 0.0
        with server.client() as raw, evicting(raw), pytest.raises(ConfigError, match="allkeys-lru"):
            await ledger.first("id")


async def test_a_policy_that_is_set_later_is_refused(server: RedisServer) -> None:
    """It is asked for whenever the form is read."""
    async with gate_on(server.url) as dedup:
        ledger = ledger_of(dedup, "set.later")
        assert await ledger.first("id") is True
        assert ledger.view is not None
        with server.client() as raw, evicting(raw):
            ledger.view.until = 0.0
            with pytest.raises(ConfigError, match="allkeys-lru"):
                await ledger.first("id")
        assert await ledger.first("id") is False


async def test_the_servers_commands_show_no_secret(server: RedisServer) -> None:
    """But for the founding: whoever watches a ledger in use cannot choose ids that collide."""
    async with gate_on(server.url) as founder, gate_on(server.url) as user:
        await ledger_of(founder, "watched").first("id")
        with server.client() as raw, server.client() as other:
            wire = ledger_wire("refusals", "watched")
            raw.pexpire(wire, 60_000)
            with other.monitor() as watch:
                for ledger in (ledger_of(founder, "watched"), ledger_of(user, "watched")):
                    assert await ledger.first("id") is False
                    assert ledger.view is not None
                    ledger.view.until = 0.0
                    assert await ledger.first("id") is False
                raw.echo("the end")
                shown = ""
                while "the end" not in shown:
                    shown += watch.next_command()["command"]
            assert raw.pttl(wire) > 60_000, "its life is prolonged all the same"
            secret = ledger.view.form.secret
            assert wire.decode() in shown
            assert secret.hex() not in shown


async def test_only_entries_count_for_the_fill(server: RedisServer) -> None:
    """A bucket's free places do not: LedgerFilling would come early."""
    async with gate_on(server.url) as dedup:
        ledger = ledger_of(dedup, "counted")
        for size in (50, 300):  # the first way of an insert, and the one that has old entries
            await ledger.first_many(range(size))
            assert ledger.view is not None
            before = ledger.view.terms.seen_fill
            await ledger.first(size)
            assert round((ledger.view.terms.seen_fill - before) * 2001 + before) == size


WINDOW = 2.0
"""Seconds, so many that a busy machine sends the ids of a window within it."""


async def test_ids_that_are_over_do_not_count_for_its_filling(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They lie in their buckets until these are written anew, so a ledger that is planned as told seems fuller."""
    monkeypatch.setattr("fastdedup.ledger.filling._LOOK_AGAIN", 0.0)
    told: list[Event] = []
    ids, sent = 3000, 0
    async with gate_on(server.url, on_event=told.append) as dedup:
        steady = ledger_of(dedup, "steady", window=WINDOW, capacity=ids * 4 // 3)
        last, windows, seemed = monotonic(), 0.0, False
        while windows < 2.2 or not seemed:
            assert windows < 10.0
            passed, last = monotonic() - last, monotonic()
            windows += min(passed, 0.1) / WINDOW  # what a busy machine has not sent in time is never sent
            present = int(windows * ids) + 1
            await steady.first_many(range(sent, present))
            sent = present
            await asyncio.sleep(0)
            assert steady.view is not None
            seemed = seemed or steady.view.terms.seen_fill > steady.view.form.filling_from
        assert (await steady.stats()).fill < 0.8
        assert told == []
        grown = ledger_of(dedup, "grown", capacity=ids)
        await grown.first_many(range(ids))
        while not told:
            sent += 1
            await grown.first(sent)
            assert sent < 10 * ids
    event = told[0]
    assert isinstance(event, LedgerFilling)
    assert (event.ledger, event.fill > 0.9) == ("grown", True)


async def test_the_secret_is_shown_nowhere(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """Neither logs, nor events, nor errors, nor commands; here each way that may speak is made to."""
    caplog.set_level(logging.DEBUG)
    told: list[Any] = []
    errors: list[BaseException] = []

    async def fails(ledger: Ledger, kind: type[Exception], ids: list[Any]) -> None:
        with pytest.raises(kind) as caught:
            await ledger.first_many(ids)
        errors.append(caught.value)

    with server.client() as raw:
        async with gate_on(server.url, on_event=told.append, timeout=2.0) as dedup:
            ledger = ledger_of(dedup, "hidden")
            await ledger.first_many(range(1000))
            await fails(ledger, LedgerFullError, list(range(1000, 3000)))
            await fails(ledger_of(dedup, "hidden", capacity=91), ConfigError, ["id"])
            view = ledger.view
            assert view is not None
            raw.set(view.addresses.bucket(0), "foreign", px=60_000)
            await fails(ledger, ForeignRecordError, ["id"])
            unreadable = ledger_wire("refusals", "newer")
            raw.set(unreadable, b"\1N" + view.text.replace(b'"slots":100', b'"slots":200'), px=60_000)
            await fails(ledger_of(dedup, "newer"), ConfigError, ["id"])
            with server.frozen():
                ledger.form.view = None
                await fails(ledger, UnavailableError, ["id"])
            shown = [repr(ledger), repr(view), repr(view.form), repr(view.terms), str(dedup.settings)]
        keys = ["hidden", "~hidden"]
        commands = [[verb, key] for verb in ("inspect", "forget") for key in keys]
        for command in commands:
            ran = await asyncio.to_thread(
                CliRunner().invoke, cli, [*command, "--url", server.url, "--namespace", "refusals"]
            )
            shown.append(ran.output)
    assert told, "it has told of filling"
    shown += [caplog.text, repr(told), *("".join(traceback.format_exception(error)) for error in errors)]
    secret = view.form.secret
    for text in shown:
        assert secret.hex() not in text
        assert repr(secret)[2:-1] not in text


class Unsteady(FakeStore):
    """It finds the place of each completion stale."""

    asked = 0

    async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
        if verb is not Verb.SETTLE:
            return await super().execute(verb, ops)
        self.asked += len(ops)
        return [Code.STALE] * len(ops)


async def test_a_completion_whose_place_stays_stale_ends() -> None:
    store = Unsteady()
    async with gate_on(store) as dedup:
        claim = await dedup.claim("k", remember=ledger_of(dedup))
        with pytest.raises(UnavailableError, match="changes all the time"):
            await claim.complete(within=0.0)
    assert store.asked == 5


class Older(FakeStore):
    """It was written when claims with a ledger were verbs of their own."""

    async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
        for op in ops:
            if isinstance(op, ClaimOp):
                op.unless = None
        return await super().execute(verb, ops)


async def test_a_store_that_does_not_look_at_ledgers_is_refused() -> None:
    """It would forget `remember=` without a word."""
    async with gate_on(Older()) as dedup:
        ledger = ledger_of(dedup)
        assert await ledger.first("id") is True
        for _ in range(2):
            with pytest.raises(ConfigError, match=r"does not look at ClaimOp\.unless"):
                await dedup.claim("k", remember=ledger)


class Own(FakeStore):
    """A user's own store, which looks at `ClaimOp.unless`."""


async def test_a_store_that_looks_at_ledgers_is_asked_without_a_trace() -> None:
    """At any time of its clock."""
    store = Own(Clock(0.0))
    async with gate_on(store) as dedup:
        assert (await dedup.claim("k", remember=ledger_of(dedup))).acquired
        assert "records=1" in repr(store)


@pytest.mark.parametrize("width", [7.0, True, "7", 5])
def test_a_width_is_a_whole_number(width: Any) -> None:
    """7.0 made a ledger that no client could read, nor create anew until its form was over."""
    with pytest.raises(ConfigError, match="width must be 16"):
        ledger_of(Dedup("memory://"), width=width)
