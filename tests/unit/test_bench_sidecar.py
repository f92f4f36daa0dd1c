"""The sidecar's rows of the benchmark: what is read from other programs, and what is made of it."""

import asyncio

import pytest

from bench.contest import ClaimedTwiceError
from bench.load import Load, paced, won_in
from bench.pairs import ABOVE, Pair, held_against
from bench.sidecar import HOP, redis_benchmark_rate

CSV = """"test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms"
"FD.CLAIM key:__rand_int__","16708.44","2.774","0.296","2.199"
"""


async def never() -> dict[str, float]:
    raise AssertionError


def test_the_rate_that_redis_benchmark_prints() -> None:
    assert redis_benchmark_rate(CSV) == 16708.44


@pytest.mark.parametrize("text", ["", CSV.splitlines()[0], "Error: connection refused"])
def test_a_redis_benchmark_that_failed_gives_no_rate(text: str) -> None:
    with pytest.raises(ValueError, match="no rate"):
        redis_benchmark_rate(text)


@pytest.mark.parametrize(
    ("answer", "won"),
    [
        (b"HTTP/1.1 201 Created\r\ncontent-le", None),
        (b"HTTP/1.1 201 Created\r\nContent-Length: 24\r\n\r\n", None),
        (b'HTTP/1.1 201 Created\r\nContent-Length: 22\r\n\r\n"outcome":"acquired",0', 1),
        (b'HTTP/1.1 200 OK\r\ncontent-length: 42\r\n\r\n"outcome":"acquired""outcome":"acquired"...', 2),
        (b'HTTP/1.1 409 Conflict\r\ncontent-length: 23\r\n\r\n"outcome":"in_progress"', 0),
    ],
)
def test_claims_won_are_counted_in_whole_answers(answer: bytes, won: int | None) -> None:
    assert won_in(answer) == won


def test_the_p99_that_the_hop_adds_is_stated() -> None:
    pair = Pair(HOP, (never, never), "n", "p99_ms")
    _, second = held_against(pair, [{"rate": 9, "p99_ms": 1.0}], [{"rate": 9, "p99_ms": 1.5}])
    assert second.figures == {"rate": 9, "p99_ms": 1.5, "p99_added_us": 500}
    assert second.ratios == {ABOVE: 1.5}


async def test_a_steady_rate_asks_for_each_key_once() -> None:
    asked: list[str] = []

    async def claim(key: str) -> bool:
        asked.append(key)
        await asyncio.sleep(0)
        return True

    answer = await paced(Load("resp", "", seconds=0.05, callers=4, rate=2000), [claim] * 4)
    assert len(set(asked)) == len(asked) == 120  # the warm-up included
    assert answer.keys() == {"rate", "p50_ms", "p99_ms"}


async def test_a_key_that_is_refused_at_a_steady_rate_voids_the_turn() -> None:
    async def refused(key: str) -> bool:
        return False

    with pytest.raises(ExceptionGroup) as caught:
        await paced(Load("resp", "", seconds=0.05, callers=1, rate=1000), [refused])
    assert caught.group_contains(ClaimedTwiceError)


def test_the_held_connections_have_their_target() -> None:
    from bench.contest import Row, Table
    from bench.held import ROWS
    from bench.report import Report
    from bench.targets import verdicts

    for ratio, verdict in ((1.9, "pass"), (2.1, "short")):
        rows = Row(ROWS[0], {"p99_ms": 1.0}), Row(ROWS[1], {"p99_ms": ratio}, {ABOVE: ratio})
        [line] = verdicts(Report({}, {}, (Table("held", "", "p99_ms", rows),)))
        assert line[-1] == verdict


def test_every_sidecar_target_has_its_row() -> None:
    from bench.contest import Row, Table
    from bench.report import Report
    from bench.sidecar import PAIRS
    from bench.targets import verdicts

    rows = [
        Row(name, {"rate": 9.0, "p99_ms": 1.0, "p99_added_us": 1.0}, {ABOVE: 9.0})
        for names in PAIRS
        for name in names
    ]
    report = Report({}, {}, (Table("sidecar", "", "rate", tuple(rows)),))
    assert [line[-1] for line in verdicts(report)] == [
        *["pass"] * 4,
        *["no target"] * 2,
    ]
