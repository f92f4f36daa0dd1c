"""Results become bytes and come back; what cannot is said before anything is stored."""

import math
import traceback
from dataclasses import dataclass, field
from datetime import UTC, datetime
from threading import Lock
from typing import Any
from uuid import UUID

import pytest

from fastdedup import Dedup, DedupError, ForeignRecordError, ResultError, ResultTooLargeError
from fastdedup.codec import JSONCodec, decode, encode

from ..codecs import PICKLE, CodecOf, reads_nothing

LIMIT = 1024


@pytest.mark.parametrize("value", [0, "", [], {}, False, "é\0", 1.5, {"a": [1, None]}, 2**63, "x" * 1022])
def test_a_json_value_comes_back_as_it_was(value: Any) -> None:
    """Empty and false values are results like any other."""
    assert decode(JSONCodec(), encode(JSONCodec(), value, LIMIT), "k") == value


def test_none_is_no_bytes_at_all() -> None:
    """A claim completed with nothing costs nothing, whatever the codec."""
    assert encode(JSONCodec(), None, 0) == b""
    assert decode(JSONCodec(), b"", "k") is None


@dataclass
class Order:
    id: UUID
    at: datetime


def test_dataclasses_datetimes_and_uuids_come_back_as_json() -> None:
    """They are stored as what a JSON client would see."""
    order = Order(UUID(int=7), datetime(2026, 1, 2, tzinfo=UTC))
    assert decode(JSONCodec(), encode(JSONCodec(), order, LIMIT), "k") == {
        "id": "00000000-0000-0000-0000-000000000007",
        "at": "2026-01-02T00:00:00+00:00",
    }


@dataclass
class Receipt:
    id: int
    _tax: float = 0.0


def test_fields_of_a_dataclass_that_begin_with_an_underscore_are_stored() -> None:
    """The JSON library leaves them out, and a duplicate would get the default."""
    assert decode(JSONCodec(), encode(JSONCodec(), [Receipt(1, 1.9)], LIMIT), "k") == [{"id": 1, "_tax": 1.9}]
    with pytest.raises(ResultError, match="NaN"):
        encode(JSONCodec(), Receipt(1, math.nan), LIMIT)


@dataclass(slots=True)
class Slotted:
    id: int


@dataclass
class Mixed(Slotted):
    """Its first field is in a slot of the base class, which orjson leaves out as well."""

    name: str


@dataclass
class Guarded:
    """Its other fields are no arguments: one is no JSON, one is not there yet."""

    id: int
    _lock: Any = field(init=False, repr=False, compare=False, default_factory=Lock)
    _later: int = field(init=False, repr=False, compare=False)


@pytest.mark.parametrize("value", [Receipt(1, 1.9), Mixed(1, "ann"), Guarded(1)], ids=str)
async def test_a_typed_replay_has_all_arguments(value: Any) -> None:
    async with Dedup("memory://") as dedup:
        await (await dedup.claim("k")).complete(value)
        assert (await dedup.claim("k")).replay(type(value)) == value


def recursive() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    "value", [object(), {1, 2}, b"bytes", 2**64, {"a": 1j}, {1: 2}, "\ud800", recursive()]
)
def test_what_the_codec_does_not_know_is_refused(value: Any) -> None:
    """The message names the type and the two ways out."""
    with pytest.raises(ResultError, match=r"cannot store a result of type \w+: .*codec="):
        encode(JSONCodec(), value, LIMIT)


@pytest.mark.parametrize("value", [math.nan, {"a": [math.inf]}])
def test_nan_is_refused_rather_than_replayed_as_null(value: Any) -> None:
    """A duplicate gets the first result, not something else."""
    with pytest.raises(ResultError, match="NaN"):
        encode(JSONCodec(), value, LIMIT)


def test_the_limit_counts_encoded_bytes() -> None:
    """1022 characters and two quotes fit into 1024 bytes; one more does not."""
    assert len(encode(JSONCodec(), "x" * 1022, LIMIT)) == LIMIT
    with pytest.raises(ResultTooLargeError, match=r"takes 1025 bytes, the limit is 1024; .*max_result="):
        encode(JSONCodec(), "x" * 1023, LIMIT)


async def test_a_codec_of_ones_own_keeps_types() -> None:
    """Whoever needs more than JSON brings two functions."""
    async with Dedup("memory://", codec=PICKLE) as dedup:
        claim = await dedup.claim("k")
        await claim.complete({1, 2})
        assert (await dedup.claim("k")).result == {1, 2}


async def test_a_scope_may_have_its_own_codec() -> None:
    """Settings are a namespace's."""
    async with Dedup("memory://") as dedup:
        scope = dedup.scoped("pickled", codec=PICKLE)
        claim = await scope.claim("k")
        await claim.complete({3})
        assert (await scope.claim("k")).result == {3}


@pytest.mark.parametrize("encoded", ["text", [1, 2], None, 7])
def test_a_codec_that_returns_no_bytes_is_found_before_anything_is_sent(encoded: Any) -> None:
    """Further on it would fail the whole batch, and other callers' results with it."""
    with pytest.raises(ResultError, match="bytes"):
        encode(CodecOf(lambda value: encoded, bytes), {"a": 1}, LIMIT)


CONTENT = b"{card: 4711}"


@pytest.mark.parametrize(
    "codec",
    [
        JSONCodec(),
        *(
            reads_nothing(error, CONTENT)
            for error in (ValueError("card: 4711"), KeyError("card: 4711"), RuntimeError())
        ),
    ],
)
def test_what_cannot_be_read_is_an_error_that_names_the_key(codec: Any) -> None:
    """It was a JSONDecodeError; the content stands neither in the message nor in what led to it."""
    with pytest.raises(ResultError, match=r"12 bytes under 'order:7'.*codec=") as caught:
        decode(codec, CONTENT, "order:7")
    assert "4711" not in "".join(traceback.format_exception(caught.value))
    assert caught.value.__cause__ is caught.value.__context__ is None


def test_an_error_of_this_library_passes_through_a_codec() -> None:
    """A codec may know better what it met."""
    with pytest.raises(DedupError, match="another format"):
        decode(reads_nothing(ForeignRecordError("another format")), b"x", "order:7")
