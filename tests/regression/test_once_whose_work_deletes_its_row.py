"""`Inbox.once` told that begin= does not commit and the work was rolled back, but it was committed without its row.

The work had deleted its message's row, and returned None, on SQLite or MariaDB. So each delivery did it again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest

from fastdedup import UsageError
from fastdedup.sql.dialects.base import Rows, Statement
from fastdedup.sql.rules import InboxRules

from ..sql import conftest as sql
from ..sql.ways import WAYS, WEEK, Party, SyncParty

key, of = sql.key, sql.of
postgres_place, mariadb_place, sqlite_place = sql.postgres_place, sql.mariadb_place, sql.sqlite_place


@pytest.fixture(params=list(WAYS))
def party_of(request: pytest.FixtureRequest) -> Callable[[], Party]:
    return sql.opener(request, request.param)


def deletion(party: Party, key: str) -> str:
    row = party.inbox().id_of(key).hex()
    value = {"sqlite": f"X'{row}'", "mysql": f"UNHEX('{row}')"}.get(party.place.kind, f"'{row}'")
    return f"DELETE FROM fastdedup_inbox WHERE id = {value}"


@pytest.mark.parametrize("result", [None, "paid"])
async def test_work_without_its_row_is_not_committed(
    party_of: Callable[[], Party], key: str, result: Any
) -> None:
    async with party_of() as party:
        deletes = True

        def now(transaction: Any, key: str) -> Any:
            party._sql(f"INSERT INTO work (note) VALUES ('{key}')")
            if deletes:
                party._sql(deletion(party, key))
            return result

        async def later(transaction: Any, key: str) -> Any:
            await party.work(key)
            if deletes:
                await party.sql(deletion(party, key))
            return result

        is_sync = isinstance(party, SyncParty)
        once = party.inbox(begin=party.begin_now if is_sync else party.begin).once(  # type: ignore[attr-defined]
            lambda transaction, key: key
        )(now if is_sync else later)
        for _ in range(2):
            with pytest.raises(UsageError, match="or the row was deleted"):
                await party.call(once, key)
            assert not party.place.sql(f"SELECT note FROM work WHERE note = '{key}'")
        deletes = False
        assert await party.call(once, key) == result
        assert await party.call(once, key) == result
        assert len(party.place.sql(f"SELECT note FROM work WHERE note = '{key}'")) == 1


def statements(flow: Generator[Statement, Rows, Any], row: tuple[Any, ...]) -> int:
    """Return how many statements a flow has, if each one finds this row."""
    count = 0
    try:
        next(flow)
        while True:
            count += 1
            flow.send(Rows([row], 1))
    except StopIteration:
        return count


@pytest.mark.parametrize("dialect", ["sqlite", "mysql", "postgresql"])
def test_no_further_statement_is_sent_once_begin_is_known_to_commit(dialect: str) -> None:
    rules = InboxRules("tests", keep=WEEK, table="fastdedup_inbox", schema=None, codec=None, max_result=1000)
    row = (b"", None) if dialect == "mysql" else (b"\1" * 16, b"", None)
    for result in (None, "paid"):
        sent = [
            statements(rules.finish((dialect, ""), b"\1" * 16, result, "anchor", look=look), row)
            for look in (False, True)
        ]
        is_bare = result is None and dialect != "postgresql"
        assert sent[1] - sent[0] == (1 if is_bare else 0)
