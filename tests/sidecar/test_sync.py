"""`fastdedup.sync` in servers that fork, over URLs that processes share. `tests/contract/` has what it promises."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from fastdedup import Outcome
from fastdedup.sync import Dedup

from ..servers import RedisServer
from ..sidecars import Sidecar

LONG = 60.0
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*multi-threaded, use of fork:DeprecationWarning"
)  # Python 3.12+


@pytest.fixture(scope="module")
def urls(server: RedisServer) -> Iterator[dict[str, str]]:
    with Sidecar(server.url) as sidecar:
        yield {"redis": server.url, "sidecar": sidecar.url}


@pytest.fixture(params=["redis", "sidecar"])
def dedup(request: pytest.FixtureRequest, urls: dict[str, str]) -> Iterator[Dedup]:
    dedup = Dedup(urls[request.param], namespace=f"n{abs(hash(request.node.name))}", lease=LONG, timeout=5)
    yield dedup
    dedup.close()


@pytest.mark.parametrize("used", [False, True])
def test_forked_workers_share_the_store(dedup: Dedup, used: bool) -> None:
    """As a pre-forking server does, with the gate at module level; before and after its first use."""
    if used:
        dedup.claim("parent").complete("parent's")
    children = []
    for n in range(4):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                for step in range(25):
                    with dedup.claim(f"key-{step}", wait=LONG) as claim:
                        if claim.acquired:
                            claim.complete(n)
                assert not used or dedup.claim("parent").result == "parent's"
                dedup.close()
                code = 0
            finally:
                os._exit(code)
        children.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0] * 4
    claims = dedup.claim_many([f"key-{step}" for step in range(25)])
    assert {claim.outcome for claim in claims} == {Outcome.SUCCEEDED}
    assert {claim.attempt for claim in claims} == {1}
