"""The side-by-side benchmark: what it plays, checks and reports. No test looks at a time."""

import gc
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from math import isnan
from typing import Any

import pytest

from bench import ledger, ledger_windows, loops
from bench.contest import (
    BASELINE,
    CONTESTANTS,
    GC_THRESHOLDS,
    HOT,
    OURS,
    Contestant,
    Ops,
    Plan,
    Row,
    Scenario,
    Setting,
    Table,
    collector,
    contest,
    turns,
)
from bench.ledger import CALCULATED, PLANNED, calculated
from bench.ledger_windows import Stream
from bench.loops import CPU, LOOPS
from bench.pairs import ABOVE
from bench.report import Report
from bench.run import Run
from bench.targets import PLAYED, TARGETS
from bench.worker import Task, employ

pytestmark = pytest.mark.usefixtures("turns_leave_garbage")

CLAIM = Scenario("few", "Four callers", "claim", 4)


def plan(url: str = "", **settings: Any) -> Plan:
    return Plan(url, rounds=2, seconds=0.001, max_ops=20, **settings)


def player(name: str, ops: Ops, **facts: Any) -> Contestant:
    """A contestant that needs no server."""

    @asynccontextmanager
    async def connect(setting: Setting) -> AsyncIterator[Ops]:
        yield ops

    return Contestant(name, connect, **facts)


async def won(key: str) -> bool:
    return True


FIRST, SECOND = player("first", Ops(claim=won)), player("second", Ops(claim=won))


async def played(scenario: Scenario, *contestants: Contestant, **settings: Any) -> Table:
    return await contest(plan(**settings), scenario, contestants, ("first",))


# What everyone plays, on a real Redis


@pytest.mark.parametrize("verb", ["claim", "cycle", "replay"])
async def test_every_contestant_offers_every_verb(redis_url: str, verb: str) -> None:
    contestants = [replace(each, widths=each.widths[:2]) for each in CONTESTANTS]
    table = await contest(plan(redis_url), replace(CLAIM, verb=verb), contestants, (BASELINE,))
    assert [row.contestant for row in table.rows] == [BASELINE, OURS]
    for row in table.rows:
        assert {"rate", "cpu_us"} <= row.figures.keys(), row.note
        assert set(row.ratios) == {BASELINE}


async def settle_some(ops: Ops, keys: list[str]) -> list[str]:
    hot = keys[0] + HOT
    await ops.cycle(hot)  # type: ignore[misc] # both offer it
    return [*keys, hot, hot]


async def test_a_storm_replays_the_first_result(redis_url: str) -> None:
    storm = Scenario("storm", "A storm", "replay", 4, deal=settle_some)
    table = await contest(plan(redis_url), storm, CONTESTANTS, (BASELINE,))
    for row in table.rows:
        assert row.figures, row.note


async def pretend_settled(ops: Ops, keys: list[str]) -> list[str]:
    return [key + HOT for key in keys]


async def test_a_replay_that_was_never_settled_voids_the_row(redis_url: str) -> None:
    storm = Scenario("storm", "A storm", "replay", 4, deal=pretend_settled)
    table = await contest(plan(redis_url), storm, CONTESTANTS, (BASELINE,))
    assert all(row.note.startswith("n/a: WrongReplayError") for row in table.rows)


# A contest


async def test_everybody_plays_every_round_each_begun_by_another() -> None:
    labels: list[str] = []
    table = await played(CLAIM, FIRST, SECOND, on_turn=labels.append)
    assert [label.rpartition(" ")[2] for label in labels] == [
        *("first", "second"),  # warm-ups
        *("first", "second", "second", "first"),
    ]
    assert len(labels) == turns(CLAIM, [FIRST, SECOND], 2)
    assert [row.ratios.keys() for row in table.rows] == [{"first"}, {"first"}]
    assert table.row("second").note == "connections: 1"
    assert table.row("nobody") == Row("nobody")


async def test_latency_is_recorded_in_turns_of_its_own() -> None:
    timed = replace(CLAIM, latency=True)
    table = await played(timed, FIRST, SECOND)
    assert timed.modes == (False, True)
    assert table.row("second").figures.keys() == {"rate", "cpu_us", "p50_ms", "p99_ms"}
    assert table.row("second").ratios.keys() == {"first", "first, p99"}
    quantiles, times = zip(*table.curves["second"], strict=True)
    assert (quantiles[0], quantiles[-1]) == (0.01, 0.999)
    assert list(times) == sorted(times)


# Who fails


async def lost(key: str) -> bool:
    return False


async def crash(key: str) -> bool:
    raise ConnectionError("no\n way to redis://me:secret@host:6379 from /tmp/x.sock")


def wrong(key: str, answer: object) -> bool:
    return False


@pytest.mark.parametrize(
    ("scenario", "ops", "note"),
    [
        (CLAIM, Ops(claim=lost), "n/a: ClaimedTwiceError: few"),
        (replace(CLAIM, latency=True), Ops(claim=lost), "n/a: ClaimedTwiceError: few"),
        (replace(CLAIM, callers=1, latency=True), Ops(claim=lost), "n/a: ClaimedTwiceError: few"),
        (replace(CLAIM, verb="cycle"), Ops(cycle=lost), "n/a: ClaimedTwiceError: few"),
        (replace(CLAIM, verb="replay"), Ops(replay=won, right=wrong), "n/a: WrongReplayError: few"),
        (replace(CLAIM, verb="cycle"), Ops(claim=won), "n/a: NotImplementedError: offers no cycle"),
        (CLAIM, Ops(claim=crash), "n/a: ConnectionError: no way to … from …"),
    ],
)
async def test_one_that_fails_has_a_row_that_says_why_and_the_others_play_on(
    scenario: Scenario, ops: Ops, note: str
) -> None:
    good = player("good", Ops(won, won, won))
    table = await contest(plan(namespace="few"), scenario, [player("bad", ops), good], ("bad", "good"))
    bad = table.row("bad")
    assert (bad.figures, bad.ratios) == ({}, {})
    assert bad.note.startswith(note)
    assert {base.partition(",")[0] for base in table.row("good").ratios} == {"good"}


@pytest.mark.parametrize("scenario", [CLAIM, replace(CLAIM, callers=1, latency=True)])
async def test_one_that_fails_in_a_later_round_is_out(scenario: Scenario) -> None:
    asked = 0

    async def tiring(key: str) -> bool:
        nonlocal asked
        asked += 1
        return asked <= 1000  # what the warm-up asks for

    table = await played(scenario, FIRST, player("tiring", Ops(claim=tiring)))
    assert table.row("first").figures
    assert not table.row("tiring").figures


# The rest


@pytest.fixture
def thawed() -> Iterator[None]:
    """A process that froze nothing; tests/conftest.py freezes what was collected."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.usefixtures("thawed")
@pytest.mark.parametrize(("tuned", "inside"), [(True, lambda was: GC_THRESHOLDS), (False, lambda was: was)])
def test_the_collector_is_as_before_after_a_turn(tuned: bool, inside: Callable[[Any], Any]) -> None:
    was = gc.get_threshold()
    with collector(tuned=tuned):
        assert gc.get_threshold() == inside(was)
        assert bool(gc.get_freeze_count()) is tuned
    assert gc.get_threshold() == was
    assert gc.get_freeze_count() == 0


@pytest.mark.usefixtures("thawed")
@pytest.mark.parametrize("tuned", [True, False])
def test_what_the_process_froze_stays_frozen(tuned: bool) -> None:
    frozen: list[int] = []
    gc.freeze()
    with collector(tuned=tuned):
        pass
    assert not any(each is frozen for each in gc.get_objects())  # which leaves out what is frozen


# The row of event loops in the benchmark. No test looks at a time.


async def test_a_worker_runs_on_the_loop_of_its_task(redis_url: str) -> None:
    answers = await employ(*(Task("claims", redis_url, "t", 10, 10, uvloop=each) for each in (False, True)))
    assert [answer["loop"].partition(".")[0] for answer in answers] == ["asyncio", "uvloop"]
    assert all(answer["cpu"] > 0 for answer in answers)


async def test_uvloop_is_compared_with_asyncios_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answered(task: Task) -> list[dict[str, Any]]:
        return [
            {"began": 1.0, "ended": 2.0, "cpu": 0.5}
            if task.uvloop
            else {"began": 1.0, "ended": 3.0, "cpu": 2.0}
        ]

    monkeypatch.setattr(loops, "employ", answered)
    labels: list[str] = []
    run = Run(Plan("", rounds=2, max_ops=1_000_000, on_turn=labels.append), 0, 0, ())
    table = await loops.loops(run)
    assert len(labels) == loops.loops_steps(run)
    assert table.row(LOOPS[0]).figures == {"rate": 100_000, "cpu_us": 10.0}
    assert table.row(LOOPS[1]).figures == {"rate": 200_000, "cpu_us": 2.5}
    assert table.row(LOOPS[1]).ratios == {ABOVE: 2.0, CPU: 0.25}


# The ledger's scenarios: how answers are judged, and that each target finds its row.


WINDOW = 10.0


def stream_with_repeats() -> tuple[Stream, int]:
    """Return a stream of which one list was answered at once, and one of its ids."""
    stream = Stream(WINDOW, 4, random.Random(1))
    first = stream.next_list()
    stream.judge(first, [True] * 4, (0.0, 0.1))
    return stream, first.numbers[0]


@pytest.mark.parametrize(
    ("at", "new", "wrong"),
    [
        (5.0, False, (0, 0)),
        (5.0, True, (1, 0)),
        (10.05, True, (0, 0)),
        (10.05, False, (0, 0)),
        (20.0, True, (0, 0)),
        (20.0, False, (0, 1)),
    ],
)
def test_a_repeat_is_held_against_its_window(at: float, new: bool, wrong: tuple[int, int]) -> None:
    stream, number = stream_with_repeats()
    asked = stream.next_list()
    asked.numbers[:] = [number]
    asked.known.clear()
    asked.known[number] = (0.0, 0.1)
    stream.judge(asked, [new], (at, at + 0.01))
    assert (stream.wrongly_new, stream.wrongly_duplicate) == wrong


def test_a_fresh_id_that_is_told_a_duplicate_is_wrong() -> None:
    stream, _ = stream_with_repeats()
    asked = stream.next_list()
    asked.known.clear()
    asked.numbers[:] = range(4, 8)
    stream.judge(asked, [True, False, True, True], (1.0, 1.1))
    assert stream.wrongly_duplicate == 1


def test_no_two_lists_under_way_have_one_earlier_id() -> None:
    stream = Stream(WINDOW, 50, random.Random(2))
    stream.judge(stream.next_list(), [True] * 50, (0.0, 0.1))
    under_way = [stream.next_list() for _ in range(20)]
    earlier = [each for asked in under_way for each in asked.known]
    assert earlier
    assert len(earlier) == len(set(earlier))


def test_a_calculated_row_multiplies_the_bytes_of_an_id() -> None:
    row = calculated(Row("a ledger", {"bytes_an_id": 2**30 / PLANNED * 7}))
    assert row.contestant == f"{CALCULATED}a ledger"
    assert row.figures["calculated_gib"] == pytest.approx(7)


def test_every_ledger_target_has_its_row() -> None:
    figures = {"rate": 1.0, "server_us": 1.0, "bytes_an_id": 1.0, "resident_ratio": 1.0}
    figures |= {"wrongly_new": 0.0, "wrongly_duplicate": 0.0}
    ratios = {ledger.CLAIMS: 1.0, ledger.KEYS + ledger.SERVER: 1.0, ledger_windows.IDLE_P99: 1.0}
    names = {
        "ledger": (ledger.CLAIMS, ledger.FIRST, ledger.FIRST_MANY, ledger.FIRST_FEW, ledger.SET_NX),
        "ledger-memory": (*ledger.LEDGERS, ledger.KEYS, ledger.RECORDS),
        "ledger-windows": ledger_windows.ROWS,
    }
    tables = [
        Table(name, name, "rate", tuple(Row(row, figures, ratios) for row in rows))
        for name, rows in names.items()
    ]
    report = Report({}, {}, tuple(tables))
    ours = [each for each in TARGETS if names.keys() & set(PLAYED[each.number])]
    assert len(ours) == 19
    assert not [each.title for each in ours if isnan(each.figure(report))]
