"""A full bucket of a ledger is written anew by `fill` in `lua/first.lua` as by `remember`, which reads all of it."""

from __future__ import annotations

import random

import pytest
import redis

from fastdedup.kernel.verbs import Verb
from fastdedup.ledger.forms import LedgerForm
from fastdedup.ledger.ids import NONCE_BYTES
from fastdedup.ledger.operations import FOREVER_MS, FirstOp, LedgerTerms
from fastdedup.stores.redis.verbs import load_scripts

SLOT_S = 3600
START_S = 1_700_000_000
CALL = "local code = fill("
TURNED = "  entries = entries + low + ledger.young\n"


class Bucket:
    """One bucket, filled by one way of the script at times that the test chooses."""

    def __init__(self, raw: redis.Redis, key: bytes, terms: LedgerTerms, *, by_fill: bool) -> None:
        self._raw, self._key, self._terms = raw, key, terms
        script = load_scripts()[Verb.FIRST]
        self._call = script.call
        # The time stands behind the other arguments, so that the server keeps one script.
        text = script.text.replace("redis.call('TIME')", "{ tostring(fixed), '0' }")
        text = "local fixed = tonumber(ARGV[#ARGV])\n" + text
        assert text.count(CALL) == text.count(TURNED) == 1
        if by_fill:
            text = text.replace(TURNED, TURNED + "redis.call('INCR', 'turned over')\n")
        else:
            text = text.replace(CALL, "local code = remember(")
        self._first = raw.register_script(text)

    def first(self, entry: bytes, now_s: int) -> list[int]:
        op = FirstOp(self._key, entry, self._terms)
        return self._first([self._key], [bytes(7), 1 << 18, *self._call([op])[1], now_s])

    @property
    def bytes(self) -> bytes:
        return self._raw.get(self._key)

    def free(self, place: int) -> None:
        """Free a young place, as `forget_id.lua` does."""
        step = self._terms.width + 1 + NONCE_BYTES
        self._raw.setrange(self._key, 7 + place * step, bytes(step))


@pytest.mark.parametrize("width", [3, 4, 7, 16])
def test_both_ways_write_the_same_bucket(redis_url: str, width: int) -> None:
    """Also where entries are over, and where a freed place was filled out of turn."""
    drawn = random.Random(width)
    form = LedgerForm.drawn(capacity=10_000_000, width=width, window_ms=100 * SLOT_S * 1000)
    terms = LedgerTerms(form, "set", FOREVER_MS)
    with redis.Redis.from_url(redis_url) as raw:
        filled, remembered = (
            Bucket(raw, key, terms, by_fill=key == b"filled") for key in (b"filled", b"remembered")
        )
        now_s = START_S
        for number in range(400):
            pause = (
                92 if number % 50 == 20 else drawn.choice([0, 0, 1, 1, 1, 2])
            )  # then young entries grow over
            now_s += pause * SLOT_S
            if number % 37 == 5:
                place = drawn.randrange(terms.young)
                filled.free(place)
                remembered.free(place)
            entry = drawn.randbytes(width + NONCE_BYTES)
            assert filled.first(entry, now_s) == remembered.first(entry, now_s)
            assert filled.bytes == remembered.bytes
        turned = int(raw.get("turned over"))
        raw.flushdb()
    assert turned > 15
