"""The row of event loops in the benchmark. No test looks at a time."""

from __future__ import annotations

from typing import Any

import pytest

from bench import loops
from bench.contest import Plan
from bench.loops import CPU, LOOPS
from bench.pairs import ABOVE
from bench.run import Run
from bench.worker import Task, employ


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
