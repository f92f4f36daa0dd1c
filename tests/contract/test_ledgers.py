"""Guarantees 16 to 19: ledgers."""

from __future__ import annotations

from datetime import timedelta
from enum import Enum
from typing import Any
from uuid import UUID

import pytest

from fastdedup import ConfigError, Dedup, ForeignRecordError, InvalidKeyError, Ledger
from fastdedup.ledger.ids import ledger_wire

from ..servers import evicting
from ..stores import Backend, on_both_faces
from ..waiting import wait_until

HOUR = 3600.0


def ledger_of(dedup: Dedup, name: str = "orders", **settings: Any) -> Ledger:
    return dedup.ledger(name, **{"window": HOUR, "capacity": 10_000, **settings})


class Form:
    """A kind of ledger. `id`: makes an id that it takes."""

    def __init__(self, name: str) -> None:
        self._dense = name == "dense"
        self._numbers: dict[str, int] = {}

    def ledger(self, dedup: Dedup, name: str = "orders", **settings: Any) -> Ledger:
        return ledger_of(dedup, name, dense=self._dense, **settings)

    def id(self, name: str) -> Any:
        return self._numbers.setdefault(name, 10**6 + len(self._numbers)) if self._dense else name


@pytest.fixture(params=["usual", "dense"])
def form(request: pytest.FixtureRequest) -> Form:
    return Form(request.param)


# 16: one first call


@on_both_faces
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"capacity": 90},
        {"width": 16},
        {"exact": False},
        {"width": 3, "exact": False},
        {"write": "append"},
        {"dense": True},
    ],
    ids=["usual", "one bucket", "wide", "narrow", "narrowest", "append", "dense"],
)
async def test_every_id_is_first_once(dedup: Dedup, settings: dict[str, Any]) -> None:
    """Also once a bucket was written anew: its entries lose their nonces, never their place."""
    ledger = ledger_of(dedup, **settings)
    for start in range(0, 900, 150):
        assert await ledger.first_many(range(start, start + 150)) == [True] * 150
        assert not any(await ledger.first_many(range(start + 150)))
    assert not await ledger.first(0)
    assert (await ledger.stats()).ids == 900


@on_both_faces
async def test_ids_of_a_list_may_be_equal(dedup: Dedup) -> None:
    ledger = ledger_of(dedup)
    assert await ledger.first_many(["a", "b", "a", b"b", "c"]) == [True, True, False, False, True]
    assert await ledger.first_many([]) == []


async def test_text_bytes_and_numbers_are_one_id(dedup: Dedup) -> None:
    ledger = ledger_of(dedup)
    assert await ledger.first("ü") is True
    assert await ledger.first("ü".encode()) is False
    assert await ledger.first(10**30) is True
    assert await ledger.first(str(10**30)) is False
    assert await ledger.first(UUID(int=7)) is True
    assert await ledger.first(str(UUID(int=7))) is False
    assert await ledger.first(b"\0\xff" * 1000) is True


async def test_ledgers_are_apart(backend: Backend) -> None:
    """Of two names, and of two namespaces."""
    async with backend.make() as dedup, backend.make(namespace="t2") as other:
        ledgers = [ledger_of(dedup), ledger_of(dedup, "other"), ledger_of(other)]
        assert [await ledger.first("id") for ledger in ledgers] == [True, True, True]


# 17: retries


@on_both_faces
async def test_the_same_call_gets_the_same_answer(dedup: Dedup, form: Form) -> None:
    ledger, one = form.ledger(dedup), form.id("id")
    assert [await ledger.first(one, owner="me") for _ in range(3)] == [True, True, True]
    assert await ledger.first(one, owner="you") is False
    assert await ledger.first(one) is False
    ids = [form.id(f"id{n}") for n in range(70)]
    assert await ledger.first_many([*ids, one], owner="me too") == [True] * 70 + [False]
    assert await ledger.first_many([*ids, one], owner="me too") == [True] * 70 + [False]
    assert not any(await ledger.first_many(ids))


# 18: the window


async def test_ids_that_are_over_leave_the_bucket(dedup: Dedup) -> None:
    """Whoever inserts makes room, also where a bucket never comes to its expiry."""
    ledger = ledger_of(dedup, window=0.3, capacity=50)
    counter = iter(range(10**6))

    async def has_turned_over() -> bool:
        await ledger.first_many([next(counter) for _ in range(10)])
        return next(counter) > 2000

    await wait_until(has_turned_over, description="2,000 ids went through one bucket")
    await wait_until(lambda: ledger.first("the last"), description="a bucket that was full takes ids again")


# 19: taking back


@on_both_faces
async def test_a_forgotten_id_is_new(dedup: Dedup, form: Form) -> None:
    ledger = form.ledger(dedup, capacity=90)
    ids = list(range(120))
    await ledger.first_many(ids)
    assert await ledger.forget(form.id("never seen")) is False
    assert [await ledger.forget(each) for each in ids[::7]] == [True] * len(ids[::7])
    assert [await ledger.seen(each) for each in ids] == [each % 7 != 0 for each in ids]
    assert [await ledger.forget(each) for each in ids[::7]] == [False] * len(ids[::7])
    assert await ledger.first_many(ids) == [each % 7 == 0 for each in ids]


@on_both_faces
async def test_to_look_remembers_nothing(dedup: Dedup, form: Form) -> None:
    ledger, one = form.ledger(dedup), form.id("id")
    assert await ledger.seen(one) is False
    assert await ledger.first(one) is True
    assert await ledger.seen(one) is True


# Its form


@on_both_faces
@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"capacity": 20_000}, "capacity"),
        ({"width": 16}, "width"),
        ({"window": 2 * HOUR}, "window"),
        ({"dense": True}, "dense"),
    ],
)
async def test_another_form_is_an_error(dedup: Dedup, settings: dict[str, Any], name: str) -> None:
    """With other buckets it would forget everything."""
    assert await ledger_of(dedup, window=timedelta(hours=1)).first("id") is True
    with pytest.raises(ConfigError, match=f"was created with {name}="):
        await ledger_of(dedup, **settings).first(7)
    assert await ledger_of(dedup).first("id") is False


async def test_a_refused_client_does_not_cut_the_ledgers_life(dedup: Dedup, backend: Backend) -> None:
    """A form that is over before its ids would make all of them new."""
    ledger = await ledger_of(dedup).open()
    with pytest.raises(ConfigError, match="window"):
        await ledger_of(dedup, window=60.0).open()
    if backend.raw is not None:
        assert backend.raw.pttl(ledger.store_key) > 1000 * (86_400 + HOUR)


async def test_a_store_that_evicts_keys_is_refused(dedup: Dedup, backend: Backend) -> None:
    """Of a Cluster, one primary is enough."""
    if backend.name not in ("redis", "sentinel", "cluster", "cluster by slot"):
        return
    raw: Any = backend.raw
    server = raw.get_redis_connection(raw.get_primaries()[-1]) if "cluster" in backend.name else raw
    with evicting(server):
        with pytest.raises(ConfigError, match=r"maxmemory-policy allkeys-lru.*allow_eviction=True"):
            await ledger_of(dedup).first("id")
        assert await ledger_of(dedup, allow_eviction=True).first("id") is True
    assert await ledger_of(dedup).first("id") is False


async def test_the_secret_is_never_shown(dedup: Dedup) -> None:
    ledger = ledger_of(dedup)
    await ledger.first("id")
    assert ledger.view is not None
    secret = ledger.view.form.secret
    for shown in (repr(ledger), repr(ledger.view.form), str(await ledger.stats())):
        assert secret.hex() not in shown
        assert repr(secret) not in shown


async def test_a_foreign_bucket_fails_alone(dedup: Dedup, backend: Backend) -> None:
    if backend.raw is None:
        return  # nobody else writes to a memory store
    ledger = ledger_of(dedup)
    await ledger.seen("ledger is founded")
    assert ledger.view is not None
    find = ledger.view.addresses.find
    for name, value in (("list", None), ("text", b"x" * 5), ("odd", b"\1L\x07\1\4\0\0" + b"x" * 100)):
        bucket = find(name.encode())[0]
        backend.raw.lpush(bucket, "x") if value is None else backend.raw.set(bucket, value, px=60_000)
        with pytest.raises(ForeignRecordError):
            await ledger.first(name)
        with pytest.raises(ForeignRecordError):
            await ledger.first_many(["healthy", name])
        with pytest.raises(ForeignRecordError):
            await ledger.seen(name)
        with pytest.raises(ForeignRecordError):
            await ledger.forget(name)
        backend.raw.delete(bucket)
    assert await ledger.first("beside them") is True


async def test_a_foreign_form_is_an_error(dedup: Dedup, backend: Backend) -> None:
    if backend.raw is None:
        return
    backend.raw.set(ledger_wire("t", "foreign"), b"somebody else's", px=60_000)
    backend.raw.set(ledger_wire("t", "newer"), b"\1N{}", px=60_000)
    with pytest.raises(ForeignRecordError):
        await ledger_of(dedup, "foreign").first("id")
    with pytest.raises(ConfigError, match="newer version"):
        await ledger_of(dedup, "newer").first("id")


@on_both_faces
@pytest.mark.parametrize("id", ["", b"", None, 1.5, True, "\ud800", ["a"], "x" * 65_537])
async def test_a_bad_id_is_an_error(dedup: Dedup, id: Any) -> None:
    ledger = ledger_of(dedup)
    with pytest.raises(InvalidKeyError):
        await ledger.first(id)
    with pytest.raises(InvalidKeyError):
        await ledger.first_many(["good", id])
    assert await ledger.seen("good") is False


class Texts(str, Enum):  # noqa: UP042 -- its str() is not its text
    ID = "id"
    NO_ID = "\ud800"


class Bytes(bytes):
    """Bytes of another class."""


async def test_text_and_bytes_of_other_classes_are_that_text(dedup: Dedup) -> None:
    ledger = ledger_of(dedup)
    assert await ledger.first_many([Texts.ID, "id", Bytes(b"id")]) == [True, False, False]
    with pytest.raises(InvalidKeyError):
        await ledger.first(Texts.NO_ID)


@on_both_faces
@pytest.mark.parametrize("text", ["id", b"id", bytearray(b"id"), memoryview(b"id"), None])
async def test_one_text_is_no_list(dedup: Dedup, text: Any) -> None:
    """Its characters would be remembered."""
    ledger = ledger_of(dedup)
    with pytest.raises(InvalidKeyError, match="a list of ids"):
        await ledger.first_many(text)
    assert await ledger.seen("i") is False
