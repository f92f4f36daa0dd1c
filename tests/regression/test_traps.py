"""What is easily written wrong is told at once, and does no harm: on memory:// and on a real Redis."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from fastdedup import (
    Dedup,
    FailedError,
    InProgressError,
    InvalidKeyError,
    MismatchError,
    ResultTooLargeError,
    UsageError,
)
from fastdedup.core.calls import KnownCall
from fastdedup.errors import ResultError
from fastdedup.sync import Dedup as SyncDedup

from ..codecs import PICKLE
from ..faces import each_face, gate_of, told
from ..fixtures import async_fixture
from ..stores import TIMEOUT
from ..waiting import cancel

SMALL = 100


@pytest.fixture(params=["memory", "redis"])
def url(request: pytest.FixtureRequest) -> str:
    return "memory://" if request.param == "memory" else str(request.getfixturevalue("redis_url"))


def gate(url: str, **settings: Any) -> Dedup:
    return Dedup(url, **{"namespace": "t", "timeout": TIMEOUT, "max_result": SMALL, **settings})


def sync_gate(url: str, **settings: Any) -> SyncDedup:
    return SyncDedup(url, **{"namespace": "t", "timeout": TIMEOUT, "max_result": SMALL, **settings})


def warned(use: Callable[[], None]) -> list[str]:
    """The warnings of what is dropped without use."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        use()
        gc.collect()
    return [str(warning.message) for warning in caught]


dedup = async_fixture(lambda url: gate(url))


# The truth value


async def test_a_claim_has_no_truth_value(dedup: Dedup) -> None:
    for _ in range(3):  # acquired; a duplicate; a duplicate that this process knows
        claim = await dedup.claim("key")
        with pytest.raises(TypeError, match=r"claim\.acquired"):
            bool(claim)
        if claim.acquired:
            await claim.complete()


async def test_a_claim_not_awaited_has_no_truth_value(dedup: Dedup) -> None:
    with pytest.raises(TypeError, match="await dedup"):
        bool(dedup.claim("key"))
    assert await dedup.get("key") is None, "nothing was sent"
    async with dedup.claim("key") as claim:
        assert claim.acquired
    await dedup.claim("key")
    assert isinstance(dedup.claim("key"), KnownCall)
    with pytest.raises(TypeError, match="await dedup"):
        bool(dedup.claim("key"))


def test_a_claim_of_the_sync_gate_has_no_truth_value(url: str) -> None:
    with sync_gate(url) as dedup:
        for _ in range(2):
            with dedup.claim("key") as claim, pytest.raises(TypeError, match=r"claim\.acquired"):
                bool(claim)


# Not awaited


async def test_a_claim_never_awaited_warns(dedup: Dedup) -> None:
    def claim() -> None:
        dedup.claim("key")

    def lock() -> None:
        dedup.lock("key")

    assert warned(claim) == ["the claim of 'key' was never awaited"]
    says = "the lock 'key' was never entered: write `async with dedup.lock(key) as lock:`"
    assert warned(lock) == [says]
    entered = dedup.lock("key")
    async with entered:
        pass
    with pytest.raises(
        UsageError, match=r"this lock 'key' was awaited before; call lock\(\) for another one"
    ):
        await entered.__aenter__()
    assert await dedup.get("key") is None


@pytest.mark.parametrize("name", ["acquired", "outcome", "result", "replay", "complete"])
async def test_what_only_a_claim_has_says_await(dedup: Dedup, name: str) -> None:
    async with dedup.claim("known"):
        pass
    await dedup.claim("known")
    for key in ("key", "known"):
        call = dedup.claim(key)
        with pytest.raises(AttributeError, match="await dedup"):
            getattr(call, name)
        call.close()


async def test_a_task_cancelled_before_it_starts_does_not_warn(dedup: Dedup) -> None:
    for key in ("key", "other"):
        task = asyncio.create_task(dedup.claim(key))
        await cancel(task)
    del task
    gc.collect()  # a warning is an error here
    assert await dedup.get("key") is None


async def test_throwing_in_the_older_form_does_not_warn(dedup: Dedup) -> None:
    """Python 3.12 deprecates `throw` with three arguments, and asyncio's own callers pass one."""
    async with dedup.claim("known"):
        pass
    await dedup.claim("known")
    for key in ("key", "known"):
        for given in ((LookupError,), (LookupError, "x"), (LookupError, LookupError("x"), None)):
            with pytest.raises(LookupError):
                dedup.claim(key).throw(*given)


def test_with_points_to_the_sync_gate(url: str) -> None:
    with pytest.raises(UsageError, match=r"fastdedup\.sync"), gate(url):  # type: ignore[attr-defined]
        pass


# Replaying


@each_face
async def test_replay_answers_for_each_outcome(url: str, face: str) -> None:
    async with gate_of(face, url, namespace="t", timeout=TIMEOUT) as dedup:
        first = await told(dedup.claim("key", fingerprint="a"))
        with pytest.raises(UsageError, match="nothing to replay"):
            first.replay()
        with pytest.raises(InProgressError) as busy:
            (await told(dedup.claim("key", fingerprint="a"))).replay()
        assert 0 < busy.value.retry_after <= dedup.settings.lease
        with pytest.raises(MismatchError):
            (await told(dedup.claim("key", fingerprint="b"))).replay()
        await told(first.complete({"order": 1}))
        for _ in range(3):
            assert (await told(dedup.claim("key", fingerprint="a"))).replay() == {"order": 1}
        await told((await told(dedup.claim("failed"))).fail("card declined"))
        with pytest.raises(FailedError) as failed:
            (await told(dedup.claim("failed"))).replay()
        assert failed.value.error == "card declined"
        with pytest.raises(InvalidKeyError):
            (await told(dedup.tokens.redeem("never-issued-token-of-some-length"))).replay()


# A result that cannot be stored: its effect has happened


@pytest.mark.parametrize(("result", "error"), [(object(), ResultError), ("x" * SMALL, ResultTooLargeError)])
async def test_a_result_that_cannot_be_stored_is_a_recorded_failure(
    dedup: Dedup, result: object, error: type[Exception]
) -> None:
    """As with `once`: the caller gets the exception, a retry does not run again."""
    with pytest.raises(error):
        async with dedup.claim("key") as claim:
            await claim.complete(result)
    with pytest.raises(FailedError) as failed:
        (await dedup.claim("key")).replay()
    assert failed.value.error["type"] == error.__name__

    async def body() -> None:
        async with dedup.claim("wrapped") as claim:
            try:
                await claim.complete(result)
            except error as cause:
                raise RuntimeError("the body's own error") from cause

    with pytest.raises(RuntimeError):
        await body()
    with pytest.raises(FailedError):
        (await dedup.claim("wrapped")).replay()

    @dedup.once(key=lambda: "once")
    async def work() -> object:
        return result

    with pytest.raises(error):
        await work()
    with pytest.raises(FailedError) as failed:
        await work()
    assert failed.value.error["type"] == error.__name__


async def test_whatever_a_codec_raises_is_a_recorded_failure(url: str) -> None:
    """Pickle has errors of its own."""
    async with gate(url, codec=PICKLE) as dedup:
        with pytest.raises(ResultError, match="list"):
            async with dedup.claim("key") as claim:
                await claim.complete([lambda: 1])
        with pytest.raises(FailedError):
            (await dedup.claim("key")).replay()


async def test_the_failure_is_recorded_where_even_its_text_is_too_large(url: str) -> None:
    async with gate(url, max_result=8) as dedup:
        with pytest.raises(ResultTooLargeError):
            async with dedup.claim("key") as claim:
                await claim.complete("x" * 8)
        with pytest.raises(FailedError) as failed:
            (await dedup.claim("key")).replay()
        assert failed.value.error is None


async def test_another_result_may_follow_one_that_cannot_be_stored(dedup: Dedup) -> None:
    async with dedup.claim("key") as claim:
        with pytest.raises(ResultTooLargeError):
            await claim.complete("x" * SMALL)
        await claim.complete("short")
    assert (await dedup.claim("key")).replay() == "short"
