"""What the sidecar ignored or answered wrongly in silence: settings, bad requests, MULTI, CLIENT REPLY, an outage.

A misspelt variable was ignored, HTTP's own errors were not counted, looking at /readyz in an outage counted as a
degraded operation, `CLIENT REPLY OFF` was answered OK, a claim inside a refused MULTI ran, and a 503 told the
address of Redis to every client.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from fastdedup.sidecar.client import fetch
from fastdedup.sidecar.service.config import load
from fastdedup.sidecar.service.mistakes import Mistakes

from ..servers import RedisServer
from ..sidecar.running import Sidecar, figure


@pytest.fixture(scope="module")
def sidecar(server: RedisServer) -> Iterator[Sidecar]:
    with Sidecar("--url", server.url) as sidecar:
        yield sidecar


# Settings


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("FASTDEDUP_LEESE", "FASTDEDUP_LEESE: unknown setting; did you mean FASTDEDUP_LEASE?"),
        ("FASTDEDUP_LIMIT__FRAME", "FASTDEDUP_LIMIT__FRAME: unknown setting; did you mean FASTDEDUP_LIMITS?"),
        ("fastdedup_ulr", "fastdedup_ulr: unknown setting; did you mean FASTDEDUP_URL?"),
    ],
)
def test_a_misspelt_variable_is_a_mistake(monkeypatch: pytest.MonkeyPatch, name: str, told: str) -> None:
    monkeypatch.setenv(name, "5")
    monkeypatch.setenv("FASTDEDUP_TTL", "soon")
    with pytest.raises(Mistakes) as mistakes:
        load()
    assert told in mistakes.value.lines
    assert any(line.startswith("FASTDEDUP_TTL") for line in mistakes.value.lines)


@pytest.mark.parametrize(
    "name",
    [
        "FASTDEDUP_CONFIG",
        "FASTDEDUP_SERVICE_HOST",
        "FASTDEDUP_SERVICE_PORT_HTTP",
        "FASTDEDUP_PORT",
        "FASTDEDUP_PORT_6379_TCP_ADDR",
        "FASTDEDUPER",
    ],
)
def test_variables_of_others_are_left_alone(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "5")
    assert load().lease == 30.0


# Requests


def bad(sidecar: Sidecar) -> float:
    return figure(sidecar.figures(), "fastdedup_bad_requests_total")


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/claims", b"{", 400),
        ("POST", "/v1/claims", b'{"kee": "a"}', 422),
        ("POST", "/v1/claims/renew", b"{}", 422),
        ("POST", "/v1/batch", b"[]x", 400),
        ("GET", "/v1/nothing", b"", 404),
        ("PUT", "/v1/claims", b"", 405),
        ("POST", "/v1/claims", b"x" * 2_000_000, 413),
        ("GET", "/healthz" + "x" * 40_000, b"", 431),
    ],
)
def test_a_bad_http_request_is_counted(
    sidecar: Sidecar, method: str, path: str, body: bytes, status: int
) -> None:
    before = bad(sidecar)
    with sidecar.http() as ask:
        assert ask.request(method, path, content=body).status_code == status
    assert bad(sidecar) == before + 1


def test_an_answer_below_500_is_no_bad_request(sidecar: Sidecar) -> None:
    before = bad(sidecar)
    with sidecar.http() as ask:
        assert ask.post("/v1/claims", json={"key": "good"}).status_code == 201
        assert ask.post("/v1/claims", json={"key": "good"}).status_code == 409
        assert ask.post("/v1/claims/fail", json={"key": "good", "owner": "x"}).status_code == 409
        assert ask.post("/v1/tokens/consume", json={"token": "never"}).status_code == 404
        assert ask.get("/v1/records", params={"key": "none"}).status_code == 404
    assert bad(sidecar) == before


@pytest.mark.parametrize(
    "words", ["NOPE", "FD.CLAIM", "FD.CLAIM k LEASE soon", "FD.GET \xff", "FD.CLAIM k WAIT x"]
)
def test_a_bad_command_is_counted(sidecar: Sidecar, words: str) -> None:
    before = bad(sidecar)
    with sidecar.client() as ask, pytest.raises(redis.ResponseError):
        ask.execute_command(*words.encode("latin-1").split())
    assert bad(sidecar) == before + 1


# Commands


def test_nothing_inside_a_refused_multi_runs(sidecar: Sidecar) -> None:
    with sidecar.client() as ask:
        transaction = ask.pipeline(transaction=True)
        transaction.execute_command("FD.CLAIM", "in-multi")
        with pytest.raises(redis.ResponseError, match="there is no MULTI"):
            transaction.execute()
        assert ask.execute_command("FD.GET", "in-multi") is None  # on the same connection: EXEC has ended it
        for end in ("DISCARD", "RESET"):
            assert ask.execute_command(
                "MULTI"
            )  # an error here would be the end of it to phpredis, which sends no EXEC
            with pytest.raises(redis.ResponseError, match="not run"):
                ask.execute_command("FD.CLAIM", "in-multi")
            ask.execute_command(end)
        assert ask.execute_command("FD.CLAIM", "in-multi")[0] == b"acquired"


@pytest.mark.parametrize("mode", ["OFF", "SKIP"])
def test_replies_cannot_be_turned_off_in_silence(sidecar: Sidecar, mode: str) -> None:
    with sidecar.client() as ask:
        with pytest.raises(redis.ResponseError, match="every command is answered"):
            ask.execute_command("CLIENT", "REPLY", mode)
        assert ask.execute_command("CLIENT", "REPLY", "ON") in (b"OK", True)
        assert ask.ping()


# An outage


def test_an_outage_tells_no_client_where_redis_is() -> None:
    server = RedisServer().start()
    with (
        Sidecar(
            "--url", server.url, "--allow-stores", "--timeout", "0.4", "--on-unavailable", "reject"
        ) as sidecar,
        sidecar.client() as ask,
        sidecar.http() as http,
    ):
        assert ask.execute_command("FD.CLAIM", "a")[0] == b"acquired"
        server.stop()
        told = [http.post("/v1/claims", json={"key": "b"}).text, http.get("/v1/records?key=b").text]
        for words in (("FD.CLAIM", "b"), ("FD.GET", "b")):
            with pytest.raises(redis.ResponseError, match="UNAVAILABLE") as error:
                ask.execute_command(*words)
            told.append(str(error.value))
        told.append(str(ask.execute_command("FD.RUN", "read", 1, "t:=b")))
        assert all("the store does not answer" in text for text in told), told
        assert str(server.socket) not in "".join(told)
        assert str(server.socket) in sidecar.log

        before = figure(sidecar.figures(), "fastdedup_degraded_total")
        assert before > 0
        assert fetch(sidecar.path, "/readyz")[0] == 503
        assert figure(sidecar.figures(), "fastdedup_degraded_total") == before
