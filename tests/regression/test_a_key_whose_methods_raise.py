"""A key whose own methods raise ended its consumer, again at each start, while the messages beside it waited."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

import pytest

from fastdedup import Dedup
from fastdedup.messages import MessageRules
from fastdedup.messages.decisions import Action, Reason
from fastdedup.messages.keys import NoKeyError

from ..messages.test_redis_streams import Waiter, Work, shop_of
from ..messages.test_rules import Consumer as BareConsumer
from ..servers import RedisServer


def fail(*_: Any) -> Any:
    raise RuntimeError("no text")


class MuteKey(str):
    __str__ = __repr__ = __format__ = __len__ = __bool__ = encode = fail  # type: ignore[assignment]
    __slots__ = ()


class Column:
    """A value of a data frame: its truth is an error."""

    __bool__ = fail

    @property
    def __class__(self) -> Any:
        raise RuntimeError("no class")


class Kind(str, Enum):  # noqa: UP042 -- a StrEnum's text is its value anyway
    ORDER = "order"


def key_of(found: Any) -> str:
    return MessageRules("orders", lambda message: message, wait=0.0).key_of(found)


@pytest.mark.parametrize(
    ("make", "text"),
    [(lambda: MuteKey("m-1"), "m-1"), (lambda: Kind.ORDER, "order")],
    ids=["raises", "enum"],
)
def test_a_subclass_of_text_is_taken_as_plain_text(make: Callable[[], str], text: str) -> None:
    key = key_of(make())
    assert type(key) is str
    assert key == text


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: MuteKey(""), "has no key"),
        (lambda: None, "has no key"),
        (Column, "got Column"),
        (lambda: 0, "got int"),
        (lambda: b"", "got bytes"),
    ],
    ids=["empty", "none", "column", "zero", "bytes"],
)
def test_no_value_of_the_rule_raises_another_error(make: Callable[[], Any], why: str) -> None:
    with pytest.raises(NoKeyError, match=why):
        key_of(make())


async def test_a_stream_with_such_a_key_is_worked_off(server: RedisServer, wait_until: Waiter) -> None:
    def key(entry: Any) -> str:
        return MuteKey(entry.fields[b"id"].decode())

    work = Work()
    async with (
        shop_of(server) as shop,
        Dedup(server.url, namespace="m", timeout=5.0) as dedup,
        shop.consumer(dedup, work, key=key, dead_letter=shop.dead) as consumer,
    ):
        shop.add("m-1", "m-1", "m-2")
        await wait_until(lambda: consumer.counts.delivered == 3, description="all are delivered")
        await wait_until(lambda: not shop.pending(), description="all are acknowledged")
        assert consumer.is_running
    assert sorted(work.done) == ["m-1", "m-2"]


@pytest.mark.parametrize(
    ("make", "expected"),
    [(MuteKey, Reason.FIRST), (lambda _: Column(), Reason.NO_KEY)],
    ids=["text", "column"],
)
async def test_the_decision_names_the_plain_key(make: Callable[[str], Any], expected: Reason) -> None:
    async with Dedup("memory://", namespace="m") as dedup:
        consumer = BareConsumer(dedup, key=lambda message: make("m-1"))
        decision = await consumer.get()
    assert decision.reason is expected
    assert decision.action is (Action.ACK if expected is Reason.FIRST else Action.DEAD_LETTER)
    assert type(decision.key) is (str if expected is Reason.FIRST else type(None))
