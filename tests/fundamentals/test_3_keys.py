"""Step 3: good keys, several kinds of work beside each other, and a look into the store."""

from __future__ import annotations

from fastdedup import Dedup, Outcome, State, business_key


async def test_another_request_under_the_same_key_is_a_mismatch(url: str) -> None:
    """A fingerprint tells a retry from another request that came with a key that was used before."""
    async with Dedup(url) as dedup:
        await dedup.claim("order:42", fingerprint={"item": "book"})
        other = await dedup.claim("order:42", fingerprint={"item": "bike"})
        assert other.outcome is Outcome.MISMATCH


def test_a_business_key_is_the_same_within_its_window() -> None:
    """All clicks of one user on one article within a slot of 300 seconds have one key."""
    key = business_key("user:7", "sku:9", window=300, at=1_000_000_000)
    assert business_key("user:7", "sku:9", window=300, at=1_000_000_100) == key
    assert business_key("user:7", "sku:9", window=300, at=1_000_000_400) != key
    assert business_key("user:8", "sku:9", window=300, at=1_000_000_000) != key


async def test_scopes_keep_their_keys_apart(url: str) -> None:
    """A scope has a namespace and settings of its own, and shares the connection."""
    async with Dedup(url, namespace="shop") as dedup:
        sms = dedup.scoped("sms", ttl=60.0)
        assert (await dedup.claim("order:42")).acquired
        assert (await sms.claim("order:42")).acquired


async def test_a_decorated_function_runs_once_for_each_key(url: str) -> None:
    """`once` wraps an async function: the first call runs it, each later one returns the first result."""
    async with Dedup(url) as dedup:
        runs = []

        @dedup.once(key=lambda order_id: f"order:{order_id}")
        async def place(order_id: int) -> str:
            runs.append(order_id)
            return f"receipt-{order_id}"

        assert await place(42) == "receipt-42"
        assert await place(42) == "receipt-42"
        assert runs == [42]


async def test_get_looks_at_a_record_and_forget_removes_it(url: str) -> None:
    """`get` claims nothing; after `forget` the next claim is the first."""
    async with Dedup(url) as dedup:
        await (await dedup.claim("order:42")).complete("done")
        record = await dedup.get("order:42")
        assert record is not None
        assert (record.state, record.result) == (State.SUCCEEDED, "done")
        assert await dedup.forget("order:42")
        assert await dedup.get("order:42") is None
        assert (await dedup.claim("order:42")).attempt == 1
