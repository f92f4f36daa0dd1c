"""Each client against fastdedup's own middleware: uvicorn, whose worker is killed, and a Redis that freezes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from fastdedup.client import RetryRules
from fastdedup.kernel.records import decode, encode

from ..fixtures import fixture_with
from ..servers import RedisServer
from .callers import Answer, Caller, Waits, until

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def shop(redis_server: RedisServer) -> Iterator[str]:
    """The address of the shop's orders."""
    command = [sys.executable, "-m", "tests.client.shop", redis_server.url]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    with process.stdout:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/orders"
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)


raw = fixture_with(lambda redis_url, redis_server: redis_server.client())


class Order:
    """An order of its own, and what became of it."""

    def __init__(self, call: Caller, url: str, raw: redis.Redis) -> None:
        self.name = uuid.uuid4().hex
        self.statuses: list[int | None] = []
        self._call = call
        self._url = url
        self._raw = raw

    def place(
        self,
        fate: str = "",
        *,
        path: str = "",
        key: str | None = None,
        body: bytes = b"{}",
        **options: object,
    ) -> Answer:
        headers = {"x-order": self.name, "x-fate": fate}
        if key is not None:
            headers["Idempotency-Key"] = key
        rules = RetryRules(attempts=50, on_retry=lambda retry: self.statuses.append(retry.status))
        return self._call(self._url + path, headers=headers, body=body, **{"rules": rules, **options})  # type: ignore[arg-type]

    def end_lease(self) -> None:
        """Let the lease of the dead worker, the only one that holds a key here, end now."""
        (name,) = self._raw.keys("t:http:*")  # type: ignore[misc]
        record = decode(self._raw.get(name), 0)  # type: ignore[arg-type]
        self._raw.set(name, encode(record), keepttl=True)  # with a deadline of 0

    @property
    def effects(self) -> int:
        return int(self._raw.get(f"{self.name}:effects") or 0)  # type: ignore[arg-type]


@pytest.fixture
def order(call: Caller, shop: str, raw: redis.Redis) -> Order:
    return Order(call, shop, raw)


def test_an_order_is_placed_once(order: Order) -> None:
    answer = order.place()
    assert (answer.status, answer.headers.get("idempotency-replayed"), order.effects) == (201, None, 1)
    assert order.statuses == []


def test_a_server_killed_before_the_effect_leaves_one(order: Order) -> None:
    """The dead worker holds the key until its lease ends: 409 meanwhile, then the request runs."""

    def then(number: int) -> None:
        if order.statuses[-1] == 409:
            order.end_lease()

    answer = order.place("before", sleep=Waits(then))
    assert (answer.status, order.effects) == (201, 1)
    assert set(order.statuses) == {None, 409}


@pytest.mark.parametrize("fate", ["unsent", "half"])
def test_a_server_killed_after_the_effect_leaves_one(order: Order, fate: str) -> None:
    answer = order.place(fate)
    assert (answer.status, answer.headers["idempotency-replayed"]) == (201, "true")
    assert (order.effects, order.statuses) == (1, [None])


def test_a_handler_that_outlives_the_clients_patience_acts_once(order: Order, raw: redis.Redis) -> None:
    def then(number: int) -> None:
        if number == 2:
            raw.lpush(f"{order.name}:go", 1)
            raw.expire(f"{order.name}:go", 60)
            until(lambda: order.effects, "the first attempt acts")

    answer = order.place("held", timeout=0.2, sleep=Waits(then))
    assert (answer.status, answer.headers["idempotency-replayed"]) == (201, "true")
    assert order.effects == 1
    assert order.statuses[0] is None
    assert set(order.statuses[1:]) <= {None, 409}  # a busy server's 409 may come too late as well


def test_a_store_that_is_down_is_asked_again_as_told(order: Order, redis_server: RedisServer) -> None:
    waits = Waits(lambda number: redis_server.thaw())
    redis_server.freeze()
    try:
        answer = order.place(sleep=waits)
    finally:
        redis_server.thaw()
    assert (answer.status, order.effects) == (201, 1)
    assert order.statuses[0] == 503
    assert waits.seconds[0] >= 1.0


def test_a_conflict_of_the_handlers_own_is_not_retried(order: Order) -> None:
    answer = order.place("conflict")
    assert (answer.status, answer.body, order.statuses) == (409, b"sold out", [])


def test_a_key_of_another_body_is_refused_and_not_retried(order: Order) -> None:
    key = uuid.uuid4().hex
    assert [order.place(key=key, body=body).status for body in (b"1", b"2")] == [201, 422]
    assert (order.effects, order.statuses) == (1, [])


def test_quoted_and_bare_are_one_key(order: Order) -> None:
    key = uuid.uuid4().hex
    rules = RetryRules(quoted=True, make_key=lambda: key)
    assert order.place(key=key).status == 201
    answer = order.place(rules=rules)
    assert (answer.headers["idempotency-replayed"], order.effects) == ("true", 1)


def test_a_redirect_to_the_same_path_ends_at_its_target(order: Order) -> None:
    """The middleware keeps no such redirect, so a key of the caller's own is good at the target, too."""
    assert order.place(path="/").status == 201
    key = uuid.uuid4().hex
    answers = [order.place(path="/", key=key) for _ in range(2)]
    assert [answer.status for answer in answers] == [201, 201]
    assert (answers[1].headers["idempotency-replayed"], order.effects) == ("true", 2)
