"""A codec that encodes a value to `b""` gave the first caller None in place of its result, and duplicates as well."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fastdedup import Dedup, ResultError
from fastdedup.sync.sql import Inbox
from fastdedup.testing import inbox_database


class Raw:
    """A codec for bytes."""

    dumps = loads = staticmethod(bytes)


def test_the_inbox_refuses_it() -> None:
    inbox = Inbox("billing", keep=60.0, codec=Raw())
    with inbox_database(inbox) as connection:

        @contextmanager
        def begin() -> Iterator[sqlite3.Connection]:
            with connection:
                yield connection

        @inbox.once(lambda _, result: repr(result), begin=begin)
        def work(transaction: sqlite3.Connection, result: bytes | None) -> bytes | None:
            return result

        once: Any = work
        for _ in range(2):
            assert [once(None), once(b"x")] == [None, b"x"]
            with pytest.raises(ResultError, match="no bytes of a result of type bytes"):
                once(b"")
        assert connection.execute("SELECT count(*) FROM fastdedup_inbox").fetchone() == (2,)


async def test_the_gate_refuses_it(redis_url: str) -> None:
    for url in (redis_url, "memory://"):
        async with Dedup(url, namespace="shop", codec=Raw()) as dedup:
            claim = await dedup.claim("empty")
            with pytest.raises(ResultError, match="no bytes of a result of type bytes"):
                await claim.complete(b"")
            await claim.release()
            for result in (None, b"x"):
                await (await dedup.claim(f"{result!r}")).complete(result)
                assert (await dedup.claim(f"{result!r}")).result == result
