"""Fault 21: bad JSON in a record was a JSONDecodeError, which no `except DedupError` catches."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

from fastdedup import Dedup, DedupError, ResultError, State

from ..stores import Backend

CONTENT = b'{"card": 4711'


class Raw:
    """Stores bytes as they are, errors as well, as version 0.1.0 did: to another codec they are not JSON."""

    stores_errors = True

    def dumps(self, value: Any) -> bytes:
        return value  # type: ignore[no-any-return]

    def loads(self, data: bytes) -> Any:
        return data


async def record(dedup: Dedup, key: str, *, succeeded: bool) -> Dedup:
    """Store what JSON cannot read; return a gate that can read it."""
    raw = dedup.scoped(codec=Raw())
    claim = await raw.claim(key)
    await (claim.complete(CONTENT) if succeeded else claim.fail(CONTENT))
    return raw


@pytest.mark.parametrize("succeeded", [True, False])
async def test_get_names_the_key_of_what_it_cannot_read(backend: Backend, succeeded: bool) -> None:
    """The record stays, and can be forgotten; neither the message nor what led to it shows the content."""
    async with backend.make() as dedup:
        await record(dedup, "order:7", succeeded=succeeded)
        with pytest.raises(ResultError, match="13 bytes under 'order:7'") as caught:
            await dedup.get("order:7")
        assert "4711" not in "".join(traceback.format_exception(caught.value))
        assert await dedup.forget("order:7")


async def test_an_error_that_cannot_be_read_is_a_dedup_error(backend: Backend) -> None:
    """`claim.error` says so when it is asked for; the outcome itself is known."""
    async with backend.make() as dedup:
        raw = await record(dedup, "order:8", succeeded=False)
        claim = await dedup.claim("order:8")
        assert not claim.acquired
        with pytest.raises(DedupError, match="'order:8'"):
            _ = claim.error
        found = await raw.get("order:8")
        assert found is not None
        assert (found.state, found.error) == (State.FAILED, CONTENT)
