"""docs/sql-ways.md: each right way does what it says, and each wrong way fails, on real servers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psycopg
import pymysql
import pytest

from fastdedup import business_key

from .desks import Desk, Desks, Rows
from .pages import Page, label, statements

PAGE = Page("sql-ways.md")
taken: list[str] = []


def way(section: str, name: str) -> list[str]:
    """Give the statements of a block, by its label, such as "right" or "wrong, MariaDB"; tables have no label."""
    (block,) = (each for each in PAGE.blocks(section, "sql") if label(each) == name)
    taken.append(block)
    return statements(block)


# Ways that the page tells in words

BY_VALUE = """
-- wrong: 500, then 400, then 500 again after a refund: the redelivered message withdraws a second time
UPDATE account SET balance = 400 WHERE id = :id AND balance = 500;
"""
BY_VERSION = """
-- right: the message carries the version that it was made for. Every writer of the table raises it
UPDATE account SET balance = 400, version = version + 1 WHERE id = :id AND version = :version;
"""
LOCK_ABSENT_ROW = """
-- wrong, MariaDB: a deadlock for each pair of first messages
SELECT status FROM payment WHERE id = :id FOR UPDATE;
INSERT INTO payment (id, status) VALUES (:id, 'pending');
"""
INSERT_IGNORE = """
-- wrong, MariaDB: two waiting duplicates get a shared lock each; both want more, and one ends in a deadlock
INSERT IGNORE INTO payment (id, status) VALUES (:id, 'pending');
SELECT status FROM payment WHERE id = :id FOR UPDATE;
"""
LOOK_AND_PURCHASE = """
-- wrong: two look at the same moment, both find nothing, and both insert
SELECT 1 FROM purchase WHERE account = :account AND sku = :sku AND at > now() - interval '5 minutes';
INSERT INTO purchase (business_key, account, sku) VALUES (:any, :account, :sku);
"""
NO_UNIQUE_KEY = """
-- wrong: without a unique key two look, both find nothing, and both insert
CREATE TABLE unguarded (account integer, idempotency_key varchar(255), id varchar(36), item varchar(64));
SELECT id FROM unguarded WHERE account = :account AND idempotency_key = :key;
INSERT INTO unguarded (account, idempotency_key, id, item) VALUES (:account, :key, :id, :item);
"""
CATCH_AND_LOOK = """
-- wrong, PostgreSQL: the INSERT's error ends the transaction, so the SELECT in the except clause fails
INSERT INTO orders (account, idempotency_key, id, item) VALUES (:account, :key, :id, :item);
SELECT id FROM orders WHERE account = :account AND idempotency_key = :key;
"""
TEXT_COLUMN = """
-- wrong, MariaDB
CREATE TABLE keys_of_text (idempotency_key VARCHAR(64) PRIMARY KEY);
INSERT IGNORE INTO keys_of_text (idempotency_key) VALUES (:key);
"""
UNION_IN_ONE = """
-- wrong, PostgreSQL: one statement sees one moment. A duplicate that has waited for the first gets no row at all
WITH inserted AS (
    INSERT INTO orders (account, idempotency_key, id, item) VALUES (:account, :key, :id, :item)
    ON CONFLICT (account, idempotency_key) DO NOTHING RETURNING id
)
SELECT id FROM inserted UNION ALL SELECT id FROM orders WHERE account = :account AND idempotency_key = :key;
"""
BINARY_COLUMN = """
-- right, MariaDB
CREATE TABLE keys_of_bytes (idempotency_key VARBINARY(255) PRIMARY KEY);
INSERT INTO keys_of_bytes (idempotency_key) VALUES (:key)
ON DUPLICATE KEY UPDATE idempotency_key = idempotency_key;
"""
UPDATE_IN_ONE = """
-- right, PostgreSQL: one statement, which writes the row anew for each duplicate
INSERT INTO orders (account, idempotency_key, id, item) VALUES (:account, :key, :id, :item)
ON CONFLICT (account, idempotency_key) DO UPDATE SET id = orders.id RETURNING id;
"""
INSERT_FIRST = """
-- right, MariaDB
INSERT INTO payment (id, status) VALUES (:id, 'pending') ON DUPLICATE KEY UPDATE id = id;
SELECT status FROM payment WHERE id = :id FOR UPDATE;
"""
PLAIN_SELECT = """
-- wrong, MariaDB: a plain SELECT sees the time of the transaction's first SELECT, before the row was committed
INSERT INTO orders (account, idempotency_key, id, item) VALUES (:account, :key, :id, :item)
ON DUPLICATE KEY UPDATE id = id;
SELECT id FROM orders WHERE account = :account AND idempotency_key = :key;
"""

TABLES = way("The tables of the examples", "")
VERSION = "An optimistic version"
READ, LOSE = way(VERSION, "wrong")
READ_VERSION, SWAP = way(VERSION, "right")
CONDITION = "A condition in the UPDATE"
LOOK_AT_STOCK, OVERSELL = way(CONDITION, "wrong")
(SELL,) = way(CONDITION, "right")
(WITHDRAW_BY_VALUE,) = statements(BY_VALUE)
(WITHDRAW_BY_VERSION,) = statements(BY_VERSION)
LOCK = "A pessimistic lock"
GLANCE, PAY_UNLOCKED = way(LOCK, "wrong")
LOCK_ROW, PAY = way(LOCK, "right")
LOCK_ABSENT, INSERT = statements(LOCK_ABSENT_ROW)
INSERT_AND_LOCK = {"postgres": way(LOCK, "right, PostgreSQL"), "mariadb": statements(INSERT_FIRST)}
IGNORE_AND_LOCK = statements(INSERT_IGNORE)
WINDOW = "A business key with a time window"
PURCHASES = way(WINDOW, "")
LOOK_FOR_PURCHASE, PURCHASE_UNGUARDED = statements(LOOK_AND_PURCHASE)
(PURCHASE_ONCE,) = way(WINDOW, "right")
COLUMN = "An `idempotency_key` column"
ORDERS = way(COLUMN, "")
UNGUARDED, LOOK_UNGUARDED, ORDER_UNGUARDED = statements(NO_UNIQUE_KEY)
ORDER_AND_CATCH = statements(CATCH_AND_LOOK)
ORDER_ONCE, FIRST_ORDER = way(COLUMN, "right")
KEYS_OF_TEXT, KEYS_OF_BYTES = statements(TEXT_COLUMN), statements(BINARY_COLUMN)
MACHINE = "A status machine"
LOOK_AT_STATUS, OVERWRITE = way(MACHINE, "wrong")
MOVE, LOOK_AFTER = way(MACHINE, "right")
(IN_ONE,) = statements(UNION_IN_ONE)
(IN_ONE_WITH_UPDATE,) = statements(UPDATE_IN_ONE)
PLAIN_READ, LOCKING_READ = statements(PLAIN_SELECT), way(COLUMN, "right, MariaDB, read")

ORDER = {"account": 7, "key": "k", "item": "lamp"}
PURCHASE = {"account": 7, "sku": 9}
KEYS = ("Key", "key", "key ", "x" * 64 + "1", "x" * 64 + "2")
DEADLOCK = 1213


@pytest.fixture(scope="module")
def databases(request: pytest.FixtureRequest) -> Iterator[dict[str, Desks]]:
    """A database of this file's own in each server, made when it is first asked for."""

    class Lazy(dict[str, Desks]):
        def __missing__(self, server: str) -> Desks:
            self[server] = Desks(request.getfixturevalue(server))
            return self[server]

    made = Lazy()
    yield made
    for each in made.values():
        each.drop()


@pytest.fixture
def server(request: pytest.FixtureRequest) -> str:
    """PostgreSQL, unless the test is parametrised with another one."""
    return str(getattr(request, "param", "postgres"))


@pytest.fixture
def desks(server: str, databases: dict[str, Desks]) -> Iterator[Desks]:
    yield databases[server]
    databases[server].empty()


@pytest.fixture
def ann(desks: Desks) -> Desk:
    """One connection. 500 are on the account, one piece is in stock, and a payment waits."""
    desk = desks.desk()
    desk.set_up(
        [
            *TABLES,
            "INSERT INTO account (id, balance) VALUES (7, 500)",
            "INSERT INTO product (id, stock) VALUES (9, 1)",
            "INSERT INTO payment (id, status) VALUES (1, 'pending')",
        ]
    )
    return desk


@pytest.fixture
def bob(desks: Desks, ann: Desk) -> Desk:
    """Another connection to the same tables."""
    return desks.desk()


@pytest.fixture
def cat(desks: Desks, ann: Desk) -> Desk:
    """A third connection."""
    return desks.desk()


both_servers = pytest.mark.parametrize("server", ["postgres", "mariadb"], indirect=True)
on_mariadb = pytest.mark.parametrize("server", ["mariadb"], indirect=True)


def balance(desk: Desk) -> int:
    return int(desk.one("SELECT balance FROM account WHERE id = 7"))


# An optimistic version


@both_servers
def test_without_a_version_a_withdrawal_is_lost(ann: Desk, bob: Desk) -> None:
    seen = [desk.one(READ, id=7) for desk in (ann, bob)]
    for desk, before, amount in ((ann, seen[0], 100), (bob, seen[1], 50)):
        desk.run(LOSE, id=7, new=before - amount)
        desk.commit()
    assert balance(ann) == 450  # 350 is right


@both_servers
def test_a_version_lets_one_writer_through(ann: Desk, bob: Desk) -> None:
    ((money, version),) = ann.run(READ_VERSION, id=7)
    assert bob.run(READ_VERSION, id=7) == [(money, version)]
    ann.run(SWAP, id=7, new=money - 100, version=version)
    ann.commit()
    bob.run(SWAP, id=7, new=money - 50, version=version)
    bob.commit()
    assert (ann.changed, bob.changed, balance(ann)) == (1, 0, 400)


def test_a_version_does_not_know_a_redelivery(ann: Desk) -> None:
    for _ in range(2):  # the same message
        ((money, version),) = ann.run(READ_VERSION, id=7)
        ann.run(SWAP, id=7, new=money - 100, version=version)
        assert ann.changed == 1
    assert balance(ann) == 300  # 400 is right


# A condition in the UPDATE


@both_servers
def test_two_who_look_first_sell_the_last_piece(ann: Desk, bob: Desk) -> None:
    assert [desk.one(LOOK_AT_STOCK, id=9) for desk in (ann, bob)] == [1, 1]
    for desk in (ann, bob):
        desk.run(OVERSELL, id=9)
        desk.commit()
    assert ann.one(LOOK_AT_STOCK, id=9) == -1


@both_servers
async def test_a_condition_sells_the_last_piece_once(ann: Desk, bob: Desk) -> None:
    ann.run(SELL, id=9)
    late = await bob.begin(SELL, id=9)
    ann.commit()
    await late
    assert (ann.changed, bob.changed) == (1, 0)


def test_a_value_that_comes_back_withdraws_twice(ann: Desk) -> None:
    ann.run(WITHDRAW_BY_VALUE, id=7)
    ann.run("UPDATE account SET balance = balance + 100 WHERE id = 7")  # a refund
    ann.run(WITHDRAW_BY_VALUE, id=7)  # the same message again
    assert (ann.changed, balance(ann)) == (1, 400)  # 500 is right


def test_a_version_in_the_message_withdraws_once(ann: Desk) -> None:
    ann.run(WITHDRAW_BY_VERSION, id=7, version=0)
    ann.run("UPDATE account SET balance = balance + 100, version = version + 1 WHERE id = 7")
    ann.run(WITHDRAW_BY_VERSION, id=7, version=0)
    assert (ann.changed, balance(ann)) == (0, 500)


# A pessimistic lock


@both_servers
def test_without_a_lock_two_call_the_provider(ann: Desk, bob: Desk) -> None:
    assert [desk.one(GLANCE, id=1) for desk in (ann, bob)] == ["pending", "pending"]
    for desk in (ann, bob):
        desk.run(PAY_UNLOCKED, id=1)
        desk.commit()  # nothing stops the second one


@both_servers
async def test_a_lock_shows_the_second_what_the_first_did(ann: Desk, bob: Desk) -> None:
    assert ann.one(LOCK_ROW, id=1) == "pending"
    late = await bob.begin(LOCK_ROW, id=1)
    ann.run(PAY, id=1)
    ann.commit()
    assert await late == [("paid",)]


@on_mariadb
async def test_a_lock_on_an_absent_row_deadlocks(ann: Desk, bob: Desk) -> None:
    assert ann.run(LOCK_ABSENT, id=2) == bob.run(LOCK_ABSENT, id=2) == []
    late = await ann.begin(INSERT, id=2)
    both = (late, asyncio.to_thread(bob.run, INSERT, id=2))
    assert_one_deadlock(await asyncio.gather(*both, return_exceptions=True))


def test_a_lock_on_an_absent_row_locks_nothing(ann: Desk, bob: Desk) -> None:
    assert ann.run(LOCK_ABSENT, id=2) == bob.run(LOCK_ABSENT, id=2) == []
    ann.run(INSERT, id=2)
    ann.commit()
    with pytest.raises(psycopg.errors.UniqueViolation):
        bob.run(INSERT, id=2)


@both_servers
async def test_three_who_insert_first_lock_one_after_another(
    server: str, ann: Desk, bob: Desk, cat: Desk
) -> None:
    insert, lock = INSERT_AND_LOCK[server]
    ann.run(insert, id=2)
    late = [await desk.begin(insert, id=2) for desk in (bob, cat)]
    assert ann.one(lock, id=2) == "pending"
    ann.run(PAY, id=2)
    ann.commit()

    async def locked(desk: Desk, inserting: asyncio.Task[Rows]) -> str:
        await inserting
        status = await asyncio.to_thread(desk.one, lock, id=2)
        desk.commit()
        return str(status)

    assert await asyncio.gather(locked(bob, late[0]), locked(cat, late[1])) == ["paid", "paid"]


@on_mariadb
async def test_two_duplicates_deadlock_after_insert_ignore(ann: Desk, bob: Desk, cat: Desk) -> None:
    insert, lock = IGNORE_AND_LOCK
    ann.run(insert, id=2)
    late = [await desk.begin(insert, id=2) for desk in (bob, cat)]
    ann.commit()
    await asyncio.gather(*late)
    both = [asyncio.to_thread(desk.run, lock, id=2) for desk in (bob, cat)]
    assert_one_deadlock(await asyncio.gather(*both, return_exceptions=True))


# A business key with a time window


def test_two_who_look_first_both_buy(ann: Desk, bob: Desk) -> None:
    ann.set_up(PURCHASES)
    assert ann.run(LOOK_FOR_PURCHASE, **PURCHASE) == bob.run(LOOK_FOR_PURCHASE, **PURCHASE) == []
    for number, desk in enumerate((ann, bob)):
        desk.run(PURCHASE_UNGUARDED, any=str(number), **PURCHASE)
        assert desk.changed == 1
        desk.commit()


async def test_a_business_key_buys_once(ann: Desk, bob: Desk) -> None:
    ann.set_up(PURCHASES)
    key = business_key("user:7", "sku:9", window=300, at=43_200.0)
    assert ann.one(PURCHASE_ONCE, key=key, **PURCHASE) == key
    late = await bob.begin(PURCHASE_ONCE, key=key, **PURCHASE)
    ann.commit()
    assert await late == []


def test_a_slot_has_one_key_and_an_edge() -> None:
    (block,) = PAGE.blocks(WINDOW, "python")
    assert PAGE.run(block)["noon"] == business_key("user:7", "sku:9", window=300, at=43_499.0)


# An idempotency_key column


def test_without_a_unique_key_two_order(ann: Desk, bob: Desk) -> None:
    ann.set_up([UNGUARDED])
    found = [desk.run(LOOK_UNGUARDED, account=7, key="k") for desk in (ann, bob)]
    assert found == [[], []]
    for number, desk in enumerate((ann, bob)):
        desk.run(ORDER_UNGUARDED, id=str(number), **ORDER)
        assert desk.changed == 1
        desk.commit()


def test_a_caught_unique_violation_leaves_a_dead_transaction(ann: Desk) -> None:
    insert, look = ORDER_AND_CATCH
    ann.set_up(ORDERS)
    ann.run(insert, id="1", **ORDER)
    ann.commit()
    with pytest.raises(psycopg.errors.UniqueViolation):
        ann.run(insert, id="2", **ORDER)
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        ann.run(look, **ORDER)


async def test_a_column_of_its_own_orders_once(ann: Desk, bob: Desk) -> None:
    ann.set_up(ORDERS)
    assert ann.one(ORDER_ONCE, id="1", **ORDER) == "1"
    late = await bob.begin(ORDER_ONCE, id="2", **ORDER)
    ann.commit()
    assert (await late, bob.run(FIRST_ORDER, **ORDER)) == ([], [("1", "lamp")])
    assert bob.one(ORDER_ONCE, id="3", **{**ORDER, "account": 8}) == "3"  # another customer's key


@on_mariadb
@pytest.mark.parametrize(
    ("way", "rows"), [(KEYS_OF_TEXT, 2), (KEYS_OF_BYTES, len(KEYS))], ids=["text", "bytes"]
)
def test_only_a_column_of_bytes_tells_keys_apart(way: list[str], rows: int, ann: Desk) -> None:
    create, insert = way
    ann.run(create)
    for key in KEYS:
        ann.run(insert, key=key)
    assert ann.one(f"SELECT COUNT(*) FROM {create.split()[2]}") == rows


# A status machine


@both_servers
def test_a_status_that_was_read_before_is_overwritten(ann: Desk, bob: Desk) -> None:
    assert [desk.one(LOOK_AT_STATUS, id=1) for desk in (ann, bob)] == ["pending", "pending"]
    for desk, status in ((ann, "paid"), (bob, "failed")):
        desk.run(OVERWRITE, id=1, status=status)
        assert desk.changed == 1
        desk.commit()
    assert ann.one(LOOK_AT_STATUS, id=1) == "failed"


@both_servers
async def test_a_status_machine_moves_once(ann: Desk, bob: Desk) -> None:
    ann.run(MOVE, id=1)
    late = await bob.begin(MOVE, id=1)
    ann.commit()
    await late
    assert (ann.changed, bob.changed, bob.one(LOOK_AFTER, id=1)) == (1, 0, "paid")


# Insert, and return the first


@pytest.mark.parametrize(
    ("statement", "rows"), [(IN_ONE, []), (IN_ONE_WITH_UPDATE, [("1",)])], ids=["nothing", "update"]
)
async def test_one_statement_does_not_see_whom_it_waited_for(
    statement: str, rows: Rows, ann: Desk, bob: Desk
) -> None:
    """Unless it writes the row, which then is the newest one."""
    ann.set_up(ORDERS)
    assert ann.one(statement, id="1", **ORDER) == "1"
    late = await bob.begin(statement, id="2", **ORDER)
    ann.commit()
    assert await late == rows


@on_mariadb
@pytest.mark.parametrize(
    ("way", "first"), [(PLAIN_READ, None), (LOCKING_READ, "1")], ids=["plain", "locking"]
)
def test_only_a_locking_read_sees_the_first(way: list[str], first: str | None, ann: Desk, bob: Desk) -> None:
    insert, look = way
    ann.set_up(ORDERS)
    bob.run(LOOK_AT_STATUS, id=1)  # its snapshot is made here
    ann.run(insert, id="1", **ORDER)
    ann.commit()
    bob.run(insert, id="2", **ORDER)
    assert bob.one(look, **ORDER) == first


def assert_one_deadlock(found: list[object]) -> None:
    (deadlock,) = (each for each in found if isinstance(each, pymysql.OperationalError))
    assert deadlock.args[0] == DEADLOCK


def test_each_statement_of_the_page_has_a_test() -> None:
    assert sorted(taken) == sorted(PAGE.all_blocks("sql"))
