"""A token that was issued for somebody was taken by a caller who named no subject."""

from __future__ import annotations

import redis

from fastdedup import Dedup, Outcome

from ..sidecar.conftest import Serve, serve  # noqa: F401 -- a fixture
from ..stores import ALL_BUT_LOCAL, Backend, on_stores


@on_stores(*ALL_BUT_LOCAL)
async def test_a_caller_without_a_subject_gets_no_bound_token(backend: Backend) -> None:
    async with backend.make() as dedup:
        token = await dedup.tokens.issue(subject="user:7")
        assert await dedup.tokens.consume(token) is Outcome.MISMATCH
        assert (await dedup.tokens.redeem(token)).outcome is Outcome.MISMATCH
        assert (await dedup.tokens.redeem(token, wait=0.01)).outcome is Outcome.MISMATCH
        assert await dedup.tokens.consume(token, subject="user:7") is Outcome.ACQUIRED


async def test_a_token_without_a_subject_is_anybodys(redis_url: str) -> None:
    async with Dedup(redis_url, namespace="t") as dedup:
        for options in ({}, {"subject": "user:7"}):
            token = await dedup.tokens.issue()
            assert await dedup.tokens.consume(token, **options) is Outcome.ACQUIRED


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
        token = client.execute_command("FD.ISSUE", "SUBJECT", "user:7")
        assert client.execute_command("FD.CONSUME", token) == "mismatch"
        assert client.execute_command("FD.REDEEM", token)[0] == "mismatch"
        assert client.execute_command("FD.CONSUME", token, "SUBJECT", "user:7") == "acquired"
