"""A stream whose client hung up counted as processed in WSGI, Flask and Django: its key was refused for a day.

Under ASGI its key was free, as promised. What is a stream, and what counts although its client has left, is one rule.
"""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from ..integrations.server_process import gunicorn, uvicorn
from ..servers import RedisServer

APP = "tests.integrations.streaming_app"
WSGI = ["/bare", "/flask", "/django/sync"]
ASGI = ["/starlette", "/fastapi", "/django/async"]


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    server = RedisServer().start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def wsgi(redis: RedisServer) -> Iterator[httpx.Client]:
    options = ("-k", "gthread", "--threads", "16")
    with gunicorn(f"{APP}:wsgi", *options, FASTDEDUP_URL=redis.url) as client:
        yield client


@pytest.fixture(scope="module")
def asgi(redis: RedisServer) -> Iterator[httpx.Client]:
    with uvicorn(f"{APP}:asgi", "--lifespan", "off", FASTDEDUP_URL=redis.url) as client:
        yield client


@pytest.fixture
def client(request: pytest.FixtureRequest, app: str) -> httpx.Client:
    return request.getfixturevalue("wsgi" if app in WSGI else "asgi")  # type: ignore[no-any-return]


def begin(client: httpx.Client, path: str) -> None:
    """Send a request, and hang up once its response has begun."""
    with client.stream("POST", path, headers={"Idempotency-Key": path}) as answer:
        assert (answer.status_code, answer.headers["idempotency-stored"]) == (200, "false")
        assert next(answer.iter_raw())


def post(client: httpx.Client, path: str) -> tuple[int, str]:
    """Send a request, and hang up when its response is whole. Return its status, and its body or its problem."""
    answer = client.post(path, headers={"Idempotency-Key": path, "Connection": "close"})
    is_problem = answer.headers["content-type"] == "application/problem+json"
    return answer.status_code, answer.json()["type"].rpartition(":")[2] if is_problem else answer.text


@pytest.mark.parametrize("app", [*WSGI, *ASGI])
def test_a_stream_that_its_client_leaves_runs_again(client: httpx.Client, app: str) -> None:
    begin(client, f"{app}/events")
    assert post(client, f"{app}/events") == (200, "data: 0\n\ndata: 1\n\ndata: 2\n\n")
    assert post(client, f"{app}/events") == (409, "response-not-stored")


@pytest.mark.parametrize("app", [*WSGI, *ASGI])
def test_a_file_that_its_client_leaves_counts(client: httpx.Client, app: str) -> None:
    """Its view has done its work."""
    begin(client, f"{app}/file")
    assert post(client, f"{app}/file") == (409, "response-not-stored")


@pytest.mark.parametrize("app", [*WSGI, *ASGI])
def test_a_response_ends_with_the_last_byte_that_it_tells(client: httpx.Client, app: str) -> None:
    """Its client has the whole, and leaves. A server that waits for nothing else need not read on."""
    assert post(client, f"{app}/told") == (200, '{"n": 1}\n' * 3)
    assert post(client, f"{app}/told") == (409, "response-not-stored")
