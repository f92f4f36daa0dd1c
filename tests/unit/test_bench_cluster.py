"""The Cluster's rows of the benchmark: the servers that it starts, and what is made of its figures."""

from itertools import count
from types import SimpleNamespace

import pytest
from redis import Redis, TimeoutError  # noqa: A004 # redis-py's own

from bench import frozen
from bench.cluster import CALLERS, CARRYING, CLIENT, SERVER, calculated, carries, single, three
from bench.contest import ClaimedTwiceError, Row, Table, cells
from bench.frozen import HEALTHY, Answer, healthy_figures, steady
from bench.pairs import ABOVE, Pair, held_against
from bench.report import Report
from bench.server import private_cluster
from bench.targets import verdicts
from fastdedup import UnavailableError

COSTS = {1: {"server_us": 2.0, "client_us": 3.0}, 3: {"server_us": 4.0, "client_us": 6.0}}


def table(*rows: Row) -> Table:
    return Table("cluster", "", "rate", rows)


def measured() -> Table:
    return table(Row(single(CALLERS[0]), COSTS[1]), Row(three(CALLERS[0]), COSTS[3]))


async def never() -> dict[str, float]:
    raise AssertionError


async def won(key: str) -> bool:
    return True


# Servers


def test_a_frozen_node_is_silent_until_the_block_ends() -> None:
    with private_cluster(3) as nodes:
        first, second, _ = (Redis.from_url(node.socket, socket_timeout=0.1, retry=None) for node in nodes)
        with first, second:
            with nodes[0].frozen():
                with pytest.raises(TimeoutError):
                    first.ping()
                assert second.ping()
            first.connection_pool.connection_kwargs["socket_timeout"] = 5.0
            first.connection_pool.disconnect()
            assert first.ping()
        assert all(node.process.poll() is None for node in nodes)
    assert all(node.process.poll() is not None for node in nodes)


# Ratios and calculated rows


def test_a_pair_compares_each_figure_that_has_a_name_by_the_median_round() -> None:
    pair = Pair((single(64), three(64)), (never, never), "", also={"server_us": SERVER, "client_us": CLIENT})
    base, row = held_against(
        pair,
        [{"rate": rate, "server_us": 2, "client_us": 4} for rate in (10, 100, 20)],
        [{"rate": rate, "server_us": cost, "client_us": 6} for rate, cost in ((5, 6), (10, 8), (12, 20))],
    )
    assert (base.figures["rate"], base.ratios, row.figures["rate"]) == (20, {}, 10)
    assert row.ratios == {ABOVE: 0.5, SERVER: 4.0, CLIENT: 1.5}


@pytest.mark.parametrize(
    ("primaries", "rate", "note"),
    [
        (1, 500_000, "from 1.5 cores of clients"),
        (3, 750_000, "from 4.5 cores of clients"),
        (12, 3_000_000, "from 18.0 cores of clients"),
    ],
)
def test_each_primary_carries_a_core_by_the_cpu_of_a_claim(primaries: int, rate: float, note: str) -> None:
    row = carries(measured(), primaries)
    assert row.figures == {"calculated": pytest.approx(rate)}
    assert row.note == note


def test_a_calculated_figure_is_shown_as_calculated() -> None:
    headings, rows = cells(table(*(carries(measured(), primaries) for primaries in CARRYING)))
    assert headings[1].startswith("calculated")
    assert [row[0] for row in rows] == [calculated(primaries) for primaries in CARRYING]
    assert all(row[0].startswith("calculated") for row in rows)


@pytest.mark.parametrize("primaries", CARRYING)
def test_nothing_is_calculated_without_measured_cpu(primaries: int) -> None:
    failed = table(*(Row(name(CALLERS[0]), note="n/a: OSError") for name in (single, three)))
    row = carries(failed, primaries)
    assert (row.figures, row.ratios) == ({}, {})
    assert row.note.startswith("n/a: ")


# A steady rate


async def test_a_claim_is_timed_from_when_it_was_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that lags behind starts claims late, and their callers wait that long."""
    ticks = count()
    monkeypatch.setattr(frozen, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    answers = await steady(won, ["a", "b", "c", "d"], rate=4)
    # The clock starts at 0 s and says 1 s when all four are due, at 0, 0.25, 0.5 and 0.75 s.
    assert [answer.seconds for answer in answers] == [2.0, 2.75, 3.5, 4.25]


async def test_a_refused_claim_is_counted_and_the_others_go_on() -> None:
    async def refuse_b(key: str) -> bool:
        if key == "b":
            raise UnavailableError("frozen")
        return True

    answers = await steady(refuse_b, ["a", "b", "c"], rate=5000)
    assert {answer.key: answer.refused for answer in answers} == {"a": False, "b": True, "c": False}


async def test_a_fresh_key_that_was_not_won_voids_the_turn() -> None:
    async def lost(key: str) -> bool:
        return False

    with pytest.raises(ExceptionGroup) as caught:
        await steady(lost, ["a"], rate=5000)
    assert caught.group_contains(ClaimedTwiceError)


def test_a_refused_claim_counts_among_the_slow_ones() -> None:
    answers = [Answer("", 0.001, False)] * 98 + [Answer("", 0.25, True)] * 2
    assert healthy_figures(answers) == {"p50_ms": 1.0, "p99_ms": 250.0, "refused": 2}


# Targets


def test_every_cluster_target_has_its_row() -> None:
    rows = [Row(three(callers), {}, {ABOVE: 1.0, SERVER: 1.0, CLIENT: 1.0}) for callers in CALLERS]
    tail = Table("frozen", "", "p99_ms", (Row(HEALTHY[1], {}, {ABOVE: 1.0}),))
    assert [line[-1] for line in verdicts(Report({}, {}, (table(*rows), tail)))] == ["pass"] * 7


def test_a_cluster_that_failed_is_short_of_every_target() -> None:
    tail = Table("frozen", "", "p99_ms", (Row(HEALTHY[1], note="n/a: RuntimeError"),))
    failed = table(Row("Cluster", note="n/a: RuntimeError"))
    assert [line[-1] for line in verdicts(Report({}, {}, (failed, tail)))] == ["short"] * 7
