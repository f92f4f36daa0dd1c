"""Rules of a call's arguments: by name or by place, `by()`, the name of a function, the parts of a business key."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest

from fastdedup import ConfigError, Dedup, InvalidKeyError, business_key, by, decorated
from fastdedup import sync as synchronous
from fastdedup.arguments import ArgumentsRule, CallRules
from fastdedup.sql import Inbox
from fastdedup.sync.sql import Inbox as BlockingInbox

DAY = date(2026, 11, 27)
NOON = datetime(2026, 11, 27, 12, tzinfo=UTC)
NUMBER = uuid.UUID("12345678-1234-5678-1234-567812345678")


@dataclass(frozen=True)
class Order:
    id: int
    buyer: dict[str, Any]


class Color(str, Enum):  # noqa: UP042 -- the str() of its member is not the text
    RED = "red"


class Rank(int, Enum):
    ONE = 1


ORDER = Order(7, {"name": "a|b", "paid": None})


def place(user: str, order: Order, times: int = 1, *, note: str = "") -> None: ...


def key_of(rule: Any, *args: Any, function: Callable[..., Any] = place, **kwargs: Any) -> str:
    return CallRules(rule).of(function)(args, kwargs)[0]


@pytest.mark.parametrize(
    ("rule", "key"),
    [
        (lambda order: f"order:{order.id}", "order:7"),
        (lambda order, user: f"{user}:{order.id}", "u:7"),  # in its own order
        (lambda times, user: f"{user} {times}", "u 1"),  # with the function's default
        (lambda note, user: user + note, "u"),
        (lambda user, other="x": user + other, "ux"),
        (lambda user, other="x", times=2, /: f"{user}{other}{times}", "ux1"),
        (lambda u, o, t=1, *, note="": f"{u}{o.id}{t}", "u71"),  # by place: it has other names
        (by("order.id", "user"), "7|u"),
        (by("order.buyer.name"), "a\\|b"),
        (by("times"), "1"),
    ],
)
def test_a_rule_gets_the_arguments_that_it_names(rule: Any, key: str) -> None:
    assert key_of(rule, "u", ORDER) == key


def test_by_takes_a_field_of_a_methods_object() -> None:
    assert key_of(by("self.id", "times"), ORDER, 2, function=lambda self, times: None) == "7|2"


@pytest.mark.parametrize("rule", [lambda order: f"{order}", by("order")])
def test_a_keyword_does_not_replace_an_argument_by_place_of_its_name(rule: Any) -> None:
    def add(order: int, /, **labels: Any) -> None: ...

    assert [key_of(rule, number, function=add, order=7) for number in (1, 2)] == ["1", "2"]


@pytest.mark.parametrize("rule", [lambda order, user: f"{order.id}{user}", by("order.id", "user")])
def test_a_call_is_one_call_in_whatever_way_it_names_its_arguments(rule: Any) -> None:
    keys = {
        key_of(rule, "u", ORDER),
        key_of(rule, "u", order=ORDER),
        key_of(rule, order=ORDER, user="u"),
        key_of(rule, "u", ORDER, 1, note="n"),
    }
    assert len(keys) == 1


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (lambda buyer: buyer, "key= takes .buyer., and no call of place"),
        (lambda: "k", "no call of place"),  # every call would have one key
        (by("buyer.id"), "no call of place"),
    ],
)
def test_a_rule_that_asks_for_what_is_not_there_is_refused_when_it_decorates(rule: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        CallRules(rule).of(place)


def test_a_rule_for_an_argument_that_stands_in_another_place_is_refused_when_it_decorates() -> None:
    """Each call that gives the rule its `a` would give the function's `a` twice."""

    def place(a: str = "", *rest: str, **others: str) -> None: ...

    with pytest.raises(ConfigError, match="no call of"):
        CallRules(lambda x, /, *, a: a).of(place)


@pytest.mark.parametrize("rule", [lambda order: f"{order.id}", lambda u, o: f"{o}", by("order.id")])
@pytest.mark.parametrize(
    ("args", "kwargs", "says"),
    [
        ((), {}, "missing a required argument: 'user'"),
        (("u",), {}, "missing a required argument: 'order'"),
        (("u",), {"oder": ORDER}, "missing a required argument: 'order'"),
    ],
)
def test_a_wrong_call_names_the_function_and_not_its_key(
    rule: Any, args: Any, kwargs: Any, says: str
) -> None:
    def take(user: str, order: Order) -> None: ...

    with pytest.raises(TypeError, match=f"take was called with wrong arguments: {says}"):
        key_of(rule, *args, function=take, **kwargs)


async def test_a_wrong_call_names_the_function_on_all_faces() -> None:
    says = "was called with wrong arguments: missing a required argument: 'order'"
    inbox = BlockingInbox("shop", keep=timedelta(days=1))
    task = ArgumentsRule(lambda order: order, inspect.signature(lambda order: None))
    async with Dedup("memory://") as dedup:

        @dedup.once(lambda order: order)
        async def take(order: str) -> None: ...

        with pytest.raises(TypeError, match=f"take {says}"):
            await take()  # type: ignore[call-arg]
    with synchronous.Dedup("memory://") as gate:
        with pytest.raises(TypeError, match=says):
            gate.once(lambda o: o)(lambda order: None)()  # type: ignore[call-arg]

        @inbox.once(lambda session, order: order, begin=nullcontext)
        def put(session: Any, order: str) -> None: ...

        with pytest.raises(TypeError, match=f"put {says}"):
            put()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=f"the task {says}"):
        task((), {})


@pytest.mark.parametrize(
    "paths", [(), ("",), ("order.",), ("order..id",), ("order[0]",), (7,), (None,), ("a b",)]
)
def test_a_path_that_is_none_is_refused(paths: Any) -> None:
    with pytest.raises(ConfigError, match=r"by\(\)"):
        by(*paths)


@pytest.mark.parametrize(
    "path", ["order.total", "order.buyer.email", "order.id.x", "order.buyer.paid", "order", "note"]
)
def test_a_field_that_is_missing_or_no_part_of_a_key_is_an_error(path: str) -> None:
    """The message names the path, and shows no value."""
    with pytest.raises(InvalidKeyError, match=f"^by\\('{path}'\\)") as caught:
        key_of(by(path), "u", ORDER)
    assert "a|b" not in str(caught.value)


def test_a_rule_by_place_that_a_named_argument_does_not_fit_says_so() -> None:
    def take(user: str, order: Order) -> None: ...

    with pytest.raises(TypeError, match=r"key= takes \(u, o\), which does not fit this call of .*take"):
        key_of(lambda u, o: "k", "u", function=take, order=ORDER)


def test_an_error_of_the_rule_itself_is_raised_unchanged() -> None:
    with pytest.raises(TypeError, match="unsupported operand"):
        key_of(lambda user: user - "", 7, ORDER)


async def test_two_functions_with_equal_keys_stay_apart_by_name() -> None:
    async with Dedup("memory://") as dedup:

        @dedup.once(by("order.id"), name="charge")
        async def charge(order: Order) -> str:
            return "charged"

        @dedup.once(by("order.id"), name="ship")
        async def ship(order: Order) -> str:
            return "shipped"

        for _ in range(2):
            assert [await charge(ORDER), await ship(ORDER)] == ["charged", "shipped"]
        assert [await dedup.get(key) is not None for key in ("charge|7", "ship|7", "7")] == [
            True,
            True,
            False,
        ]


def test_synchronous_code_has_the_name_too() -> None:
    with synchronous.Dedup("memory://") as dedup:
        charge = dedup.once(by("order.id"), name="a|b")(lambda order: "charged")
        assert [charge(ORDER), charge(order=ORDER)] == ["charged"] * 2
        assert dedup.get("a\\|b|7") is not None


def test_a_name_makes_no_key_of_an_empty_one() -> None:
    with synchronous.Dedup("memory://") as dedup:
        charge = dedup.once(lambda order: order, name="charge")(lambda order: "charged")
        with pytest.raises(InvalidKeyError):
            charge("")


def test_a_builtin_that_shows_no_parameters_can_be_decorated() -> None:
    with synchronous.Dedup("memory://") as dedup:
        assert [dedup.once(str, name="int")(int)("7") for _ in range(2)] == [7, 7]


@pytest.mark.parametrize("name", ["", 7, b"x"])
def test_a_name_that_is_none_is_refused(name: Any) -> None:
    with pytest.raises(InvalidKeyError):
        Dedup("memory://").once(by("order"), name=name)


def test_equal_keys_of_two_functions_are_warned_of_until_one_has_a_name() -> None:
    dedup = synchronous.Dedup("memory://")
    dedup.once(by("order.id"))(place)
    with pytest.warns(UserWarning, match="name="):
        dedup.once(by("order.id"))(lambda order: None)
    dedup.once(by("order.id"), name="other")(lambda order: None)


def test_functions_that_are_decorated_for_each_tenant_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decorated, "_MOST", 5)
    functions, rules = decorated.DecoratedFunctions(), CallRules(by("order.id"))
    for tenant in range(20):
        functions.tell(place, rules, f"tenant-{tenant}")
    with pytest.warns(UserWarning, match="name="):
        functions.tell(lambda order: None, rules, "tenant-0")
    assert len(functions) == 5


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (NUMBER, "12345678-1234-5678-1234-567812345678"),
        (DAY, "2026-11-27"),
        (NOON, "2026-11-27T12:00:00+00:00"),
        (NOON.astimezone(timezone(timedelta(hours=8))), "2026-11-27T12:00:00+00:00"),
        (Decimal("1.10"), "1.1"),
        (Decimal("1E+2"), "100"),
        (Decimal("-0.00"), "0"),
        (Decimal("12345678901234567890123456789.10"), "12345678901234567890123456789.1"),
        (100, "100"),
        (Color.RED, "red"),
        (Rank.ONE, "1"),
    ],
)
def test_the_parts_of_a_business_key(part: Any, text: str) -> None:
    assert business_key(part, "x") == f"{text}|x"


@pytest.mark.parametrize(
    "part",
    [
        None,
        True,
        1.5,
        b"x",
        "",
        NOON.replace(tzinfo=None),
        Decimal("NaN"),
        Decimal("Infinity"),
        Decimal("1E+999999"),
        [],
    ],
)
def test_what_is_no_part_of_a_business_key(part: Any) -> None:
    with pytest.raises(InvalidKeyError):
        business_key(part)


def test_a_key_of_an_enum_is_its_text() -> None:
    """The str() of a member is its name, "Color.RED". So one key had two names, by its member and by its text."""
    dedup, named = Dedup("memory://"), CallRules(lambda key: key, name="charge").of(lambda key: None)
    orders = dedup.machine("order", initial="new", transitions={"new": ()})
    ways: list[Callable[[str], Any]] = [
        lambda key: named((key,), {})[0],
        Inbox("mail", keep=60.0).gate_key,
        orders.store_key,
    ]
    for way in ways:
        assert way(Color.RED) == way("red")


def test_a_name_of_an_enum_is_its_text() -> None:
    """The scope of a namespace `Color.RED` was "Color.RED:http", which no other process had."""
    scope = Dedup("memory://", namespace=Color.RED).scoped(Color.RED)
    assert scope.settings.namespace == "red:red"
    named = [Inbox(name, keep=60.0, table="t").gate_key("k") for name in (Color.RED, "red")]
    assert named[0] == named[1]
