"""A typed result never runs the work again, and never comes back as another value without an error."""

from __future__ import annotations

import functools
import math
import sys
import warnings
from collections import defaultdict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import InitVar, dataclass, field
from datetime import datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, NotRequired, TypedDict, TypeVar
from zoneinfo import ZoneInfo

import pytest
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ImportString,
    PrivateAttr,
    SecretStr,
    field_validator,
    model_validator,
)
from pydantic_core import core_schema
from typing_extensions import TypeAliasType

from fastdedup import ConfigError, FailedError, ResultError, ResultWarning
from fastdedup.sync import Dedup as SyncDedup
from fastdedup.sync.sql import Inbox
from fastdedup.testing import inbox_database

from ..fixtures import fixture_of
from ..inbox_file import transaction_now
from ..kinds import returning

if TYPE_CHECKING:
    from .nowhere import Missing


def key_of(key: str) -> str:
    return key


# A result whose own code raises an error


class Uncomparable:
    """Like an array: comparing two of them raises an error."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth value is ambiguous \ud800")

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        writer = core_schema.plain_serializer_function_ser_schema(lambda value: value.number)
        return core_schema.no_info_after_validator_function(
            cls, core_schema.int_schema(), serialization=writer
        )


@dataclass
class Deep:
    inner: Deep | None = None


def chain(length: int) -> Deep | None:
    value = None
    for _ in range(length):
        value = Deep(value)
    return value


def nested(depth: int) -> list[Any]:
    value: list[Any] = [None]
    for _ in range(depth):
        value = [value]
    return value


def called_at_depth(depth: int, call: Callable[[], Any]) -> Any:
    return call() if depth == 0 else called_at_depth(depth - 1, call)


RAISING = [
    pytest.param(
        Uncomparable, Uncomparable(1), 0, "ValueError: the truth value is ambiguous", id="comparing"
    ),
    pytest.param(Deep, chain(100), 700, "RecursionError", id="deep"),
]
if sys.version_info < (
    3,
    12,
):  # since then calls within C have a limit of their own, far beyond what JSON may nest
    RAISING.append(pytest.param(Any, nested(250), 450, "RecursionError", id="deep in a deep stack"))


dedup = fixture_of(SyncDedup, "memory://")


@pytest.mark.parametrize(("declared", "value", "depth", "why"), RAISING)
def test_work_is_done_once_if_its_result_raises_an_error(
    dedup: SyncDedup, declared: Any, value: Any, depth: int, why: str
) -> None:
    work = dedup.once(key=key_of)(returning(declared, value, is_async=False))
    with pytest.raises(ResultWarning) as told:
        called_at_depth(depth, lambda: work("k"))
    assert told.value.result is value
    with pytest.raises(FailedError, match=why):
        work("k")


# Where the declared type is looked for


def helping(dedup: SyncDedup) -> Callable[[Callable[..., Any]], Any]:
    def helper(function: Callable[..., Any]) -> Any:
        Local = int  # noqa: F841, N806 -- of the same name as the type of the function that it decorates
        return dedup.once(key=lambda *args: "k")(function)

    return helper


def test_a_helpers_own_names_are_not_the_types_of_the_function_that_it_decorates(dedup: SyncDedup) -> None:
    @dataclass
    class Local:
        number: int

    @helping(dedup)
    def work() -> Local:
        return Local(1)

    assert [work(), work()] == [Local(1)] * 2


def test_a_partial_finds_a_type_that_is_defined_in_a_function(dedup: SyncDedup) -> None:
    @dataclass
    class Local:
        number: int

    def work(number: int) -> Local:
        return Local(number)

    once = dedup.once(key=lambda *args: "k")(functools.partial(work, 7))
    assert [once(), once()] == [Local(7)] * 2


# Callers that wait for each other in one process


def test_a_caller_that_waited_does_not_share_the_result_of_the_first(tmp_path: Path) -> None:
    """It gets what any other duplicate gets: if that is an error, then not the object of the first caller."""
    inbox = Inbox("billing", keep=60.0)
    begun, may_end = Event(), Event()

    def work(transaction: Any, key: str) -> Any:
        begun.set()
        assert may_end.wait(10)
        return {1, 2}

    def answer(call: Future[Any]) -> type:
        return type(call.exception(10) or call.result())

    with (
        inbox_database(inbox, path=tmp_path / "file"),
        SyncDedup("memory://") as gate,
        ThreadPoolExecutor() as threads,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        begin = functools.partial(transaction_now, tmp_path / "file")
        once = inbox.once(lambda transaction, key: key, begin=begin, gate=gate, wait=5.0)(work)
        first = threads.submit(once, "k")
        assert begun.wait(10)
        others = [threads.submit(once, "k") for _ in range(3)]
        may_end.set()
        assert first.result(10) == {1, 2}
        assert [answer(each) for each in others] == [FailedError] * 3


# Values that `==` calls equal, although they are not the same


@dataclass
class Output(dict[str, int]):
    """Fields and keys; like models of some libraries."""

    at: Any = None


# Types that can never come back, or that the stored bytes could choose


class Kind(Enum):
    CAT = "cat"


@dataclass(frozen=True)
class Point:
    x: int


class Loading(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    load: ImportString[Any]

    @model_validator(mode="before")
    @classmethod
    def checked(cls, value: Any) -> Any:
        return value


NEVER: list[tuple[Any, str]] = [
    (dict[tuple[int, str], int], "a key that is a tuple"),
    (list[dict[Point, int]], "a key that is a dataclass"),
    (dict[frozenset[int], int], "a key that is a frozenset"),
    (Literal[b"a"], "the literal b'a'"),
    (Literal[Kind.CAT], "the literal <Kind.CAT"),
    (ImportString, "ImportString"),
    (Loading | None, "ImportString"),
]


@pytest.mark.parametrize(("declared", "what"), NEVER, ids=str)
def test_it_is_refused_when_it_decorates(declared: Any, what: str) -> None:
    with SyncDedup("memory://") as dedup, pytest.raises(ConfigError, match=f"cannot come back.*{what}"):
        dedup.once(key=key_of)(returning(declared, None, is_async=False))


class Pet(BaseModel):
    kind: Annotated[Literal[Kind.CAT], BeforeValidator(lambda name: Kind(name))]


def test_a_type_that_a_validator_of_its_own_brings_back_is_not_refused(dedup: SyncDedup) -> None:
    work = dedup.once(key=key_of)(returning(Pet, Pet(kind=Kind.CAT), is_async=False))
    assert [work("k"), work("k")] == [Pet(kind=Kind.CAT)] * 2


# Unions that are equal to Python, but not to the reader of their JSON

REVERSED: list[tuple[Any, Any, Any]] = [
    (bytes | str, str | bytes, "YWJj"),
    (str | datetime, datetime | str, datetime(2026, 11, 28)),
    (list[bytes | str], list[str | bytes], ["YWJj"]),
]


@pytest.mark.parametrize(("first", "declared", "value"), REVERSED, ids=str)
def test_a_union_is_read_in_its_own_order(dedup: SyncDedup, first: Any, declared: Any, value: Any) -> None:
    """Another process may have seen only one of the two, so the one that was seen first must not decide."""
    assert first == declared
    dedup.once(key=key_of)(returning(first, None, is_async=False))("other")
    work = dedup.once(key=lambda key: f"{key}")(returning(declared, value, is_async=False))
    assert [work("k"), work("k")] == [value, value]


class BytesFirst(TypedDict):
    part: bytes | str


class TextFirst(TypedDict):
    part: str | bytes


def test_a_field_of_a_typed_dict_is_read_in_its_own_order(dedup: SyncDedup) -> None:
    dedup.once(key=key_of)(returning(BytesFirst, None, is_async=False))("other")
    work = dedup.once(key=lambda key: f"{key}")(returning(TextFirst, {"part": "YWJj"}, is_async=False))
    assert [work("k"), work("k")] == [{"part": "YWJj"}] * 2


# Another type than the one that a result was stored for


class Row(TypedDict):
    number: int
    label: NotRequired[str]


CHANGED: list[Any] = [int, str, bool, None, list[str], dict[str, str], Row, Literal["a"], list[int] | None]


@pytest.mark.parametrize("declared", CHANGED, ids=str)
def test_a_type_that_became_plain_json_does_not_get_another_types_result(
    dedup: SyncDedup, declared: Any
) -> None:
    dedup.once(key=key_of)(returning(Point, Point(1), is_async=False))("k")
    work = dedup.once(key=lambda key: f"{key}")(returning(declared, 7, is_async=False))
    with pytest.raises(ResultError, match="another version of this type"):
        work("k")


@pytest.mark.parametrize("declared", [Any, dict, dict[str, int], list[int] | dict[str, int]], ids=str)
def test_it_gets_the_json_if_that_is_of_the_type(dedup: SyncDedup, declared: Any) -> None:
    dedup.once(key=key_of)(returning(Point, Point(1), is_async=False))("k")
    assert dedup.once(key=lambda key: f"{key}")(returning(declared, 7, is_async=False))("k") == {"x": 1}


@pytest.mark.parametrize("value", [2**70, {"a": 1}], ids=str)
def test_plain_json_comes_back_as_it_was_also_if_the_declared_type_is_another(
    dedup: SyncDedup, value: Any
) -> None:
    for declared in (str, Point):
        work = dedup.once(key=lambda key: f"{key}")(returning(str, value, is_async=False))
        assert [work("k"), work("k")] == [value, value]
        assert dedup.once(key=key_of)(returning(declared, 7, is_async=False))("k") == value


Text = TypeAliasType("Text", str | list[str])

WRONG: list[tuple[Any, Any]] = [
    ({"a": 1}, Text),
    ([1], Text),
    ({"a": 1}, dict[str, str]),
    (["a"], list[int]),
    ([1, None], list[int]),
    ({"x": 1}, Row),
    ({"number": 1, "label": 2}, Row),
    ("c", Literal["a", "b"]),
    (1, Literal[True]),
    ({"a": [{"number": "1"}]}, dict[str, list[Row]]),
]


@pytest.mark.parametrize(("value", "declared"), WRONG, ids=str)
def test_replay_looks_at_the_parts_of_plain_json(dedup: SyncDedup, value: Any, declared: Any) -> None:
    dedup.claim("k").complete(value)
    with pytest.raises(ResultError, match="was completed with"):
        dedup.claim("k").replay(declared)


def test_replay_takes_parts_of_the_type(dedup: SyncDedup) -> None:
    value = {"a": [{"number": 1}, {"number": 2, "label": "b", "more": None}]}
    dedup.claim("k").complete(value)
    for declared in (dict[str, list[Row]], dict[str, list[dict[str, int | str | None]]], dict[str, Any]):
        assert dedup.claim("k").replay(declared) == value


# A result of `complete` that its own type would read as another value


class Renamed(BaseModel):
    number: int = Field(default=0, validation_alias="in", serialization_alias="out")


class Hiding(BaseModel):
    name: str = ""
    secret: str = Field(default="", exclude=True)
    _mark: int = PrivateAttr(0)

    def marked(self) -> Hiding:
        self._mark = 7
        return self


class Around(BaseModel):
    inner: Renamed = Renamed()


class Held(BaseModel):
    hiding: Any = None


@dataclass
class Doubled:
    number: int
    by: InitVar[int] = 2

    def __post_init__(self, by: int) -> None:
        self.number *= by


@dataclass
class Summed:
    total: int = field(default=0, init=False)
    _model: Renamed | None = None
    ratio: float = 0


@dataclass
class Late:
    number: int = 1
    mark: int | None = field(init=False)

    def marked(self, mark: int | None) -> Late:
        self.mark = mark
        return self


@dataclass
class Unread:
    """Its reader raises an error, whatever JSON it reads."""

    number: Annotated[int, AfterValidator(lambda number: 1 // 0)] = 0


class Entity(BaseModel):
    """Equal to each one of its number."""

    number: int
    secret: str = Field(default="", exclude=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entity) and other.number == self.number

    __hash__ = None  # type: ignore[assignment]


@dataclass
class Team:
    members: list[Entity]


@dataclass
class Stamped:
    at: datetime


FOLDED = datetime(2026, 10, 25, 2, 30, fold=1)
BEFORE_1900 = datetime(1850, 1, 1, tzinfo=ZoneInfo("Europe/Berlin"))  # 53 minutes and 28 seconds before UTC


@dataclass
class Aliased:
    number: Annotated[int, Field(alias="in")] = 0


T = TypeVar("T")


@dataclass
class Boxed(Generic[T]):
    item: T
    price: float = 0


@dataclass
class Counted(Generic[T]):
    item: T
    total: int = field(default=0, init=False)


class Paged(BaseModel, Generic[T]):
    items: list[T]
    secret: str = Field(default="", exclude=True)


V = TypeVar("V", Summed, Counted[datetime])


def with_total(value: V) -> V:
    value.total = 7
    return value


RENAMED = Renamed.model_validate({"in": 7})
ONE_WAY: list[tuple[Any, Any]] = [
    (Renamed, RENAMED),
    (Hiding, Hiding(secret="s")),
    (Hiding, Hiding().marked()),
    (Around, Around(inner=RENAMED)),
    (Held, Held(hiding=Hiding())),
    (Doubled, Doubled(1)),
    (Summed, with_total(Summed())),
    (Counted[datetime], with_total(Counted(FOLDED.replace(fold=0)))),
    (Paged[datetime], Paged(items=[], secret="s")),
    (Entity, Entity(number=1, secret="s")),
    (Team, Team([Entity(number=1), Entity(number=2, secret="s")])),
    (Summed, Summed(RENAMED)),
    (Aliased, Aliased(7)),
    (SecretStr, SecretStr("s")),
    (list[Renamed], [RENAMED]),
    (dict[str, tuple[Hiding, ...]], {"a": (Hiding(secret="s"),)}),
    (Boxed[Renamed], Boxed(RENAMED)),
    (Late, Late().marked(7)),
    (Late, Late().marked(None)),
    (tuple[Any, Hiding], (Unread(), Hiding(secret="s"))),
    (datetime, BEFORE_1900),
    (list[datetime], [datetime(2026, 1, 1), BEFORE_1900]),
    (tuple[datetime, Decimal], (BEFORE_1900, Decimal(1))),
    (time, time(1, tzinfo=timezone(timedelta(hours=1, seconds=30)))),
    (time, time(1, tzinfo=ZoneInfo("Europe/Berlin"))),
    (time, time(1, fold=1)),
    (dict[str, datetime], {"a": FOLDED}),
    (dict[datetime, int], {FOLDED: 1}),
    (tuple[Decimal, Summed], (Decimal(1), with_total(Summed(ratio=math.inf)))),
    (Stamped, Stamped(FOLDED)),
]
"""Types, each with a value that its JSON does not bring back."""
one_way = pytest.mark.parametrize(("declared", "value"), ONE_WAY, ids=map(str, range(len(ONE_WAY))))


@one_way
def test_replay_never_gives_a_default_for_what_is_not_stored(
    dedup: SyncDedup, declared: Any, value: Any
) -> None:
    dedup.claim("k").complete(value)
    claim = dedup.claim("k")
    with pytest.raises(ResultError, match=r"'k' cannot come back as .*does not bring back"):
        claim.replay(declared)
    with pytest.raises(ResultError, match="cannot come back"):
        dedup.once(key=key_of)(returning(declared, value, is_async=False))("k")
    assert claim.replay() == claim.replay(Any) == claim.result
    assert type(claim.result) in (dict, list, str)


EQUAL: list[tuple[Any, Any]] = [
    (Renamed, Renamed()),
    (Hiding, Hiding(name="n")),
    (list[Held], [Held(hiding=[1])]),
    (Doubled, Doubled(0)),
    (Boxed[datetime], Boxed(datetime(2026, 1, 1), 1)),
    (Boxed[int], Boxed(1, 1)),
    (Counted[datetime], Counted(datetime(2026, 1, 1))),
    (Team, Team([Entity(number=1)])),
    (Stamped, Stamped(datetime(2026, 1, 1, tzinfo=ZoneInfo("Europe/Berlin")))),
    (dict[str, Decimal | tuple[float]], {"a": Decimal(1), "b": (float("inf"),)}),
]


@pytest.mark.parametrize(("declared", "value"), EQUAL, ids=map(str, range(len(EQUAL))))
def test_replay_gives_a_value_that_is_equal(dedup: SyncDedup, declared: Any, value: Any) -> None:
    dedup.claim("k").complete(value)
    assert dedup.claim("k").replay(declared) == value


LONG = 10**5000


@pytest.mark.parametrize("value", [LONG, [LONG, 1.5], {"a": (LONG,)}, Boxed(LONG)], ids=range(4))
def test_an_integer_that_no_reader_takes_is_not_stored(dedup: SyncDedup, value: Any) -> None:
    with pytest.raises(ResultError, match="4300 digits"), dedup.claim("k") as claim:
        claim.complete(value)
    with pytest.raises(FailedError, match="the work is done"):
        dedup.claim("k").replay()


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({1: "a", "1": "b"}, "two of its keys are written as '1'"),
        ([{"a": {None: 1, "None": 2}}], "two of its keys are written as 'None'"),
        (Boxed({True: 1, "true": 2}), "two of its keys are written as 'true'"),
        ([2**70, float("nan")], "NaN"),
        ({"a": 2**70, "b": [float("inf")]}, "NaN"),
    ],
    ids=range(5),
)
def test_what_json_would_change_is_not_stored(dedup: SyncDedup, value: Any, why: str) -> None:
    """The last one of two keys with one name would come back alone, and NaN as a text."""
    with dedup.claim("k") as claim, pytest.raises(ResultError, match=why):
        claim.complete(value)
    with pytest.raises(FailedError, match="the work is done"):
        dedup.claim("k").replay()


@pytest.mark.parametrize("value", [10**4000, [10**4000, "7" * 5000], {"7" * 5000, "a"}], ids=range(3))
def test_other_long_ones_are(dedup: SyncDedup, value: Any) -> None:
    dedup.claim("k").complete(value)
    assert dedup.claim("k").replay(type(value)) == value


# Errors that say where


@dataclass
class Item:
    price: float
    more: Any = None


class Even(BaseModel):
    number: int

    @field_validator("number")
    @classmethod
    def checked(cls, value: int) -> int:
        if value % 2:
            raise ValueError("only even numbers")
        return value


WHERE: list[tuple[Any, Any, str]] = [
    (list[Item], [Item(1.5), Item(1)], r"content in \[1\]\.price, which would be a float"),
    (Item, Item(1.5, {"a": {"b": (1,)}}), r"content in \.more\.a\.b, which would be a list"),
    (dict[str, Item], {"ann@example.org": Item(1)}, r"content in \[…\]\.price, which"),
    (tuple[Even, ...], (Even.model_construct(number=1),), r"\[0\]\.number: Value error, only even numbers"),
    (set[float], {1}, r"another content\. Declare"),
    (Output, Output(datetime(2026, 1, 1)), "another content"),
    (datetime, datetime(2026, 10, 25, 2, 30, fold=1), "another content"),
    (time, time(2, 30, fold=1), "another content"),
    (complex, complex(-0.0, 1), "another content"),
    (deque[int], deque([1], maxlen=1), "another content"),
    (defaultdict[str, list[int]], defaultdict(dict, a=[1]), "another content"),
    (defaultdict[str, int], defaultdict(None, a=1), "another content"),
]


@pytest.mark.parametrize(("declared", "value", "where"), WHERE, ids=str)
def test_the_warning_says_where_a_result_differs(
    dedup: SyncDedup, declared: Any, value: Any, where: str
) -> None:
    work = dedup.once(key=key_of)(returning(declared, value, is_async=False))
    with pytest.raises(ResultWarning, match=where) as told:
        work("k")
    assert "ann" not in str(told.value)
    with pytest.raises(FailedError, match=where):
        work("k")


def test_the_warning_says_that_a_name_is_known_to_type_checkers_alone(dedup: SyncDedup) -> None:
    def work(key: str) -> Missing:
        return Point(1)

    once = dedup.once(key=key_of)(work)
    with pytest.raises(
        ResultWarning, match="declared type 'Missing' has a name that is not known at run time"
    ):
        once("k")


@pytest.mark.parametrize("around", [classmethod, staticmethod, property])
def test_what_cannot_be_called_is_refused_when_it_decorates(around: Callable[[Any], Any]) -> None:
    """It was a TypeError at the first call."""
    with SyncDedup("memory://") as dedup, pytest.raises(ConfigError, match="below @classmethod, @static"):
        dedup.once(key=lambda *args: "k")(around(key_of))
