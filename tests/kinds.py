"""Kinds of results: functions that return a value of a declared type, for tests of each face of `once`."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from functools import cached_property
from math import nan
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NotRequired, TypedDict, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ConfigDict, Field, RootModel, field_validator

T = TypeVar("T")
Number = NewType("Number", int)


class Colour(Enum):
    RED = "red"
    ONE = 1
    ONE_AS_TEXT = "1"


class Size(IntEnum):
    LARGE = 3


class Word(StrEnum):
    YES = "yes"


@dataclass(frozen=True)
class Line:
    sku: str
    price: Decimal
    note: bytes = b""
    tags: frozenset[str] = frozenset()


@dataclass
class Order:
    id: UUID
    at: datetime
    lines: list[Line]
    took: timedelta = timedelta(0)
    weight: float = 0.0
    parent: Order | None = None


@dataclass
class Rushed(Order):
    courier: str = "van"


@dataclass(slots=True)
class Slotted:
    a: tuple[int, ...]
    b: dict[str, set[int]] = field(default_factory=dict)


@dataclass
class Deriving:
    number: int

    @cached_property
    def square(self) -> int:
        return self.number**2

    def derived(self) -> Deriving:
        assert self.square
        return self


class Pair(NamedTuple):
    number: int
    when: date


class Row(TypedDict):
    number: int
    label: NotRequired[str]


class Stamped(TypedDict):
    at: datetime
    price: NotRequired[Decimal]


class Customer(BaseModel):
    model_config = ConfigDict(extra="allow")

    full_name: str = Field(alias="fullName")
    born: date
    balance: Decimal = Decimal(0)

    @field_validator("full_name")
    @classmethod
    def stripped(cls, value: str) -> str:
        return value.strip()


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    tricks: set[str]


class Page(BaseModel, Generic[T]):
    items: list[T]


class Names(RootModel[list[str]]):
    pass


ORDER = Order(
    UUID(int=7),
    datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
    [Line("a", Decimal("1.10"), b"\xff\x00", frozenset({"x", "y"}))],
    timedelta(days=-1, microseconds=1),
    float("inf"),
)

KINDS: list[tuple[Any, Any]] = [
    (str, "text é\0"),
    (int, 2**63),
    (int, -(2**200)),
    (dict[str, list[int]], {"a": [2**64, 1]}),
    (bool, True),
    (int, True),
    (float, 1e300),
    (None, None),
    (Any, {"a": [1, None, 1.5]}),
    (Row, {"number": 1}),
    (Literal["a", "b"] | None, "b"),
    (Order, ORDER),
    (Order | None, Order(UUID(int=8), datetime(2026, 1, 2), [], parent=ORDER)),
    (list[Order], [ORDER, ORDER]),
    (Slotted, Slotted((1, 2), {"a": {1}})),
    (Pair, Pair(1, date(2026, 2, 28))),
    (Stamped, {"at": datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=-3, minutes=-30)))}),
    (dict[str, list[Stamped]], {"a": [{"at": datetime(2026, 1, 2), "price": Decimal("1E+9")}]}),
    (Customer, Customer(fullName=" Ann ", born=date(1990, 1, 1), balance=Decimal("0.30"), more=[1])),
    (Cat | Dog, Dog(tricks={"sit"})),
    (Annotated[Cat | Dog, Field(discriminator="kind")], Cat(lives=9)),
    (Page[Customer], Page[Customer](items=[Customer(fullName="Bo", born=date(2000, 1, 1))])),
    (Names, Names(["a"])),
    (datetime, datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))),
    (datetime, datetime.max),
    (date, date(1, 1, 1)),
    (time, time(1, 2, 3, 4)),
    (timedelta, timedelta.max),
    (timedelta, timedelta(microseconds=-1)),
    (UUID, UUID(int=2**128 - 1)),
    (Decimal, Decimal("123456789012345678901234567890.10")),
    (Decimal, Decimal("-0.00")),
    (Colour, Colour.ONE),
    (Colour, Colour.ONE_AS_TEXT),
    (list[Size | Word], [Size.LARGE, Word.YES]),
    (bytes, bytes(range(256))),
    (tuple[int, str, bytes], (1, "a", b"\x80")),
    (tuple[()], ()),
    (tuple[Decimal, ...], (Decimal(1), Decimal("1.0"))),
    (set[date], {date(2026, 1, day) for day in range(1, 20)}),
    (frozenset[tuple[int, str]], frozenset({(1, "a"), (2, "b")})),
    (dict[UUID, set[bytes]], {UUID(int=1): {b"\xff", b"a"}}),
    (dict[int, str], {1: "a"}),
    (dict[str, int | datetime | None], {"a": datetime(2026, 1, 1), "b": 1, "c": None}),
    (date | datetime, datetime(2026, 1, 1)),
    (Path, Path("/tmp/a")),
    (Number, 7),
    (Deriving, Deriving(3).derived()),
    (deque[int], deque([1])),
    (defaultdict[str, list[int]], defaultdict(list, a=[1])),
    (complex, complex(nan, -0.0)),
]
"""Declared types, each with a value."""
IDS = [f"{number} {getattr(declared, '__name__', declared)}" for number, (declared, _) in enumerate(KINDS)]


def returning(
    declared: Any, value: Any, *, is_async: bool = True, before: bool = False
) -> Callable[..., Any]:
    """Return a function that is declared to return a type, and returns a value; `before`: it takes a transaction."""

    async def later(key: str) -> Any:
        return value

    def now(key: str) -> Any:
        return value

    async def later_within(transaction: Any, key: str) -> Any:
        return value

    def now_within(transaction: Any, key: str) -> Any:
        return value

    work: Any = [[now, now_within], [later, later_within]][is_async][before]
    work.__annotations__["return"] = declared
    return work
