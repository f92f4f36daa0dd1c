"""Which keys, names, results and settings an inbox takes, and which keys are the same."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from fastdedup import ConfigError, InvalidKeyError, ResultError, ResultTooLargeError, UsageError
from fastdedup.sidecar.namespaces import RawCodec
from fastdedup.sql import Inbox
from fastdedup.sync.sql import Inbox as SyncInbox

from .conftest import Opener
from .ways import WEEK


async def test_keys_that_databases_confuse_are_different(database: Opener, key: str) -> None:
    long = key + "x" * 70
    keys = [f"{key} a", f"{key} A", f"{key} a ", f"{key} á", f"{key} ß", f"{key} ss", f"{long}1", f"{long}2"]
    async with database() as party, party.transaction():
        found = await party.call(party.inbox().receive_many, party.raw, keys)
        assert all(each.first for each in found)


async def test_more_than_a_thousand_keys_are_received(database: Opener, key: str) -> None:
    keys = [f"{key} {number}" for number in range(1003)]
    async with database() as party:
        inbox = party.inbox()
        async with party.transaction():
            found = await party.call(inbox.receive_many, party.raw, iter(keys[:-2]))
            await party.call(found[7].complete, "kept")
        async with party.transaction():
            found = await party.call(inbox.receive_many, party.raw, keys)
            assert [each.key for each in found if each.first] == keys[-2:]
            assert found[7].result == "kept"


async def test_inboxes_of_different_names_do_not_meet(database: Opener, key: str) -> None:
    async with database() as party, party.transaction():
        assert (await party.receive(party.inbox("billing"), key)).first
        assert (await party.receive(party.inbox("shipping"), key)).first
        assert not (await party.receive(party.inbox("billing"), key)).first


@pytest.mark.parametrize(
    "wrong", ["", "x" * 1025, "\ud800", 7, None, b"bytes", ("a", "b")], ids=lambda value: ascii(value)[:9]
)
async def test_a_key_that_cannot_be_used_is_refused(of: Any, key: str, wrong: Any) -> None:
    async with of("aiosqlite")() as party, party.transaction():
        with pytest.raises(InvalidKeyError):
            await party.receive(party.inbox(), wrong)
        assert (await party.receive(party.inbox(), key)).first


@pytest.mark.parametrize("keys", ["text", b"bytes"])
async def test_one_text_is_no_list_of_keys(of: Any, keys: Any) -> None:
    async with of("aiosqlite")() as party, party.transaction():
        with pytest.raises(UsageError, match="takes a list of keys"):
            await party.call(party.inbox().receive_many, party.raw, keys)


async def test_no_keys_have_no_receipts(database: Opener) -> None:
    async with database() as party, party.transaction():
        assert await party.call(party.inbox().receive_many, party.raw, []) == []


async def test_an_unknown_way_to_be_busy_is_refused(of: Any, key: str) -> None:
    async with of("aiosqlite")() as party, party.transaction():
        inbox = party.inbox()
        with pytest.raises(ConfigError, match='"wait" or "skip"'):
            await party.receive(inbox, key, busy="wiat")
        with pytest.raises(ConfigError, match='"wait" or "skip"'):
            inbox.once(lambda order: order, begin=party.beginning, busy="skipp")


async def test_a_result_that_cannot_be_kept_leaves_the_transaction_usable(way: Opener, key: str) -> None:
    async with way() as party:
        inbox = party.inbox(max_result=100)
        async with party.transaction():
            receipt = await party.receive(inbox, key)
            with pytest.raises(ResultTooLargeError):
                await party.call(receipt.complete, "x" * 99)
            with pytest.raises(ResultError):
                await party.call(receipt.complete, object())
            await party.call(receipt.complete, "x" * 98)
        async with party.transaction():
            assert (await party.receive(inbox, key)).result == "x" * 98


async def test_a_large_result_of_any_bytes_is_kept(way: Opener, key: str) -> None:
    result = bytes(range(256)) * 1024
    async with way() as party:
        inbox = party.inbox(codec=RawCodec())
        async with party.transaction():
            await party.call((await party.receive(inbox, key)).complete, result)
        async with party.transaction():
            assert (await party.receive(inbox, key)).result == result


async def test_a_result_of_none_is_none(database: Opener, key: str) -> None:
    async with database() as party:
        async with party.transaction():
            await party.call((await party.receive(party.inbox(), key)).complete, None)
        async with party.transaction():
            again = await party.receive(party.inbox(), key)
            assert (again.first, again.result) == (False, None)


@pytest.mark.parametrize("kind", [Inbox, SyncInbox])
@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"keep": 0}, "keep must be between"),
        ({"keep": -1}, "keep must be between"),
        ({"keep": "7 days"}, "keep must be a number"),
        ({"table": 'inbox"; DROP TABLE work; --'}, "table= must be a name"),
        ({"table": "schema.inbox"}, "table= must be a name"),
        ({"table": ""}, "table= must be a name"),
        ({"table": "x" * 49}, "table= must be a name"),
        ({"table": "inbox\n"}, "table= must be a name"),
        ({"table": None}, "table= must be a name"),
        ({"schema": "public; --"}, "schema= must be a name"),
        ({"schema": "`a`"}, "schema= must be a name"),
        ({"max_result": 0}, "max_result must be"),
        ({"name": ""}, "an inbox.s name must"),
        (
            {"codec": RawCodec},
            r"codec must be an object with dumps\(\) and loads\(\), got the class RawCodec",
        ),
        ({"codec": "json"}, "codec must be an object .*, got str"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(kind: Any, settings: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        kind(**{"name": "tests", "keep": WEEK, **settings})


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"leader": "redis://h"}, r"purge\(leader=…\) must be a fastdedup\.{}Dedup, got builtins\.str"),
        ({"on_batch": 10}, "on_batch must be a plain function that takes the number of rows, got 10"),
        ({"on_batch": lambda: None}, r"takes the number of rows alone, got <lambda>\(\)"),
    ],
)
async def test_what_a_purge_cannot_use_is_refused_before_it_begins(given: dict[str, Any], what: str) -> None:
    def begin() -> Any:
        raise AssertionError("it has begun")

    with pytest.raises(ConfigError, match=what.format("")):
        await Inbox("tests", keep=WEEK, begin=begin).purge(**given)
    with pytest.raises(ConfigError, match=what.format(r"sync\.")):
        SyncInbox("tests", keep=WEEK, begin=begin).purge(**given)


@pytest.mark.parametrize("shared", [{"name": "same"}, {"table": "same"}])
def test_inboxes_of_one_name_or_table_keep_equally_long(shared: dict[str, str]) -> None:
    first = Inbox(**{"name": "one", "table": "first", **shared}, keep=timedelta(days=7))  # type: ignore[arg-type]
    again = SyncInbox(**{"name": "one", "table": "first", **shared}, keep=WEEK)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="a purge would delete the rows of one too early"):
        SyncInbox(**{"name": "two", "table": "second", **shared}, keep=timedelta(days=8))  # type: ignore[arg-type]
    del first, again
    assert SyncInbox("one", table="same", keep=9).name == "one"


async def test_a_receipt_is_neither_true_nor_false(of: Any, key: str) -> None:
    async with of("aiosqlite")() as party, party.transaction():
        receipt = await party.receive(party.inbox(), key)
        with pytest.raises(TypeError, match=r"ask receipt\.first"):
            bool(receipt)
        with pytest.raises(UsageError, match="do the work"):
            receipt.replay()
        assert repr(receipt).startswith(f"<Receipt {key!r}")
