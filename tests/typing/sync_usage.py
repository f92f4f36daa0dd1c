"""What type checkers see of `fastdedup.sync`: read by `mypy --strict`, never run."""

from datetime import timedelta
from typing import Any, assert_type

from fastdedup import LedgerResize, LedgerStats, LocalLRU, Outcome, Record, Transition
from fastdedup.core.settings import Settings
from fastdedup.sync import Claim, Dedup, Ledger, Lock, StateMachine

dedup = Dedup("sidecar:///run/fastdedup.sock", namespace="shop", lease=1, on_unavailable=LocalLRU())


def life() -> None:
    assert_type(dedup.open(), Dedup)
    with Dedup("memory://") as entered:
        assert_type(entered, Dedup)
    assert_type(dedup.scoped("sms", ttl=60.0), Dedup)
    assert_type(dedup.settings, Settings)
    Dedup("redis://h", credentials=lambda: (None, "password"))
    dedup.close()


def claims() -> None:
    claim = dedup.claim("k", fingerprint={"a": 1}, owner="worker", lease=1.0, ttl=2.0, wait=3.0, renew=True)
    assert_type(claim, Claim)
    assert_type(claim.outcome, Outcome)
    assert_type(claim.lost, bool)
    assert_type(claim.result, Any)
    assert_type(claim.retry_after, float | None)
    claim.complete({"a": 1}, ttl=5.0)
    claim.fail(ValueError("no"))
    claim.release()
    claim.renew(lease=5.0)
    claim.touch(ttl=5.0)
    with dedup.claim("k") as inside:
        assert_type(inside, Claim)
    assert_type(dedup.claim_many(["a", "b"], fingerprints=["x", b"y"]), list[Claim])


@dedup.once(key=lambda order, **rest: f"order:{order}", wait=2.0)
def place(order: str, *, retries: int = 0) -> dict[str, int]:
    return {}


def the_rest() -> None:
    assert_type(place("7", retries=1), dict[str, int])
    place(7)  # type: ignore[arg-type] # the parameters stay those of the function
    with dedup.lock("k", lease=5.0, wait=1.0) as lock:
        assert_type(lock, Lock)
        assert_type(lock.fence, int)
    token = dedup.tokens.issue(subject="user:7", ttl=60.0)
    assert_type(token, str)
    assert_type(dedup.tokens.consume(token, subject="user:7"), Outcome)
    assert_type(dedup.tokens.redeem(token), Claim)
    orders = dedup.machine("order", initial="new", transitions={"new": ("paid",), "paid": ()})
    assert_type(orders, StateMachine)
    assert_type(orders.transition("42", to="paid", version=3), Transition)
    assert_type(orders.get("42"), tuple[str, int])
    assert_type(dedup.get("k"), Record | None)
    assert_type(dedup.forget("k"), bool)


def ledgers() -> None:
    ledger = dedup.ledger("orders", window=timedelta(days=7), capacity=600_000_000, write="append")
    assert_type(ledger, Ledger)
    assert_type(ledger.first("id"), bool)
    assert_type(ledger.first_many([b"id", 7], owner="worker"), list[bool])
    assert_type(ledger.seen("id"), bool)
    assert_type(ledger.forget("id"), bool)
    assert_type(ledger.stats(), LedgerStats)
    assert_type(ledger.resize(capacity=700_000_000), LedgerResize)
    assert_type(dedup.ledger("offsets", window=60, capacity=10, dense=True), Ledger)
    assert_type(ledger.open(), Ledger)
