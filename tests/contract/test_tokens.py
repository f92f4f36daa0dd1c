"""Guarantee 10: one-time tokens."""

from __future__ import annotations

import re

import pytest

from fastdedup import Dedup, MismatchError, Outcome

from ..stores import Backend, on_both_faces

pytestmark = on_both_faces


async def test_a_token_is_url_safe_and_long(dedup: Dedup) -> None:
    tokens = [await dedup.tokens.issue() for _ in range(50)]
    assert len(set(tokens)) == 50
    for token in tokens:
        assert re.fullmatch(r"[A-Za-z0-9_-]{32}", token), "32 characters of 6 bits: 192 bits"


async def test_the_store_keeps_only_a_hash(dedup: Dedup, backend: Backend) -> None:
    token = await dedup.tokens.issue("user:7")
    claim = await dedup.tokens.redeem(token, "user:7")
    assert token not in repr(claim)
    assert token not in claim.key
    if backend.raw is not None:
        for key in backend.raw.keys("*"):
            assert token.encode() not in key
            assert token.encode() not in backend.raw.get(key)


@pytest.mark.parametrize("token", ["", "never-issued", "x" * 10_000, "ümläut", "\ud800", "\0"])
async def test_what_was_never_issued_is_unknown(dedup: Dedup, backend: Backend, token: str) -> None:
    """Whatever text a client sends."""
    with backend.only_the_store_knows:
        assert await dedup.tokens.consume(token) is Outcome.UNKNOWN
    with backend.only_the_store_knows:
        claim = await dedup.tokens.redeem(token)
        assert claim.outcome is Outcome.UNKNOWN
        assert not claim.acquired


async def test_a_second_redeem_replays_the_first_result(dedup: Dedup) -> None:
    token = await dedup.tokens.issue("user:7")
    async with dedup.tokens.redeem(token, "user:7") as claim:
        assert claim.acquired
        assert claim.attempt == 1
        during = await dedup.tokens.redeem(token, "user:7")
        assert during.outcome is Outcome.IN_PROGRESS
        await claim.complete({"order": 1})
    again = await dedup.tokens.redeem(token, "user:7")
    assert (again.outcome, again.result) == (Outcome.SUCCEEDED, {"order": 1})
    assert (await dedup.tokens.redeem(token, "user:8")).outcome is Outcome.MISMATCH
    assert await dedup.tokens.consume(token, "user:7") is Outcome.SUCCEEDED


async def test_a_mismatch_names_the_subject_and_no_fingerprint(dedup: Dedup) -> None:
    token = await dedup.tokens.issue("user:7")
    with pytest.raises(MismatchError, match="was issued for another subject"):
        (await dedup.tokens.redeem(token, "user:8")).replay()
    await dedup.claim("k", fingerprint="a")
    with pytest.raises(MismatchError, match="was used before with another fingerprint: take a new key"):
        (await dedup.claim("k", fingerprint="b")).replay()
