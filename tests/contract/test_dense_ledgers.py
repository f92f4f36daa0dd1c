"""What a dense ledger has of its own: its ids are integers, kept as bits. `test_ledgers.py` has the guarantees."""

from __future__ import annotations

import asyncio
import itertools
from random import Random
from typing import Any

import pytest

from fastdedup import ConfigError, Dedup, ForeignRecordError, InvalidKeyError, Ledger
from fastdedup.kernel.codes import Code
from fastdedup.kernel.owners import owner_field
from fastdedup.ledger.ids import nonce_of
from fastdedup.ledger.operations import FirstOp

from ..stores import Backend
from ..waiting import wait_until


def dense(dedup: Dedup, **settings: Any) -> Ledger:
    return dedup.ledger("offsets", **{"window": 3600.0, "capacity": 10_000, "dense": True, **settings})


@pytest.mark.parametrize("id", ["7", b"7", 7.0, True, None, -1, 2**63])
async def test_only_integers_are_ids(id: Any) -> None:
    async with Dedup("memory://") as dedup:
        ledger = dense(dedup)
        for ask in (ledger.first, ledger.seen, ledger.forget):
            with pytest.raises(InvalidKeyError, match="a dense ledger"):
                await ask(id)
        with pytest.raises(InvalidKeyError, match="a dense ledger"):
            await ledger.first_many([7, id])
        assert await ledger.seen(7) is False


async def test_all_integers_are_apart(dedup: Dedup) -> None:
    """Neighbours, those at the ends of cells, chunks and buckets, and those that share a bucket with others."""
    edges = {0, 2**63 - 1}
    for power in range(6, 63, 3):
        edges |= {2**power - 1, 2**power, 3 * 2**power}
    ids = sorted(edges)
    ledger = dense(dedup)
    assert await ledger.first_many(ids) == [True] * len(ids)
    assert await ledger.first_many(ids) == [False] * len(ids)
    assert not any([await ledger.seen(each + 5) for each in ids if each + 5 not in edges and each < 2**62])


async def test_ids_in_any_order_are_first_once(dedup: Dedup) -> None:
    """Through strays, cells, and back."""
    dice = Random(7)
    ids = [*range(5000, 6200), *(dice.randrange(2**60) for _ in range(300))]
    dice.shuffle(ids)
    ledger = dense(dedup)
    for at in range(0, len(ids), 250):
        part = ids[at : at + 250]
        assert all(await ledger.first_many(part, owner=f"call {at}"))
        assert all(await ledger.first_many(part, owner=f"call {at}"))
    assert not any(await ledger.first_many(ids))
    assert [await ledger.forget(each) for each in ids[::50]] == [True] * len(ids[::50])
    assert await ledger.first_many(ids) == [at % 50 == 0 for at in range(len(ids))]


async def test_another_sequence_takes_over_a_bucket(dedup: Dedup) -> None:
    """Both are remembered: the cells become those of the chunk that has more ids."""
    ledger = dense(dedup, capacity=64)
    await ledger.open()
    assert ledger.view is not None
    form = ledger.view.form
    other = form.chunk * form.buckets * 1000
    assert all(await ledger.first_many(range(150), owner="one"))
    assert all(await ledger.first_many(range(other, other + 700), owner="other"))
    assert all(await ledger.first_many(range(150), owner="one"))
    assert all(await ledger.first_many(range(other, other + 700), owner="other"))
    assert not any(await ledger.first_many([*range(150), *range(other, other + 700)]))


async def test_names_are_kept_where_sequences_share_a_bucket(dedup: Dedup) -> None:
    """An id may come into a cell or leave it within the call that remembers it, or within the one that repeats it."""
    ledger, dice = dense(dedup, capacity=1000), Random(9)
    await ledger.open()
    assert ledger.view is not None
    form, known = ledger.view.form, set[int]()
    for number in range(24):
        # Eight calls a bucket.
        starts = [number // 8 * form.chunk + form.chunk * form.buckets * sequence for sequence in range(3)]
        ids = [dice.choice(starts) + dice.randrange(form.chunk) for _ in range(dice.choice([20, 150, 400]))]
        firsts = [each not in known and not known.add(each) for each in ids]  # type: ignore[func-returns-value]
        for _ in range(2):
            assert await ledger.first_many(ids, owner=f"call {number}") == firsts


@pytest.mark.parametrize("is_dense", [True, False])
async def test_a_call_of_the_same_batch_may_still_be_undone(
    dedup: Dedup, backend: Backend, is_dense: bool
) -> None:
    """Until a list is answered, all of it may be: so no other call is told of a duplicate."""
    if backend.name == "local":
        return
    ledger = dedup.ledger("calls", window=3600.0, capacity=1000, dense=is_dense)
    await ledger.open()
    view = ledger.view
    assert view is not None
    ops = [
        FirstOp(*view.addresses.entry(b"7", nonce_of(owner_field(name), patience)), view.terms, b"7")
        for name, patience in (("one", 9), ("one", 9), ("two", 9), ("two", 0))
    ]
    replies = await asyncio.gather(*map(dedup.gate.run, ops))
    assert replies == [Code.OK, Code.OK, Code.PENDING, Code.ALREADY]


async def test_single_calls_keep_their_names(dedup: Dedup) -> None:
    """Many in one batch: each has a nonce of its own."""
    ledger = dense(dedup)
    for _ in range(2):
        answers = await asyncio.gather(*(ledger.first(n, owner=f"call {n}") for n in range(300)))
        assert all(answers)
    assert not any(await asyncio.gather(*(ledger.first(n, owner="other") for n in range(300))))


async def test_neighbours_are_new_again_one_by_one(dedup: Dedup) -> None:
    ledger, loop = dense(dedup, window=0.6), asyncio.get_running_loop()
    assert all(await ledger.first_many(range(0, 300, 2)))
    odd, asked = iter(range(1, 300, 2)), dict[int, float]()

    async def first_half_is_new() -> bool:
        """Between two looks, a neighbour is entered: the last ones are much younger than the first half."""
        for number in itertools.islice(odd, 1):
            asked[number] = loop.time()
            assert await ledger.first(number)
        return not any(await asyncio.gather(*map(ledger.seen, range(0, 300, 2))))

    await wait_until(first_half_is_new, description="the first half is new again")
    for number in reversed(asked):
        assert await ledger.seen(number) or loop.time() > asked[number] + 0.59
    assert all(await ledger.first_many(range(0, 300, 2)))


async def test_a_foreign_value_fails_alone(dedup: Dedup, backend: Backend) -> None:
    if backend.raw is None:
        return
    ledger = dense(dedup)
    await ledger.open()
    assert ledger.view is not None
    bucket = ledger.view.addresses.find(b"7")[0]
    for value in (b"x" * 5, b"\1D\7\x10" + b"x" * 100, b"\1D\7\x80" + bytes(7 + 128 * 9)):
        backend.raw.set(bucket, value, px=60_000)
        with pytest.raises(ForeignRecordError):
            await ledger.first(7)
        assert await ledger.first_many([100_000 + len(value)]) == [True]
    backend.raw.delete(bucket)
    beside = bucket[: bucket.index(b"}") + 1]
    backend.raw.set(beside, b"x" * 5, px=60_000)
    with pytest.raises(ForeignRecordError):
        await ledger.first_many(range(300))
    backend.raw.delete(beside)
    assert all(await ledger.first_many(range(300)))


async def test_an_id_takes_a_third_of_a_byte(dedup: Dedup, backend: Backend) -> None:
    if backend.name != "redis":
        return
    # An id of a later slot than the others of its cell is a stray, and no slot of a year's window ends meanwhile.
    ledger = dense(dedup, capacity=2_000_000, window=365 * 86_400.0)
    for start in range(0, 40_000, 5000):
        await ledger.first_many(range(start, start + 5000))
    keys = [key for key in backend.raw.keys("*offsets{*") if not key.endswith(b"}")]
    assert sum(backend.raw.memory_usage(key) for key in keys) / 40_000 < 0.2
    # Beside them, whatever their number: 5 bytes for each of the youngest.
    nonces = [key for key in backend.raw.keys("*offsets{*") if key.endswith(b"}")]
    assert sum(backend.raw.memory_usage(key) for key in nonces) < 7 * 16 * 4096


@pytest.mark.parametrize("settings", [{"width": 7}, {"exact": False}, {"write": "append"}])
async def test_settings_of_digests_do_not_go_with_it(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="dense=True keeps a bit"):
        dense(Dedup("memory://"), **settings)


async def test_claims_cannot_be_remembered_there() -> None:
    """A claim's key is text."""
    async with Dedup("memory://") as dedup:
        with pytest.raises(ConfigError, match="without dense=True"):
            await dedup.claim("7", remember=dense(dedup))
