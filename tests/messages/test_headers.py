"""What a message carries: headers, whoever has written them; what is left out for lack of room; ids."""

from __future__ import annotations

import builtins
import sys
import uuid
from typing import Any

import pytest

from fastdedup import ConfigError, InvalidKeyError
from fastdedup.messages import Action, Decision, Reason, new_id, republished_id
from fastdedup.messages.headers import (
    AGAIN,
    ATTEMPTS,
    CONSUMER,
    ERROR,
    KEY,
    LEFT_OUT,
    ORIGIN,
    QUEUE,
    again_headers,
    attempts_of,
    dead_letter_headers,
    is_again,
    retry_headers,
)
from fastdedup.messages.room import Headers, Letter, lay, lighter

FAILED = Decision(Action.DEAD_LETTER, Reason.FAILED, "order-7", 5, error=ValueError("no such customer"))


@pytest.mark.parametrize(
    ("value", "attempts"),
    [
        (3, 3),
        ("3", 3),
        (b"3", 3),
        (-1, 0),
        (10**9, 0),
        ("many", 0),
        (None, 0),
        ([], 0),
        (1.9, 1),
        (float("inf"), 0),
        ("9" * 5000, 0),
    ],
)
def test_attempts_that_are_no_count_are_none(value: Any, attempts: int) -> None:
    assert attempts_of({ATTEMPTS: value}, "orders") == attempts


def test_a_delayed_twin_spends_no_attempt() -> None:
    waiting = Decision(Action.RETRY, Reason.IN_PROGRESS, "order-7")
    found = retry_headers({"a": 1, ATTEMPTS: 2}, waiting, "orders")
    assert found == {"a": 1, ATTEMPTS: 2, CONSUMER: "orders"}


@pytest.mark.parametrize("name", ["orders", b"orders"])
def test_attempts_are_those_of_the_consumer_that_is_named(name: Any) -> None:
    headers = {ATTEMPTS: 2, CONSUMER: name}
    assert [attempts_of(headers, each) for each in ("orders", "shipping", None)] == [2, 0, 2]
    waiting = Decision(Action.RETRY, Reason.IN_PROGRESS, "order-7")
    assert retry_headers(headers, waiting, "shipping") == {ATTEMPTS: 0, CONSUMER: "shipping"}


async def test_a_dead_letter_says_what_it_died_of() -> None:
    broker = Broker(99)
    await lay(Letter({"a": 1, AGAIN: 1}.items()), FAILED, "orders", broker.publish)
    headers = broker.taken
    assert headers["a"] == 1
    assert (headers[KEY], headers[ATTEMPTS]) == ("order-7", 5)
    assert headers[ERROR] == "ValueError: no such customer"
    assert not is_again(headers)


def test_an_error_of_any_length_and_text_fits() -> None:
    died = Decision(Action.DEAD_LETTER, Reason.FAILED, "\ud800", 1, error=ValueError("\ud800" * 10_000))
    headers = dead_letter_headers(died, "orders")
    assert len(headers[ERROR].encode()) <= 2000
    headers[KEY].encode()


def test_a_dead_letter_taken_again_begins_anew() -> None:
    dead = {"a": 1, **dead_letter_headers(FAILED, "orders")}
    headers = again_headers(dead)
    assert headers == {"a": 1, AGAIN: 1}
    entry = {name.encode(): b"" for name in (ORIGIN, *dead)}
    assert again_headers(entry) == {b"a": b"", AGAIN: 1}
    assert is_again(headers)
    assert attempts_of(headers, "orders") == 0


@pytest.mark.parametrize(("attempts", "again"), [(5, 1), ("5", "1"), (b"5", b"1")])
def test_the_header_of_a_letter_taken_again_has_its_brokers_type(attempts: Any, again: Any) -> None:
    """NATS takes text alone, and Kafka bytes alone: aiokafka raises for a number."""
    assert again_headers({ATTEMPTS: attempts}) == {AGAIN: again}


# What is left out where the broker has no room, and in which order


LONG = Decision(Action.DEAD_LETTER, Reason.FAILED, "order-7", 5, error=ValueError("no " * 300))
THEIRS = {"tenant": "a", "trace": "t" * 4000, "basket": ["book"] * 99}


def versions(theirs: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
    whole = {**theirs, **dead_letter_headers(LONG, "orders"), QUEUE: "orders"}
    return [dict(each) for each in lighter(whole.items(), **options)]


def test_the_error_is_shortened_first() -> None:
    whole, second, *_ = versions(THEIRS)
    assert len(second[ERROR]) == 100
    assert {**second, ERROR: whole[ERROR]} == whole


def test_the_count_of_attempts_stays() -> None:
    every = versions(THEIRS)
    assert {each[ATTEMPTS] for each in every} == {5}
    assert set(every[-1]) == {ATTEMPTS, LEFT_OUT}


def test_the_messages_own_headers_go_last_and_the_largest_first() -> None:
    ours = [each for each in versions(THEIRS) if LEFT_OUT not in each]
    assert all(THEIRS.items() <= each.items() for each in ours)
    assert set(ours[-1]) == {ATTEMPTS, *THEIRS}
    first, second = versions(THEIRS)[len(ours) :]
    assert first == {ATTEMPTS: 5, LEFT_OUT: "trace", "basket": THEIRS["basket"], "tenant": "a"}
    assert second == {ATTEMPTS: 5, LEFT_OUT: "trace, basket, tenant"}


@pytest.mark.parametrize(
    "value", ["order-7", b"order-7", "7", '{"id": "order-7", "basket": "' + "b" * 9000 + '"}']
)
def test_the_header_that_holds_the_key_goes_last_of_all(value: str | bytes) -> None:
    every = versions({"id": value, **THEIRS})
    assert [each.get("id") for each in every] == [value] * (len(every) - 1) + [None]
    assert every[-2] == {ATTEMPTS: 5, "id": value, LEFT_OUT: "3 headers"}
    assert every[-1] == {ATTEMPTS: 5, LEFT_OUT: "id, trace, basket, tenant"}


def test_a_header_that_is_the_key_goes_after_one_that_holds_a_part_of_it() -> None:
    every = versions({"shard": "7", "id": "order-7", "link": "https://shop/order-7"})
    assert [set(each) - {ATTEMPTS, LEFT_OUT} for each in every[-2:]] == [{"id"}, set()]


def test_each_version_without_a_header_of_the_message_says_so() -> None:
    theirs = {"id": "order-7", **THEIRS}
    for each in versions(theirs):
        assert (LEFT_OUT in each) == (not theirs.keys() <= each.keys())


def test_what_the_broker_has_added_goes_before_the_messages_own() -> None:
    assert all("x-death" not in each for each in versions({**THEIRS, "x-death": [1]}, spare=("x-death",))[2:])


def test_thousands_of_headers_take_few_steps() -> None:
    assert len(versions({f"h{number}": "v" for number in range(5000)})) < 30


def test_names_stay_short_whoever_has_written_the_mark() -> None:
    last = versions({"n" * 5000: "v", LEFT_OUT: "m" * 5000, "again": 1})[-1]
    assert len(last[LEFT_OUT]) == 100
    last = versions({LEFT_OUT: "trace", "basket": 1})[-1]
    assert last[LEFT_OUT] == "basket, trace"


class TooLarge(Exception):
    """The broker takes less."""


class Broker:
    """Takes so many headers."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.tried: list[Headers] = []
        self.taken: dict[str, Any] = {}

    async def publish(self, headers: Headers) -> None:
        self.tried.append(headers)
        if len(headers) > self.room:
            raise TooLarge
        self.taken = dict(headers)


async def laid(room: int, *, helps: bool = True) -> Broker:
    broker = Broker(room)
    letter = Letter(THEIRS.items())
    await lay(letter, LONG, "orders", broker.publish, lambda error: helps and isinstance(error, TooLarge))
    return broker


async def test_the_fullest_version_is_laid_down(caplog: pytest.LogCaptureFixture) -> None:
    assert (await laid(99)).taken[KEY] == "order-7"
    assert not caplog.records
    broker = await laid(2)
    assert set(broker.taken) == {ATTEMPTS, LEFT_OUT}
    assert all(before != after for before, after in zip(broker.tried, broker.tried[1:], strict=False))
    assert "left out: 'trace, basket, tenant'" in caplog.text


async def test_what_no_room_mends_is_raised() -> None:
    with pytest.raises(TooLarge):
        await laid(1)
    with pytest.raises(TooLarge):
        await laid(2, helps=False)


# Ids: the same one for the same event, a new one that sorts by time


EVENTS = uuid.UUID("0b2c7a54-6f1e-4a53-9f0c-2f6a3d1c8e77")


def test_an_event_has_one_id() -> None:
    found = republished_id(EVENTS, "invoice-paid", 7)
    assert found == republished_id(EVENTS, "invoice-paid", 7) == str(uuid.uuid5(EVENTS, "invoice-paid|7"))
    assert uuid.UUID(found).version == 5


def test_two_events_have_two_ids() -> None:
    given = [("a", "b"), ("a|b",), ("ab",), ("b", "a")]
    assert len({republished_id(EVENTS, *parts) for parts in given}) == 4
    assert republished_id(EVENTS, "a") != republished_id(uuid.NAMESPACE_DNS, "a")


def test_an_id_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidKeyError):
        republished_id(EVENTS)
    with pytest.raises(ConfigError, match="namespace must be a uuid"):
        republished_id("shop", "a")  # type: ignore[arg-type]


def test_new_ids_differ_and_sort_by_their_time() -> None:
    found = [new_id() for _ in range(1000)]
    assert len(set(found)) == 1000
    assert {uuid.UUID(each).version for each in found} == {7}
    assert found == sorted(found)


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *more: Any) -> Any:
        if name == "uuid_utils":
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.delattr(uuid, "uuid7", raising=False)
    monkeypatch.delitem(sys.modules, "uuid_utils", raising=False)
    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ImportError, match=r"fastdedup\[ids\]"):
        new_id()


def test_a_python_that_has_it_needs_no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uuid, "uuid7", lambda: EVENTS, raising=False)
    assert new_id() == str(EVENTS)
