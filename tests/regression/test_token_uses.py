"""A token is used by the call that was told so, and by nobody whose subject is another."""

from __future__ import annotations

import pytest
import redis

from fastdedup import Dedup, Outcome, UnavailableError
from fastdedup import sync as synchronous
from fastdedup.kernel.codes import Code
from fastdedup.kernel.granted import GRANTED
from fastdedup.kernel.operations import ClaimOp, ReleaseOp
from fastdedup.kernel.owners import draw_owner
from fastdedup.kernel.terms import Mode, terms
from fastdedup.kernel.verbs import Verb
from fastdedup.tokens import subject_mark

from ..servers import RedisServer
from ..sidecar.conftest import Serve, serve  # noqa: F401 -- a fixture
from ..stores import ALL_BUT_LOCAL, Backend, on_stores

# A token was used up by a call whose reply came too late: nobody was ever told that it had acquired it. The model has
# the rest of it.


TIMEOUT = 0.6


def test_synchronous_code_names_its_use_as_well(redis_url: str, redis_server: RedisServer) -> None:
    with synchronous.Dedup(redis_url, namespace="t", timeout=TIMEOUT) as dedup:
        token = dedup.tokens.issue("user:7")
        with redis_server.frozen(), pytest.raises(UnavailableError):
            dedup.tokens.consume(token, "user:7", owner="request-1")
        assert dedup.tokens.consume(token, "user:7", owner="request-1") is Outcome.ACQUIRED
        assert dedup.tokens.consume(token, "user:7") is Outcome.SUCCEEDED
        claim = dedup.tokens.redeem(dedup.tokens.issue("user:7"), "user:7", owner="request-2")
        assert claim.owner == "request-2"


# A token that was consumed, and nobody was told: a release of its consumer issues it again.


async def consumed(dedup: Dedup, token: str, owner: bytes) -> tuple[bytes, int]:
    """Consume a token as `owner`; return its store key and the fence."""
    wire = dedup.tokens.wire(token)
    mark = subject_mark("user:7")
    op = ClaimOp(wire, terms(Mode.CONSUME, 60_000, 60_000, False), owner, mark)
    [verdict] = await dedup.gate.connection.store.execute(Verb.CLAIM, [op])
    assert verdict.outcome is Outcome.ACQUIRED  # type: ignore[union-attr]
    GRANTED.add(wire)  # as a gate does that tells its caller
    return wire, verdict.fence  # type: ignore[union-attr]


@on_stores(*ALL_BUT_LOCAL)
async def test_one_batch_holds_releases_of_both_kinds(backend: Backend) -> None:
    async with backend.make() as dedup:
        tokens = [await dedup.tokens.issue(subject="user:7") for _ in range(4)]
        owner = draw_owner()
        used = [await consumed(dedup, token, owner) for token in tokens]
        ops = [
            ReleaseOp(wire, owner, fence, consumed=place in (1, 2))
            for place, (wire, fence) in enumerate(used)
        ]
        codes = await dedup.gate.connection.store.execute(Verb.RELEASE, ops)
        assert codes == [Code.LOST, Code.OK, Code.OK, Code.LOST]


# A token that was issued for somebody was taken by a caller who named no subject.


def test_http_gives_no_bound_token_without_a_subject(serve: Serve, redis_url: str) -> None:  # noqa: F811
    with serve(redis_url).http() as http:
        token = http.post("/v1/tokens", json={"subject": "user:7"}).json()["token"]
        for ask in ({}, {"subject": "user:8"}, {"wait": 10}):
            answer = http.post("/v1/tokens/redeem", json={"token": token, **ask})
            assert (answer.status_code, answer.json()["outcome"]) == (422, "mismatch")
        batch = http.post("/v1/batch", json=[{"op": "consume", "token": token}]).json()
        assert "mismatch" in str(batch)
        assert http.post("/v1/tokens/consume", json={"token": token}).status_code == 422
        hers = {"token": token, "subject": "user:7"}
        assert http.post("/v1/tokens/consume", json=hers).json()["outcome"] == "acquired"


def test_resp_gives_no_bound_token_without_a_subject(serve: Serve, redis_url: str) -> None:  # noqa: F811
    with redis.Redis(unix_socket_path=serve(redis_url).path, decode_responses=True) as client:
        anybodys, token = (
            client.execute_command("FD.ISSUE"),
            client.execute_command("FD.ISSUE", "SUBJECT", "user:7"),
        )
        assert client.execute_command("FD.CONSUME", anybodys, "SUBJECT", "user:7") == "acquired"
        assert client.execute_command("FD.CONSUME", token) == "mismatch"
        assert client.execute_command("FD.REDEEM", token)[0] == "mismatch"
        assert client.execute_command("FD.CONSUME", token, "SUBJECT", "user:7") == "acquired"
