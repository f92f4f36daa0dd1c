"""docs/sql-ways.md: each right way does what it says, and each wrong way fails, on real servers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

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


TABLES = way("The tables of the examples", "")
VERSION = "An optimistic version"
READ, LOSE = way(VERSION, "wrong")
READ_VERSION, SWAP = way(VERSION, "right")
CONDITION = "A condition in the UPDATE"
LOOK_AT_STOCK, OVERSELL = way(CONDITION, "wrong")
(SELL,) = way(CONDITION, "right")
LOCK = "A pessimistic lock"
GLANCE, PAY_UNLOCKED = way(LOCK, "wrong")
LOCK_ROW, PAY = way(LOCK, "right")
INSERT, LOCK_INSERTED = way(LOCK, "right, PostgreSQL")
WINDOW = "A business key with a time window"
PURCHASES = way(WINDOW, "")
(PURCHASE_ONCE,) = way(WINDOW, "right")
COLUMN = "An `idempotency_key` column"
ORDERS = way(COLUMN, "")
ORDER_ONCE, FIRST_ORDER = way(COLUMN, "right")
MACHINE = "A status machine"
LOOK_AT_STATUS, OVERWRITE = way(MACHINE, "wrong")
MOVE, LOOK_AFTER = way(MACHINE, "right")
INSERT_ORDER, LOCKING_READ = way(COLUMN, "right, MariaDB, read")

ORDER = {"account": 7, "key": "k", "item": "lamp"}
PURCHASE = {"account": 7, "sku": 9}


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


async def test_three_who_insert_first_lock_one_after_another(ann: Desk, bob: Desk, cat: Desk) -> None:
    ann.run(INSERT, id=2)
    late = [await desk.begin(INSERT, id=2) for desk in (bob, cat)]
    assert ann.one(LOCK_INSERTED, id=2) == "pending"
    ann.run(PAY, id=2)
    ann.commit()

    async def locked(desk: Desk, inserting: asyncio.Task[Rows]) -> str:
        await inserting
        status = await asyncio.to_thread(desk.one, LOCK_INSERTED, id=2)
        desk.commit()
        return str(status)

    assert await asyncio.gather(locked(bob, late[0]), locked(cat, late[1])) == ["paid", "paid"]


# A business key with a time window


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


async def test_a_column_of_its_own_orders_once(ann: Desk, bob: Desk) -> None:
    ann.set_up(ORDERS)
    assert ann.one(ORDER_ONCE, id="1", **ORDER) == "1"
    late = await bob.begin(ORDER_ONCE, id="2", **ORDER)
    ann.commit()
    assert (await late, bob.run(FIRST_ORDER, **ORDER)) == ([], [("1", "lamp")])
    assert bob.one(ORDER_ONCE, id="3", **{**ORDER, "account": 8}) == "3"  # another customer's key


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


@on_mariadb
def test_a_locking_read_sees_the_first(ann: Desk, bob: Desk) -> None:
    ann.set_up(ORDERS)
    bob.run(LOOK_AT_STATUS, id=1)  # its snapshot is made here
    ann.run(INSERT_ORDER, id="1", **ORDER)
    ann.commit()
    bob.run(INSERT_ORDER, id="2", **ORDER)
    assert bob.one(LOCKING_READ, **ORDER) == "1"


def test_each_statement_of_the_page_has_a_test() -> None:
    assert sorted(taken) == sorted(PAGE.all_blocks("sql"))
