"""`fastdedup.sync` over the URLs that processes share: the contract's fundamentals, and forking servers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

from fastdedup import (
    ClaimLostError,
    FailedError,
    InProgressError,
    MismatchError,
    Outcome,
    Record,
    ResultError,
    State,
    TransitionOutcome,
    UsageError,
    fingerprint,
)
from fastdedup.sync import Dedup

from ..servers import RedisServer
from ..sidecars import Sidecar

LONG = 60.0
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*multi-threaded, use of fork:DeprecationWarning"
)  # Python 3.12+


@pytest.fixture(scope="module")
def urls(server: RedisServer) -> Iterator[dict[str, str]]:
    with Sidecar(server.url) as sidecar:
        yield {"redis": server.url, "sidecar": sidecar.url}


@pytest.fixture(params=["redis", "sidecar"])
def dedup(request: pytest.FixtureRequest, urls: dict[str, str]) -> Iterator[Dedup]:
    dedup = Dedup(urls[request.param], namespace=f"n{abs(hash(request.node.name))}", lease=LONG, timeout=5)
    yield dedup
    dedup.close()


def test_the_first_does_the_work_and_others_get_its_result(dedup: Dedup) -> None:
    with dedup.claim("key", fingerprint="body", owner="me") as claim:
        assert (claim.acquired, claim.key, claim.owner, claim.attempt) == (True, "key", "me", 1)
        assert claim.fence > 0
        assert claim.lease == LONG
        other = dedup.claim("key")
        assert (other.outcome, other.result) == (Outcome.IN_PROGRESS, None)
        assert other.retry_after is not None
        assert dedup.claim("key", fingerprint="another").outcome is Outcome.MISMATCH
        claim.renew(90)
        claim.touch(1_000_000)
        assert cast(Record, dedup.get("key")).ttl > 900_000
        claim.complete({"id": 7})
    again = dedup.claim("key")
    assert (again.outcome, again.result, again.degraded) == (Outcome.SUCCEEDED, {"id": 7}, False)
    record = dedup.get("key")
    assert record is not None
    assert (record.state, record.owner, record.fingerprint) == (State.SUCCEEDED, "me", fingerprint("body"))
    assert dedup.forget("key") is True
    assert dedup.get("key") is None


def test_leaving_settles(dedup: Dedup) -> None:
    with dedup.claim("done"):
        pass
    assert dedup.claim("done").outcome is Outcome.SUCCEEDED
    with pytest.raises(ZeroDivisionError), dedup.claim("freed"):
        raise ZeroDivisionError
    again = dedup.claim("freed")
    assert (again.acquired, again.attempt) == (True, 2)
    again.fail(ValueError("for good"))
    failed = dedup.claim("freed")
    assert (failed.outcome, failed.error) == (Outcome.FAILED, {"type": "ValueError", "message": "for good"})
    with pytest.raises(UsageError):
        failed.complete()


def test_a_stale_owner_has_lost(dedup: Dedup) -> None:
    stale = dedup.claim("key")
    dedup.forget("key")
    with dedup.claim("key") as claim:
        with pytest.raises(ClaimLostError):
            stale.complete("too late")
        claim.complete("in time")
    assert dedup.claim("key").result == "in time"


def test_waiting_is_for_the_result(dedup: Dedup) -> None:
    claim = dedup.claim("key")
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(dedup.claim, "key", wait=LONG) for _ in range(4)]
        claim.complete("told")
        assert [each.result().result for each in waiting] == ["told"] * 4


def test_renewal_goes_on_in_the_background(dedup: Dedup) -> None:
    with dedup.claim("key", lease=0.5, renew=True) as claim:
        other = dedup.claim("key", wait=1.2)
        assert other.outcome is Outcome.IN_PROGRESS
        assert not claim.lost
    assert dedup.claim("key").outcome is Outcome.SUCCEEDED


def test_many_keys_at_once(dedup: Dedup) -> None:
    dedup.claim("b")
    claims = dedup.claim_many(["a", "b", "c"], fingerprints=["1", "2", "3"])
    assert [claim.acquired for claim in claims] == [True, False, True]


def test_tokens(dedup: Dedup) -> None:
    token = dedup.tokens.issue(subject="user:7", ttl=60)
    assert dedup.tokens.consume(token, subject="user:8") is Outcome.MISMATCH
    with dedup.tokens.redeem(token, subject="user:7") as claim:
        claim.complete("order 1")
    assert dedup.tokens.redeem(token, subject="user:7").result == "order 1"
    assert dedup.tokens.consume("never issued") is Outcome.UNKNOWN


def test_locks(dedup: Dedup) -> None:
    with dedup.lock("stock", lease=LONG) as lock:
        assert lock.fence > 0
        with pytest.raises(InProgressError), dedup.lock("stock"):
            raise AssertionError
        lock.renew()
    inside = []

    def work(n: int) -> int:
        with dedup.lock("stock", wait=LONG) as lock:
            inside.append(n)
            assert len(inside) == 1
            inside.clear()
            return lock.fence

    with ThreadPoolExecutor(6) as pool:
        fences = list(pool.map(work, range(6)))
    assert len(set(fences)) == 6


def test_once(dedup: Dedup) -> None:
    runs = []

    @dedup.once(key=lambda order: f"order:{order}", fingerprint=lambda order: order, wait=LONG)
    def place(order: int) -> dict[str, int]:
        """Docs kept."""
        runs.append(order)
        return {"order": order}

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(place, [7] * 8)) == [{"order": 7}] * 8
    assert runs == [7]
    assert place.__doc__ == "Docs kept."

    @dedup.once(key=lambda: "failing", fail_on=(ValueError,))
    def fail() -> None:
        raise ValueError("never")

    with pytest.raises(ValueError, match="never"):
        fail()
    with pytest.raises(FailedError):
        fail()

    @dedup.once(key=lambda body: "odd", fingerprint=lambda body: str(body))
    def odd(body: object) -> object:
        return body

    with pytest.raises(ResultError):
        odd({1}.__iter__)
    with pytest.raises(MismatchError):
        odd("other")


def test_machines_and_scopes(dedup: Dedup) -> None:
    sms = dedup.scoped("sms", ttl=60.0)
    assert sms.settings.namespace == f"{dedup.settings.namespace}:sms"
    orders = sms.machine("order", initial="new", transitions={"new": ("paid",), "paid": ()})
    assert orders.transition("7", to="paid").outcome is TransitionOutcome.CHANGED
    assert orders.transition("7", to="paid", version=0).outcome is TransitionOutcome.ALREADY
    assert orders.get("7") == ("paid", 1)
    assert (orders.name, orders.initial, orders.states) == ("order", "new", {"new", "paid"})
    assert sms.claim("key").acquired
    assert dedup.claim("key").acquired


@pytest.mark.parametrize("used", [False, True])
def test_forked_workers_share_the_store(dedup: Dedup, used: bool) -> None:
    """As a pre-forking server does, with the gate at module level; before and after its first use."""
    if used:
        dedup.claim("parent").complete("parent's")
    children = []
    for n in range(4):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                for step in range(25):
                    with dedup.claim(f"key-{step}", wait=LONG) as claim:
                        if claim.acquired:
                            claim.complete(n)
                assert not used or dedup.claim("parent").result == "parent's"
                dedup.close()
                code = 0
            finally:
                os._exit(code)
        children.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0] * 4
    claims = dedup.claim_many([f"key-{step}" for step in range(25)])
    assert {claim.outcome for claim in claims} == {Outcome.SUCCEEDED}
    assert {claim.attempt for claim in claims} == {1}
