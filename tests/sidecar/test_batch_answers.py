"""Answers that are written by bytes formatting, against the generic way; and what a batch leaves behind."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import orjson
import pytest
from pydantic import Field, TypeAdapter, ValidationError

from fastdedup import Dedup, LocalLRU
from fastdedup.kernel.operations import ClaimOp, Verdict
from fastdedup.kernel.owners import draw_owner, owner_field, owner_text
from fastdedup.model import Outcome
from fastdedup.sidecar.http import models
from fastdedup.sidecar.http.batch import BatchClaim, BatchRequest, read
from fastdedup.sidecar.http.request import HttpRequest
from fastdedup.sidecar.http.verbs import Client, claimed
from fastdedup.sidecar.namespaces import Namespaces, RawCodec
from fastdedup.sidecar.resp.claim_commands import verdict_reply
from fastdedup.sidecar.resp.frames import encode

FENCE = 1_763_700_000_123_456
DRAWN = draw_owner()


@pytest.mark.parametrize("outcome", list(Outcome))
@pytest.mark.parametrize("payload", [b"", b"order 1", bytes(range(256)), b"\r\n$-1\r\n"])
@pytest.mark.parametrize("degraded", [False, True])
@pytest.mark.parametrize("owner", [DRAWN, owner_field("wörker 1")], ids=["drawn", "named"])
@pytest.mark.parametrize("resp3", [False, True])
def test_a_verdicts_reply_is_what_the_generic_way_gives(
    outcome: Outcome, payload: bytes, degraded: bool, owner: bytes, resp3: bool
) -> None:
    verdict = Verdict(outcome, fence=FENCE, attempt=2, left_ms=29_999, payload=payload, degraded=degraded)
    parts = [outcome.value, owner_text(owner), FENCE, 2, 29_999, payload or None, degraded]
    assert verdict_reply(verdict, owner, resp3) == encode(parts, resp3)


async def test_a_claim_that_was_won_is_written_in_a_batch_as_by_itself() -> None:
    dedup = Dedup("memory://", codec=RawCodec())
    batch = BatchRequest(Namespaces(dedup), [], Client(None, HttpRequest(), None))
    first = Verdict(Outcome.ACQUIRED, fence=FENCE, attempt=1, left_ms=30_000)
    other = Verdict(Outcome.ACQUIRED, fence=0, attempt=2, left_ms=1, degraded=True)
    for verdict in (first, first, other, first):
        op = ClaimOp(b"n:=k", dedup.gate.claim_terms, draw_owner(), None)
        place = BatchClaim(dedup, op, batch)
        place.answered(dedup, op, verdict)
        facts = claimed(dedup, op.wire, op.owner, False, verdict).facts
        assert place.text == orjson.dumps({"status": 201, "body": facts})


def claims_alive() -> int:
    return sum(type(thing) is BatchClaim for thing in gc.get_objects())


async def test_a_batch_leaves_nothing_to_the_garbage_collector() -> None:
    keys = [*map(str, range(30)), "0", "0"]
    async with Dedup("memory://", codec=RawCodec(), on_unavailable=LocalLRU()) as root:
        asks = [models.ITEMS["claim"](op="claim", key=key) for key in keys]
        asks.append(models.ITEMS["claim"](op="claim", key="ü" * 1000))
        gc.collect()
        gc.disable()
        try:
            answer = await BatchRequest(Namespaces(root), asks, Client(None, HttpRequest(), None)).run()
            assert not claims_alive()
        finally:
            gc.enable()
    statuses = [each["status"] for each in orjson.loads(answer.text)]
    assert statuses == [201] * 30 + [409] * 2 + [422]
    assert len(answer.grants) == 30


BODIES = [
    b'[{"op":"claim","key":"a"},{"key":"b","op":"claim"}]',
    b' [ {"op" : "claim", "key" : "a\\u0041"} ] ',
    '[{"op":"claim","key":"ü"}]'.encode(),
    ('[{"op":"claim","key":"' + "ü" * 600 + '"}]').encode(),
    b'[{"op":"claim","key":"' + b"k" * 1024 + b'"}]',
    b'[{"op":"claim","key":"' + b"k" * 1025 + b'"}]',
    b'[{"op":"claim","key":""}]',
    b'[{"op":"claim","key":7}]',
    b'[{"op":"claim","key":null}]',
    b'[{"op":"claim","key":"\\ud800"}]',
    b'[{"op":"claim","key":"\xff"}]',
    b'[{"op":"claim","key":"a","lease":1000}]',
    b'[{"op":"claim","key":"a"},{"op":"release","key":"a","owner":"00"}]',
    b'[{"op":"claim","key":"a"},{"op":"nothing","key":"a"}]',
    b'[{"op":"claim"}]',
    b'[["op","key"]]',
    b'["ab"]',
    b'[{"op":"claim","key":"a"}]]',
    b'[{"op":"claim","key":"a"},]',
    b'[{"op":"claim","key":"a"}',
    b"[" + b'{"op":"claim","key":"a"},' * 4 + b'{"op":"claim","key":"a"}]',
    b"[]",
    b"{}",
    b"7",
    b"",
    b"NaN",
    b'\xef\xbb\xbf[{"op":"claim","key":"a"}]',
]


def told_of(parse: Callable[[bytes], list[Any]], body: bytes) -> list[Any]:
    """The keys, or what is wrong."""
    try:
        return [ask if type(ask) is str else ask.key for ask in parse(body)]
    except ValidationError as error:
        return error.errors(include_input=False)


@pytest.mark.parametrize("body", BODIES)
def test_a_batch_of_plain_claims_is_read_as_any_other(body: bytes) -> None:
    check = TypeAdapter(Annotated[models.Items, Field(max_length=4)]).validator.validate_json
    assert told_of(partial(read, check, 4), body) == told_of(check, body)
