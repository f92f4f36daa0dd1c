"""A duplicate gets what the first call returned: the same type and the same value, or an error that says why not."""

from __future__ import annotations

import functools
import typing
import warnings
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, TypedDict
from uuid import UUID

import orjson
import pytest
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, computed_field, field_validator

from fastdedup import Claim, ConfigError, Dedup, FailedError, Outcome, Resolution, ResultError, ResultWarning
from fastdedup.codec import UNSTORABLE
from fastdedup.results.values import same
from fastdedup.sync import Claim as SyncClaim
from fastdedup.sync import Dedup as SyncDedup

from ..codecs import CodecOf
from ..faces import each_face, gate_of, told
from ..fixtures import async_fixture
from ..kinds import IDS, KINDS, ORDER, Colour, Order, Page, Rushed, returning
from ..stores import Backend

if TYPE_CHECKING:
    from .nowhere import Missing

OF_A_KIND = pytest.mark.parametrize(("declared", "value"), KINDS, ids=IDS)


def key_of(key: str) -> str:
    return key


dedup = async_fixture(lambda: Dedup("memory://"))


# What comes back


async def test_a_duplicate_gets_the_type_and_the_value(backend: Backend) -> None:
    """All kinds in one test of a store, because a store sees only their bytes."""
    async with backend.make(known_duplicates=0) as dedup:
        for (declared, value), kind in zip(KINDS, IDS, strict=True):
            work = dedup.once(key=key_of, name=kind)(returning(declared, value))
            assert await work("k") is value, kind
            for _ in range(2):
                assert same(await work("k"), value), kind


def test_a_duplicate_of_synchronous_code_gets_them(redis_url: str) -> None:
    """What is stored is JSON, for readers in other languages."""
    with SyncDedup(redis_url, namespace="t") as dedup:
        for (declared, value), kind in zip(KINDS, IDS, strict=True):
            work = dedup.once(key=lambda key: key)(returning(declared, value, is_async=False))
            assert work(kind) is value, kind
            for _ in range(2):
                assert same(work(kind), value), kind
            claim = dedup.claim(kind)
            if declared is not None and value is not None:
                assert same(claim.replay(declared), value), kind
            payload = claim.asynchronous.settlement.verdict.payload
            assert not payload or orjson.loads(payload) is not ...


def test_values_are_the_same_only_with_their_types() -> None:
    for index, (_, value) in enumerate(KINDS):
        assert same(value, value)
        assert not any(
            same(value, other)
            for _, other in KINDS[index + 1 :]
            if (type(value), repr(value)) != (type(other), repr(other))
        )
    pairs: list[tuple[Any, Any]] = [
        *((1, True), (1, 1.0), ([1], (1,)), ({1: 2}, {True: 2}), ({1}, {True}), ({1}, frozenset({1}))),
        *((0.0, -0.0), (Decimal("1.0"), Decimal(1)), ("yes", 1), ({"a": 1}, {"a": 1, "b": 1})),
        (datetime(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC)),
    ]
    assert not any(same(one, other) or same(other, one) for one, other in pairs)


async def test_a_duplicate_that_waits_gets_the_type(backend: Backend) -> None:
    async with backend.make() as dedup:
        first = await dedup.claim("k")

        @dedup.once(key=key_of, wait=5.0)
        async def work(key: str) -> Order:
            raise AssertionError

        await first.complete(ORDER)
        assert same(await work("k"), ORDER)


# Where the type is found


def decorated(function: Callable[..., Any]) -> Any:
    return Dedup("memory://").once(key=lambda *args: f"k:{args[-1]}")(function)


class Shop:
    @functools.wraps(key_of)
    async def plain(self, key: str) -> Order:
        return ORDER

    async def ours(self, key: str) -> Order:
        return ORDER

    async def later(self, key: str) -> Further:
        return Further(Decimal(7))


async def twice(function: Callable[..., Any], *args: Any, dedup: Dedup | None = None) -> list[Any]:
    async with dedup or Dedup("memory://") as gate:
        work = gate.once(key=lambda *args: f"k:{args[-1]}")(function)
        return [await work(*args), await work(*args)]


async def test_a_method_and_a_partial_have_types() -> None:
    for results in (
        await twice(Shop.ours, Shop(), "1"),
        await twice(functools.partial(Shop.ours, Shop()), "1"),
        await twice(Shop().ours, "1"),
    ):
        assert same(*results)


async def test_a_type_that_is_defined_further_down_is_found_at_the_first_call(dedup: Dedup) -> None:
    work = dedup.once(key=key_of)(EARLY)
    assert same(await work("k"), Further(Decimal(7)))
    assert same(await work("k"), Further(Decimal(7)))


async def test_the_types_of_arguments_need_not_be_known() -> None:
    async def work(key: Missing) -> Order:
        return ORDER

    assert same(*await twice(work, "1"))


async def test_a_name_that_only_a_checker_knows_counts_as_no_type() -> None:
    async def work(key: str) -> Missing:
        return [1]  # type: ignore[return-value]

    assert await twice(work, "1") == [[1], [1]]


async def test_a_type_found_at_the_first_call_is_refused_before_the_work(dedup: Dedup) -> None:
    ran = []

    async def work(key: str) -> Any:
        ran.append(key)

    work.__annotations__["return"] = "LaterRefused"
    early = dedup.once(key=key_of)(work)
    globals()["LaterRefused"] = Iterator[int]
    try:
        with pytest.raises(ConfigError, match="cannot come back"):
            await early("k")
    finally:
        del globals()["LaterRefused"]
    assert not ran
    assert (await dedup.claim("k")).acquired


class Calling:
    number: int

    def __call__(self, key: str) -> tuple[int, str]:
        return 7, key


def test_an_object_that_is_called_has_a_type() -> None:
    with SyncDedup("memory://") as dedup:
        work = dedup.once(key=key_of)(Calling())
        assert [work("k"), work("k")] == [(7, "k")] * 2


class Node(TypedDict):
    parts: list[Node]


@pytest.mark.parametrize("declared", ["no.type", "not a type", "list[", Node, dict, vars(typing)["Dict"]])
async def test_other_declarations_count_as_plain_json(declared: Any) -> None:
    value = {"parts": [{"parts": []}]}
    assert await twice(returning(declared, value), "1") == [value, value]


# What is refused


class Plain:
    """A class of one's own, without fields that are known."""


class Odd(Enum):
    PAIR = (1, 2)


@dataclass
class Holding:
    call: Callable[[], int]


REFUSED = [
    *(Plain, list[Plain], Odd, Holding, Holding | None, Callable[[], int]),
    *(Iterator[int], Generator[int, None, None], AsyncIterator[int], type[int], dict[str, Plain]),
    list[key_of],  # type: ignore[valid-type]
]


@pytest.mark.parametrize("declared", REFUSED, ids=str)
def test_a_type_that_cannot_come_back_is_refused_when_it_decorates(declared: Any) -> None:
    with Dedup_memory() as sync:
        for once, is_async in ((Dedup("memory://").once, True), (sync.once, False)):
            with pytest.raises(ConfigError, match=r"work|later|now.*cannot come back.*codec=") as caught:
                once(key=key_of)(returning(declared, None, is_async=is_async))
            name = declared.__qualname__ if isinstance(declared, type) else str(declared)
            assert name in str(caught.value)


def Dedup_memory() -> SyncDedup:  # noqa: N802
    return SyncDedup("memory://")


def test_without_pydantic_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unknown(BaseModel):
        number: int

    for name in ("pydantic", "pydantic_core"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(ConfigError, match=r"Unknown needs pydantic: pip install 'fastdedup\[types\]'"):
        decorated(returning(Unknown, None))
    decorated(returning(dict[str, int | None], None))


async def test_without_pydantic_a_claim_names_the_extra(
    dedup: Dedup, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = await dedup.claim("k")
    for name in ("pydantic", "pydantic_core"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(ResultError, match=r"pip install 'fastdedup\[types\]'"):
        await claim.complete({1, 2})
    await claim.complete({"a": 1})
    assert (await dedup.claim("k")).replay(dict) == {"a": 1}


# What is told at the first call


class Doubling(BaseModel):
    number: int

    @field_validator("number")
    @classmethod
    def doubled(cls, value: int) -> int:
        return value * 2


LOST: list[tuple[Any, Any, str]] = [
    (Any, ORDER, "Order: JSON would bring it back as another type"),
    (Any, (1, 2), "tuple"),
    (Any, {"a": {"b": (1,)}}, "dict"),
    (Any, UUID(int=1), "UUID"),
    (Any, {1, 2}, "set"),
    (Any, Colour.RED, "Colour"),
    (Any, {1: "a"}, "dict"),
    (Any, float("nan"), "NaN"),
    (Any, "\ud800", "no JSON"),
    (object, datetime(2026, 1, 1), "datetime"),
    (str, UUID(int=1), "UUID for the declared str"),
    (Order, Rushed(ORDER.id, ORDER.at, []), "Rushed for the declared Order: it would come back as Order"),
    (list[Order], [Rushed(ORDER.id, ORDER.at, [])], "another content"),
    (Doubling, Doubling(number=1), "another content"),
    (datetime | str, "2026-01-01T00:00:00", "come back as datetime"),
    (tuple[Any, ...], (1, (2,)), "another content"),
    (tuple[int, int], (1, True), "another content"),
    (Decimal, 7, "int for the declared Decimal"),
    (list[date], None, ""),
]


def recursive() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("declared", "value", "why"), [*LOST[:-1], (Any, recursive(), "list")], ids=lambda each: str(each)[:40]
)
@each_face
async def test_a_result_that_duplicates_cannot_get_is_told(
    redis_url: str, face: str, declared: Any, value: Any, why: str
) -> None:
    """The work is done, and is never done again; the first caller gets the result."""
    ran = []

    def now(key: str) -> Any:
        ran.append(key)
        return value

    async def later(key: str) -> Any:
        return now(key)

    function: Any = later if face == "asyncio" else now
    function.__annotations__["return"] = declared
    async with gate_of(face, redis_url) as dedup:
        work = dedup.once(key=key_of)(function)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert await told(work("k")) is value
        (warning,) = caught
        assert warning.category is ResultWarning
        assert why in str(warning.message)
        assert warning.filename == __file__
        for _ in range(2):
            with pytest.raises(FailedError) as failed:
                await told(work("k"))
            assert failed.value.error["message"] == UNSTORABLE
            assert why in failed.value.error["why"]
    assert ran == ["k"]


async def test_where_warnings_are_errors_the_error_has_the_result(dedup: Dedup) -> None:
    work = dedup.once(key=key_of)(returning(Any, (1, 2)))
    with pytest.raises(ResultError) as told:
        await work("k")
    assert isinstance(told.value, ResultWarning)
    assert told.value.result == (1, 2)
    assert (await dedup.claim("k")).outcome is Outcome.FAILED


async def test_by_default_it_is_told_once(dedup: Dedup) -> None:
    work = dedup.once(key=key_of)(returning(Any, (1, 2)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for key in "abc":
            assert await work(key) == (1, 2)
    assert len(caught) == 1


class Sealed(BaseModel):
    model_config = ConfigDict(ser_json_inf_nan="strings", ser_json_bytes="base64", val_json_bytes="base64")
    ratio: float
    data: bytes


class Ordinary(BaseModel):
    ratio: float = 0.0
    data: bytes = b""
    left_out: int = Field(default=1, exclude=True)
    _own: int = PrivateAttr(default=1)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def double(self) -> float:
        return self.ratio * 2


def with_own() -> Ordinary:
    made = Ordinary()
    made._own = 2
    return made


@pytest.mark.parametrize(
    ("value", "comes_back"),
    [
        (Sealed(ratio=float("nan"), data=b"\xff"), True),
        (Ordinary(ratio=1.5, data=b"text"), True),
        (Ordinary(ratio=float("nan")), False),
        (Ordinary(data=b"\xff"), False),
        (Ordinary(left_out=2), False),
        (with_own(), False),
    ],
    ids=str,
)
async def test_a_model_comes_back_by_its_own_settings(dedup: Dedup, value: Any, comes_back: bool) -> None:
    work = dedup.once(key=key_of)(returning(type(value), value))
    if comes_back:
        assert await work("k") is value
        assert same(await work("k"), value)
    else:
        with pytest.raises(ResultWarning):
            await work("k")


async def test_a_small_limit_holds_the_short_form() -> None:
    async with Dedup("memory://", max_result=100) as dedup:
        work = dedup.once(key=key_of)(returning(Any, {1, 2}))
        with pytest.raises(ResultWarning):
            await work("k")
        with pytest.raises(FailedError) as failed:
            await work("k")
        assert failed.value.error == {"type": "ResultError", "message": UNSTORABLE}


# Beside the types


class Sized(Protocol):
    """For type checkers alone."""


class Unknown(TypedDict):
    name: Missing


OWN = CodecOf(lambda value: repr(value).encode(), eval)


async def test_a_codec_of_ones_own_decides_alone() -> None:
    assert await twice(returning(Plain, (1, {2})), "k", dedup=Dedup("memory://", codec=OWN)) == [(1, {2})] * 2
    async with Dedup("memory://", codec=OWN) as dedup:
        await (await dedup.claim("k")).complete((1, 2))
        assert (await dedup.claim("k")).replay(tuple[int, int]) == (1, 2)
        with pytest.raises(ResultError, match="completed with a tuple, not with an int"):
            (await dedup.claim("k")).replay(int)
        assert (await dedup.claim("k")).replay(Sized) == (1, 2)
        await (await dedup.claim("a dict")).complete({"name": 1})
        with pytest.raises(ConfigError, match="has a name that is not known: name 'Missing'"):
            (await dedup.claim("a dict")).replay(Unknown)


OLD: list[tuple[Any, Any, Any]] = [
    (Order, {"id": str(UUID(int=7)), "at": "2026-01-02T00:00:00", "lines": []}, None),
    (Order, {"other": 1}, {"other": 1}),
    (tuple[int, str], [1, "a"], (1, "a")),
    (dict[str, Any], {"a": [1]}, {"a": [1]}),
    (datetime, "no time", "no time"),
    (str, 7, 7),
]


@pytest.mark.parametrize(("declared", "stored", "expected"), OLD, ids=lambda each: str(each)[:40])
async def test_a_record_of_version_0_1_0_is_read(
    dedup: Dedup, declared: Any, stored: Any, expected: Any
) -> None:
    """It holds the JSON of any type; what is not of the declared type comes back like there."""
    await (await dedup.claim("k")).complete(stored)
    found = await dedup.once(key=key_of)(returning(declared, None))("k")
    assert found == (expected or Order(UUID(int=7), datetime(2026, 1, 2), []))


async def test_a_record_of_a_type_that_has_changed_is_an_error(dedup: Dedup) -> None:
    await dedup.once(key=key_of)(returning(Page[int], Page[int](items=[1])))("k")
    with pytest.raises(ResultError, match="another version of this type") as told:
        await dedup.once(key=lambda key: f"{key}")(returning(Order, None))("k")
    assert "items" not in str(told.value)


async def test_replay_refuses_what_is_not_of_the_type(dedup: Dedup) -> None:
    await (await dedup.claim("k")).complete({"a": 1})
    await (await dedup.claim("none")).complete()
    again, nothing = await dedup.claim("k"), await dedup.claim("none")
    assert again.replay(dict[str, int]) == again.replay(Any) == again.replay() == {"a": 1}
    for declared in (str, list, Order, int | str):
        with pytest.raises(ResultError):
            again.replay(declared)
    with pytest.raises(ResultError, match="completed with no result, not with an Order"):
        nothing.replay(Order)
    assert nothing.replay(Order | None) is nothing.replay(None) is None
    with pytest.raises(ConfigError, match="cannot come back"):
        again.replay(Plain)
    with pytest.raises(ConfigError, match="not known"):
        again.replay(list["Nowhere"])  # type: ignore[name-defined]  # noqa: F821


async def test_a_resolver_gives_typed_results(dedup: Dedup) -> None:
    async def check(takeover: Any) -> Resolution:
        return Resolution.done(Decimal("1.10"))

    claim = await dedup.claim("k")
    await claim.release()
    for _ in range(2):

        @dedup.once(key=key_of, resolve=check)
        async def work(key: str) -> Decimal:
            raise AssertionError

        assert same(await work("k"), Decimal("1.10"))


# A claim with a declared type


async def test_a_claim_with_a_declared_type_brings_it_back(backend: Backend) -> None:
    """Also beside claims without a type, whose answers this process caches for a moment."""
    async with backend.make() as dedup:
        for (declared, value), kind in zip(KINDS, IDS, strict=True):
            if declared is None or value is None:
                continue
            await (await dedup.claim(kind, returns=declared)).complete(value)
            shown = (await dedup.claim(kind)).replay()
            for _ in range(2):
                again, (listed,) = (
                    await dedup.claim(kind, returns=declared),
                    await dedup.claim_many([kind], returns=declared),
                )
                assert same(
                    [again.replay(), listed.replay(), (await dedup.claim(kind)).replay()],
                    [value, value, shown],
                ), kind


@each_face
async def test_a_claim_on_each_face_has_its_declared_type(redis_url: str, face: str) -> None:
    """Also behind a ledger, after a wait, and in a list."""
    paid = Order(UUID(int=7), datetime(2026, 1, 2), [])
    async with gate_of(face, redis_url) as dedup:
        ledger = dedup.ledger("seen", window=60.0, capacity=100)
        for key, options in (("k", {}), ("in a ledger", {"remember": ledger}), ("waits", {"wait": 1.0})):
            first, other = await told(
                dedup.claim_many([key, f"{key} 2"], returns=Order, **{**options, "wait": None})
            )
            await told(first.complete(paid))
            with pytest.raises(ResultError, match="cannot store a str for the declared Order: pydantic"):
                await told(other.complete("paid"))
            await told(other.complete())
            assert same((await told(dedup.claim(key, returns=Order, **options))).replay(), paid)
            with pytest.raises(ResultError, match="completed with no result, not with an Order"):
                (await told(dedup.claim(f"{key} 2", returns=Order, **options))).replay()


@pytest.mark.parametrize("declared", [*REFUSED, list["Nowhere"]], ids=str)  # type: ignore[name-defined]  # noqa: F821
async def test_a_claim_refuses_a_type_that_cannot_come_back(dedup: Dedup, declared: Any) -> None:
    with Dedup_memory() as sync:
        for claim in (dedup.claim, sync.claim):
            with pytest.raises(ConfigError, match=r"cannot come back|not known"):
                claim("k", returns=declared)
    with pytest.raises(ConfigError, match=r"cannot come back|not known"):
        await dedup.claim_many(["k"], returns=declared)


async def test_a_result_that_a_typed_claim_cannot_bring_back_is_a_failure(dedup: Dedup) -> None:
    """Its work is done, and must not run again."""
    others = [(dict[str, int], [1], "another type"), (int, "1", "another type"), (Order, {}, "pydantic")]
    for number, (declared, value, why) in enumerate([*LOST[:-1], *others]):
        with pytest.raises(ResultError, match=r"cannot store an? \w+.*: .*codec=") as refused:
            async with dedup.claim(f"k{number}", returns=declared) as claim:
                await claim.complete(value)
        assert why in str(refused.value)
        with pytest.raises(FailedError) as failed:
            (await dedup.claim(f"k{number}", returns=declared)).replay()
        assert failed.value.error["message"] == UNSTORABLE


async def test_a_typed_claim_leaves_errors_and_own_codecs_alone() -> None:
    """A codec of the user takes any type. An error is never read by it, nor as the declared type."""
    async with Dedup("memory://", codec=OWN) as dedup:
        await (await dedup.claim("k", returns=tuple)).complete((1, {2}))
        await (await dedup.claim("failed", returns=Plain)).fail(ValueError("no"))
        with pytest.raises(ResultError, match="completed with a tuple, not with a Plain"):
            (await dedup.claim("k", returns=Plain)).replay()
        with pytest.raises(FailedError) as failed:
            (await dedup.claim("failed", returns=Plain)).replay()
        assert failed.value.error == {"type": "ValueError", "message": "no"}


async def test_a_resolver_of_a_typed_claim_gives_its_type(dedup: Dedup) -> None:
    async def check(takeover: Any) -> Resolution:
        return Resolution.done(Decimal("1.10"))

    await (await dedup.claim("k")).release()
    for _ in range(2):
        claim = await dedup.claim("k", returns=Decimal, resolve=check)
        assert same(claim.replay(), Decimal("1.10"))
        assert claim.replay(str) == claim.result == "1.10"


def test_a_claim_takes_a_parameter_at_run_time() -> None:
    for claim in (Claim, SyncClaim):
        assert typing.get_args(claim[Order]) == (Order,)
        assert typing.get_args(claim[Order] | None) == (claim[Order], type(None))


async def test_a_claim_shows_plain_json_without_a_type(dedup: Dedup) -> None:
    claim: Claim = await dedup.claim("k")
    await claim.complete({"when": datetime(2026, 1, 1), "price": Decimal("1.0"), "big": 2**70})
    record = await dedup.get("k")
    assert record is not None
    assert record.result == (await dedup.claim("k")).result
    assert record.result == {"when": "2026-01-01T00:00:00", "price": "1.0", "big": 2**70}


async def EARLY(key: str) -> Further:  # noqa: N802
    return Further(Decimal(7))


@dataclass
class Further:
    price: Decimal
