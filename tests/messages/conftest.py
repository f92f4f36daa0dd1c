"""A Redis for streams, and inboxes that go: those of one table keep their rows equally long, as long as they live."""

from __future__ import annotations

import gc
import uuid
from collections.abc import Iterator

import pytest

from ..fixtures import fixture_of
from ..servers import RedisServer


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let consumers ask their brokers again soon."""
    monkeypatch.setattr("fastdedup.integrations.nats._FETCH", 0.05)
    monkeypatch.setattr("fastdedup.integrations.redis_streams._BLOCK", 0.02)
    monkeypatch.setattr("fastdedup.integrations.sqs._POLL", 0)
    monkeypatch.setattr("fastdedup.messages.pulling._AWAY_PAUSE", 0.02)


streams = fixture_of(RedisServer, scope="module")
"""A Redis for streams, which have no TTL, beside the one of the gate."""


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name of this run of the test, for a task's key."""
    return f"{request.node.name}-{uuid.uuid4().hex[:6]}"


@pytest.fixture(scope="module", autouse=True)
def _inboxes_go_with_their_file() -> Iterator[None]:
    gc.collect()
    yield
    gc.collect()
