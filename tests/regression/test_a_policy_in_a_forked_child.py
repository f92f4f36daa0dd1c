"""A child that was forked in an outage wrote its parent's records into the store, after the parent had done that."""

from __future__ import annotations

import os

import pytest

from fastdedup import LocalLRU
from fastdedup.sync import Dedup

from ..programs import until
from ..servers import RedisServer

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*multi-threaded, use of fork:DeprecationWarning"
)  # Python 3.12+


def test_a_child_leaves_the_records_of_an_outage_to_its_parent(own_redis: RedisServer) -> None:
    """It held a key again that its parent had released, and an id was first twice."""
    policy = LocalLRU()
    goes_on, lets_go_on = os.pipe()
    with (
        Dedup(own_redis.url, namespace="shop", on_unavailable=policy) as dedup,
        Dedup(own_redis.url, namespace="shop") as other,
    ):
        ids, theirs = (gate.ledger("ids", window=60.0, capacity=100) for gate in (dedup, other))
        own_redis.kill()
        claim, _ = dedup.claim("k"), ids.forget("id")
        child = os.fork()
        if not child:
            code = 1
            try:
                os.read(goes_on, 1)
                code = 0 if ids.seen("id") and dedup.claim("k").acquired else 2
            finally:
                os._exit(code)
        try:
            own_redis.start()
            until(lambda: not policy.lines, description="the parent's records are in the store")
            claim.release()
            assert theirs.first("id")
        finally:
            os.write(lets_go_on, b".")
            _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
