"""The pieces of a claim, one by one: ``pytest bench/test_pieces.py``. No Redis is needed.

They show where time went after a change; ``python -m bench`` measures the whole.
"""

from collections.abc import Iterator
from itertools import count
from typing import Any

import hiredis
import pytest
import uvloop

from fastdedup import Dedup, business_key, fingerprint
from fastdedup.kernel.keyspace import Keyspace, Kind
from fastdedup.kernel.operations import ClaimOp
from fastdedup.kernel.owners import draw_owner
from fastdedup.kernel.terms import Mode, terms
from fastdedup.kernel.verbs import Verb
from fastdedup.stores.redis.scripts import MAX_RECORD
from fastdedup.stores.redis.verbs import load_scripts

BATCH = 256  # the engine's largest
CLAIMS = 1000
UUID = "0b2e4a8c-6f8d-4a3e-9c1b-7d5f2e4a6b8c"
ORDER = {"user": 7, "items": [{"sku": "9", "count": 2}], "note": "leave it at the door", "total": "19.90"}
NOW_US = 1_700_000_000_000_000
SCRIPT = load_scripts()[Verb.CLAIM]

Benchmark = Any  # pytest-benchmark's fixture has no public type


@pytest.fixture
def batch() -> list[ClaimOp]:
    keys, shared = Keyspace("shop", Kind.CLAIM), terms(Mode.CLAIM, 30_000, 86_400_000, watch=False)
    return [ClaimOp(keys.wire(f"{UUID}-{i}"), shared, draw_owner(), None) for i in range(BATCH)]


@pytest.fixture
def loop() -> Iterator[uvloop.Loop]:
    loop = uvloop.new_event_loop()
    yield loop
    loop.close()


def test_a_long_key_to_its_digest(benchmark: Benchmark) -> None:
    benchmark(Keyspace("shop", Kind.CLAIM).wire, UUID)


def test_a_short_key_as_it_is(benchmark: Benchmark) -> None:
    benchmark(Keyspace("shop", Kind.CLAIM).wire, "order:4711")


def test_drawing_an_owner(benchmark: Benchmark) -> None:
    benchmark(draw_owner)


def test_business_key(benchmark: Benchmark) -> None:
    benchmark(business_key, "user:7", "sku:9", window=300)


def test_fingerprint_of_a_json_body(benchmark: Benchmark) -> None:
    benchmark(fingerprint, ORDER)


def test_a_claim_that_is_not_sent(benchmark: Benchmark) -> None:
    gate = Dedup("memory://", namespace="shop")
    benchmark(lambda: gate.claim(UUID).close())  # one that is neither awaited nor closed warns


def test_packing_a_batch(benchmark: Benchmark, batch: list[ClaimOp]) -> None:
    benchmark(_packed, batch)


def test_reading_a_reply_of_fresh_claims(benchmark: Benchmark, batch: list[ClaimOp]) -> None:
    answers = benchmark(_read, batch, _reply(NOW_US))
    assert [answer.fence for answer in answers] == [NOW_US] * BATCH


def test_reading_a_reply_of_duplicates(benchmark: Benchmark, batch: list[ClaimOp]) -> None:
    ends = ((NOW_US // 1000) + 60_000).to_bytes(6, "big")
    records = [
        b"\x01S" + NOW_US.to_bytes(7, "big") + ends + b"\x00\x01" + op.tail + b'{"status":201}'
        for op in batch
    ]
    triples = [part for i, record in enumerate(records, start=1) for part in (i, 4, record)]
    answers = benchmark(_read, batch, _reply(NOW_US, *triples))
    assert {answer.payload for answer in answers} == {b'{"status":201}'}


def test_a_thousand_claims_in_memory_one_by_one(benchmark: Benchmark, loop: uvloop.Loop) -> None:
    gate, number = Dedup("memory://", namespace="shop"), count()

    async def claims() -> None:
        for _ in range(CLAIMS):
            assert (await gate.claim(f"order:{next(number)}")).acquired

    loop.run_until_complete(gate.open())
    benchmark.pedantic(lambda: loop.run_until_complete(claims()), rounds=20, warmup_rounds=1)
    loop.run_until_complete(gate.aclose())


def _packed(ops: list[ClaimOp]) -> bytes:
    """Pack claims as `RedisStore.execute` does."""
    return SCRIPT.command(ops, NOW_US, MAX_RECORD)


def _read(ops: list[ClaimOp], reply: bytes) -> Any:
    reader = hiredis.Reader()
    reader.feed(reply)
    return SCRIPT.read(ops, reader.gets())


def _reply(*parts: int | bytes) -> bytes:
    """Return an array as Redis sends it: whole numbers as numbers, unlike in a command."""
    body = (
        b":%d\r\n" % part if isinstance(part, int) else b"$%d\r\n%b\r\n" % (len(part), part) for part in parts
    )
    return b"*%d\r\n" % len(parts) + b"".join(body)
