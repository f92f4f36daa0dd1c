"""`Inbox.once(gate=…, wait=8.0)` counted one wait as four: one for each look at the gate. A sidecar counted none."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from fastdedup import Dedup, InProgressError
from fastdedup.gate.counters import GateCounters
from fastdedup.integrations.prometheus import watch
from fastdedup.sql import Inbox, once
from fastdedup.sync import Dedup as SyncDedup
from fastdedup.sync.sql import Inbox as SyncInbox

from ..sidecar.running import Sidecar, figure

WEEK = timedelta(days=7)


@pytest.fixture(autouse=True)
def _short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(once, "LOOK", 0.05)


def begin() -> Any:
    """No transaction begins: the caller waits at the gate in vain."""
    raise AssertionError("it does not get as far")


def counted(counters: GateCounters) -> int:
    """How many waits were counted."""
    return sum(int(sum(cells[:-1])) for cells in counters.waits.values())


async def test_a_wait_of_several_looks_is_counted_once() -> None:
    inbox = Inbox("shop", keep=WEEK)
    gate = Dedup("memory://", namespace="t")
    counters = gate._namespace.connection.count()

    @inbox.once(key=lambda session, key: key, begin=begin, gate=gate, wait=0.5)
    async def work(session: Any, key: str) -> None: ...

    async with gate, gate.claim(inbox._rules.gate_key("k")):
        with pytest.raises(InProgressError):
            await work("k")
    assert counted(counters) == 1


def test_a_wait_of_synchronous_code_is_counted_once() -> None:
    inbox = SyncInbox("shop", keep=WEEK)
    gate = SyncDedup("memory://", namespace="t")
    registry = CollectorRegistry()
    watch(gate, registry=registry)

    @inbox.once(key=lambda session, key: key, begin=begin, gate=gate, wait=0.5)
    def work(session: Any, key: str) -> None: ...

    with gate, gate.claim(inbox._rules.gate_key("k")), pytest.raises(InProgressError):
        work("k")
    assert registry.get_sample_value("fastdedup_wait_seconds_count", {"namespace": "t"}) == 1


def test_a_sidecar_counts_the_waits_of_its_clients() -> None:
    with Sidecar() as sidecar, sidecar.client() as ask, sidecar.http() as http:
        ask.execute_command("FD.CLAIM", "k")
        ask.execute_command("FD.CLAIM", "k", "WAIT", "20")
        http.post("/v1/claims", json={"key": "k", "wait": 20})
        assert figure(sidecar.figures(), "fastdedup_wait_seconds_count", namespace="fastdedup") == 2
