"""The log: one line an event, one line a second in a storm, and nothing in it with which one could act."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from fastdedup.events import BreakerClosed, BreakerOpened, Conflict, Degraded, LeaseLost, Replayed
from fastdedup.sidecar.counters import Counters
from fastdedup.sidecar.service import logs
from fastdedup.sidecar.service.config import Config
from fastdedup.sidecar.service.logs import EventLog, Throttle, facts, log, name_of, set_up
from fastdedup.sidecar.service.run import make_namespaces

from ..servers import RedisServer
from ..waiting import wait_until
from .running import Sidecar

Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def lines() -> Iterator[Lines]:
    stream = io.StringIO()
    undo = set_up("info", "json", stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    undo()


@pytest.fixture
def text() -> Iterator[Callable[[], str]]:
    stream = io.StringIO()
    undo = set_up("info", "text", stream)
    yield stream.getvalue
    undo()


# Lines


def test_a_line_of_json_says_when_how_bad_what_and_the_facts(lines: Lines) -> None:
    log.warning("something\nhappened", extra=facts(namespace="shop", count=3))
    (line,) = lines()
    assert line.pop("at").endswith("Z")
    assert line == {"level": "warning", "event": "something happened", "namespace": "shop", "count": 3}


def test_a_path_that_is_no_utf_8_costs_no_line(lines: Lines) -> None:
    path = Path(os.fsdecode(b"/run/caf\xe9"))
    log.info("started", extra=facts(path=path, named=[str(path)]))
    (line,) = lines()
    assert (line["path"], line["named"]) == (str(path), [str(path)])


def test_a_readable_line_shows_a_path_that_is_no_utf_8(text: Callable[[], str]) -> None:
    log.info("started", extra=facts(path=os.fsdecode(b"/run/caf\xe9")))
    assert text().endswith('path="/run/caf\\udce9"\n')


def test_a_readable_line_quotes_what_has_to_be(text: Callable[[], str]) -> None:
    log.info("started", extra=facts(path="/run/x", reason='say "no" now', count=3, empty="", two="a\nb"))
    assert text().endswith(
        'Z info    started path=/run/x reason="say \\"no\\" now" count=3 empty="" two="a\\nb"\n'
    )


def test_an_exception_is_its_type_and_place_not_its_text(lines: Lines) -> None:
    def fail() -> None:
        raise KeyError("order:42")

    try:
        fail()
    except KeyError:
        logging.getLogger("fastdedup").exception("a command failed")
    (line,) = lines()
    assert line["error"] == "KeyError"
    assert "fail:" in line["where"]
    assert "order:42" not in json.dumps(line)


def test_what_is_below_the_level_or_somebody_elses_is_not_logged(lines: Lines) -> None:
    log.debug("too much")
    logging.getLogger("uvicorn.error").info("Shutting down")
    logging.getLogger("uvicorn.error").error("bad")
    assert [line["event"] for line in lines()] == ["bad"]


def test_afterwards_logging_is_as_it_was() -> None:
    before = [(each.handlers[:], each.level, each.propagate) for each in map(logging.getLogger, logs.LOGGERS)]
    set_up("debug", "text", io.StringIO())()
    after = [(each.handlers[:], each.level, each.propagate) for each in map(logging.getLogger, logs.LOGGERS)]
    assert after == before


def test_a_thousand_lines_of_one_kind_are_twenty_and_the_number_of_the_rest() -> None:
    throttle = Throttle()

    def passes(second: float, text: str = "refused %s") -> tuple[bool, Any]:
        record = logging.LogRecord("x", logging.WARNING, "", 0, text, ("a",), None)
        record.created = second
        return throttle.filter(record), getattr(record, "facts", {}).get("left_out")

    assert sum(passes(5.0)[0] for _ in range(1000)) == 20
    assert passes(5.5, "another %s") == (True, None)
    assert passes(6.0) == (True, 980)
    assert passes(6.1) == (True, None)
    for number in range(2000):
        passes(6.2, f"kind {number}")
    assert len(throttle._kinds) <= 1001


# Events


def test_events_have_names_in_words() -> None:
    assert [name_of(kind) for kind in (BreakerOpened, LeaseLost)] == ["breaker opened", "lease lost"]


async def test_an_event_is_a_line_and_shows_no_key_and_no_owner(lines: Lines) -> None:
    EventLog()(Conflict("shop", "order:42", "owner-a", "owner-b", "ours"))
    (line,) = lines()
    assert (line["event"], line["namespace"], line["kept"]) == ("conflict", "shop", "ours")
    for secret in ("order:42", "owner-a", "owner-b"):
        assert secret not in json.dumps(line)


async def test_the_same_key_has_the_same_digest_in_one_run_and_another_in_the_next(lines: Lines) -> None:
    first, second = EventLog(), EventLog()
    for told in (first, first, second):
        told(LeaseLost("shop", "order:42", "a", 1))
    keys = [line["key"] for line in lines()]
    assert keys[0] == keys[1] != keys[2]


async def test_keys_are_shown_where_asked_for_and_owners_still_not(lines: Lines) -> None:
    EventLog(keys=True)(LeaseLost("shop", "order:42", "owner-a", 1))
    (line,) = lines()
    assert line["key"] == "order:42"
    assert "owner-a" not in json.dumps(line)


async def test_an_event_of_a_gate_is_one_line(lines: Lines) -> None:
    """The gate's own log lines are off in a sidecar."""
    namespaces = make_namespaces(Config(url="memory://"), Counters(), EventLog())
    namespaces.root.gate.connection.report(BreakerOpened("redis", "refused"))
    assert [line["event"] for line in lines()] == ["breaker opened"]


async def test_good_news_is_info(lines: Lines) -> None:
    EventLog()(Replayed(5, 0))
    assert [(line["level"], line["adopted"]) for line in lines()] == [("info", 5)]


async def test_an_outage_is_a_line_a_second_for_each_namespace_with_the_number(lines: Lines) -> None:
    events = EventLog()
    for _ in range(1000):
        events(Degraded("shop", "claim", True, "down"))
        events(Degraded("sms", "claim", False, "down"))
    assert [(line["event"], line["namespace"]) for line in lines()] == [
        ("degraded", "shop"),
        ("degraded", "sms"),
    ]
    await wait_until(lambda: len(lines()) == 4, description="a second later")
    told = {line["namespace"]: (line["answered"], line["count"]) for line in lines()[2:]}
    assert told == {"shop": (True, 999), "sms": (False, 999)}
    events(Degraded("shop", "claim", True, "down"))  # it goes on: counted, not told at once
    assert len(lines()) == 4
    events.flush()
    assert lines()[4]["count"] == 1


async def test_what_came_before_an_outage_ended_is_told_before_its_end(lines: Lines) -> None:
    events = EventLog()
    for _ in range(5):
        events(Degraded("shop", "claim", True, "down"))
    events(BreakerClosed("redis", 0.20200000000022555))
    told = lines()
    assert [line["event"] for line in told] == [
        "degraded",
        "degraded, more in the last second",
        "breaker closed",
    ]
    assert told[1]["count"] == 4
    assert told[2]["lasted"] == 0.202


async def test_a_kind_whose_count_was_told_early_begins_one_new_second(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: the former second's timer went on beside the new one's, and told the next counts early."""
    loop, timers = asyncio.get_running_loop(), list[asyncio.TimerHandle]()
    set_timer = loop.call_later
    monkeypatch.setattr(loop, "call_later", lambda *args: timers.append(set_timer(*args)) or timers[-1])
    events = EventLog()
    for _ in range(3):
        events(Degraded("shop", "claim", True, "down"))
        events(Degraded("shop", "claim", True, "down"))
        events.flush()
    assert [line["count"] for line in lines()[1:]] == [1, 2, 2]
    assert [timer.cancelled() for timer in timers] == [True, True, True, False]
    events.flush()  # nothing was counted: the kind is over, and its second with it
    assert timers[-1].cancelled()


async def test_of_conflicts_the_first_twenty_of_a_second_have_a_line_each(lines: Lines) -> None:
    events = EventLog()
    for number in range(50):
        events(Conflict("shop", f"k{number}", "a", "b", "ours"))
    events.flush()
    told = lines()
    assert len(told) == 21
    assert told[-1]["event"] == "conflict, more in the last second"
    assert told[-1]["count"] == 30


# A running sidecar


def test_nothing_that_a_client_sends_is_in_the_log_in_clear(
    redis_server: RedisServer, redis_url: str
) -> None:
    options = (
        "--url",
        redis_url,
        "--timeout",
        "0.1",
        "--ttl",
        "60",
        "--log-level",
        "debug",
        "--log-format",
        "json",
    )
    with Sidecar(*options, "--on-unavailable", "local") as sidecar, sidecar.client() as ask:
        token = ask.execute_command("FD.ISSUE", "SUBJECT", "subject-7")
        ask.execute_command("FD.REDEEM", token, "SUBJECT", "subject-7")
        redis_server.freeze()
        try:
            owner = ask.execute_command("FD.CLAIM", "key-7")[1]
            ask.execute_command("FD.COMPLETE", "key-7", owner, "result-7")
            with pytest.raises(redis.ResponseError):
                ask.execute_command("FD.CLAIM", "key-7", "NONSENSE-7", "x")
        finally:
            redis_server.thaw()
        assert sidecar.end() == 0
        told = sidecar.log
    assert {"started", "degraded", "stopping", "stopped"} <= {
        json.loads(line)["event"] for line in told.splitlines()
    }
    for secret in ("key-7", "result-7", "subject-7", "NONSENSE", token.decode(), owner.decode()):
        assert secret not in told
