"""Errors went through the codec of the results.

With a codec for one type, the first caller of `once(fail_on=…)` got ResultError in place of its own error, and
duplicates lost that error.
"""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from fastdedup import Dedup, FailedError, Outcome

from ..stores import Backend


class OneType:
    """A codec that knows bytes alone."""

    def dumps(self, value: Any) -> bytes:
        if not isinstance(value, bytes):
            raise TypeError("bytes alone")
        return value

    def loads(self, data: bytes) -> Any:
        return data


class Pickle:
    def dumps(self, value: Any) -> bytes:
        return pickle.dumps(value)

    def loads(self, data: bytes) -> Any:
        return pickle.loads(data)


class FormerPickle(Pickle):
    """Stores errors as version 0.1.0 did."""

    stores_errors = True


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


async def told(dedup: Dedup, error: Exception) -> Any:
    """Fail with an error for good; return what a duplicate is told."""

    @dedup.once(key=lambda: "order:42", fail_on=(Exception,))
    async def work() -> Any:
        raise error

    with pytest.raises(type(error)):
        await work()
    with pytest.raises(FailedError) as failed:
        await work()
    record = await dedup.get("order:42")
    assert record is not None
    assert record.error == failed.value.error
    return failed.value.error


async def test_each_caller_gets_the_functions_own_error(backend: Backend) -> None:
    async with backend.make(codec=OneType()) as dedup:
        assert await told(dedup, RuntimeError("card")) == {"type": "RuntimeError", "message": "card"}


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RuntimeError("x" * 5000), "x" * 125),
        (RuntimeError("a\ud800"), "a\\ud800"),
        (Unspeakable(), "Unspeakable without a text: its own code raised ValueError"),
    ],
    ids=["long", "no UTF-8", "no text"],
)
async def test_each_exception_can_be_recorded(error: Exception, message: str) -> None:
    async with Dedup(max_result=1000) as dedup:
        assert (await told(dedup, error))["message"] == message


async def test_an_error_that_version_0_1_0_stored_can_be_read(backend: Backend) -> None:
    async with backend.make(codec=FormerPickle()) as former, backend.make(codec=Pickle()) as dedup:
        if backend.name == "memory":
            dedup = former.scoped(codec=Pickle())
        await (await former.claim("order:42")).fail({"declined", 7})
        claim = await dedup.claim("order:42")
        assert (claim.outcome, claim.error) == (Outcome.FAILED, {"declined", 7})
