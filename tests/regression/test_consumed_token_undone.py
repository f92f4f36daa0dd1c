"""A token that was consumed, and nobody was told: a release of its consumer issues it again."""

from __future__ import annotations

from fastdedup import Dedup, Outcome
from fastdedup.protocol.granted import GRANTED
from fastdedup.protocol.operations import ClaimOp, Code, Mode, ReleaseOp, Verb, terms
from fastdedup.protocol.owners import draw_owner
from fastdedup.tokens import subject_mark

from ..stores import ALL_BUT_LOCAL, Backend, on_stores

pytestmark = on_stores(*ALL_BUT_LOCAL)


async def consumed(dedup: Dedup, token: str, owner: bytes) -> tuple[bytes, int]:
    """Consume a token as `owner`; return its store key and the fence."""
    wire = dedup.tokens.wire(token)
    mark = subject_mark("user:7")
    op = ClaimOp(wire, terms(Mode.CONSUME, 60_000, 60_000, False), owner, mark)
    [verdict] = await dedup._namespace.connection.store.execute(Verb.CLAIM, [op])
    assert verdict.outcome is Outcome.ACQUIRED  # type: ignore[union-attr]
    GRANTED.add(wire)  # as a gate does that tells its caller
    return wire, verdict.fence  # type: ignore[union-attr]


async def released(dedup: Dedup, op: ReleaseOp) -> Code:
    [code] = await dedup._namespace.connection.store.execute(Verb.RELEASE, [op])
    assert isinstance(code, Code)
    return code


async def test_its_consumers_release_issues_it_again(backend: Backend) -> None:
    """Once and once more, as its reply may be lost; still bound to its subject."""
    async with backend.make() as dedup:
        token = await dedup.tokens.issue(subject="user:7")
        owner = draw_owner()
        wire, fence = await consumed(dedup, token, owner)
        for _ in range(2):
            assert await released(dedup, ReleaseOp(wire, owner, fence, consumed=True)) is Code.OK
        assert await dedup.tokens.consume(token, subject="user:8") is Outcome.MISMATCH
        assert await dedup.tokens.consume(token, subject="user:7") is Outcome.ACQUIRED
        assert await dedup.tokens.consume(token, subject="user:7") is Outcome.SUCCEEDED


async def test_one_batch_holds_releases_of_both_kinds(backend: Backend) -> None:
    async with backend.make() as dedup:
        tokens = [await dedup.tokens.issue(subject="user:7") for _ in range(4)]
        owner = draw_owner()
        used = [await consumed(dedup, token, owner) for token in tokens]
        ops = [
            ReleaseOp(wire, owner, fence, consumed=place in (1, 2))
            for place, (wire, fence) in enumerate(used)
        ]
        codes = await dedup._namespace.connection.store.execute(Verb.RELEASE, ops)
        assert codes == [Code.LOST, Code.OK, Code.OK, Code.LOST]
