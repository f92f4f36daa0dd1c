"""Slots of a Cluster: computed as Redis does, and read from what its nodes say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from fastdedup.stores.redis.cluster.slot_table import slot_of
from fastdedup.stores.redis.cluster.slots import Redirection, host_or, read_layout, read_redirection


@pytest.mark.parametrize(
    ("key", "slot"),
    [
        (b"123456789", 0x31C3),  # the specification's own example
        (b"foo", 12_182),
        (b"", 0),
        (b"{user1000}.following", 3_443),
        (b"{user1000}.followers", 3_443),
        (b"foo{}{bar}", 8_363),  # nothing between the first braces: all of it counts
        (b"foo{{bar}}zap", 4_015),  # between the first "{" and the first "}" after it
        (b"foo{bar}{zap}", 5_061),
        (b"}{bar}", 5_061),
    ],
)
def test_a_key_falls_into_its_slot(key: bytes, slot: int) -> None:
    """The examples of the Cluster specification."""
    assert slot_of(key) == slot


@given(st.binary(max_size=40) | st.text("{}ab", max_size=12).map(str.encode))
def test_any_key_falls_into_the_slot_that_redis_py_says(key: bytes) -> None:
    """Braces or none."""
    assert slot_of(key) == key_slot(key)


@pytest.mark.parametrize(
    ("error", "found"),
    [
        ("MOVED 3999 10.0.0.1:7000", Redirection(True, 3999, ("10.0.0.1", 7000))),
        ("ASK 0 host.example:7000", Redirection(False, 0, ("host.example", 7000))),
        ("MOVED 16383 ::1:7000", Redirection(True, 16383, ("::1", 7000))),
        ("MOVED 1 :7000", Redirection(True, 1, ("asked", 7000))),
        ("ASK 1 ?:7000", Redirection(False, 1, ("asked", 7000))),
        ("MOVED 16384 host:7000", None),
        ("MOVED 1 host", None),
        ("MOVED", None),
        ("MOVED x y:z", None),
        ("CLUSTERDOWN Hash slot not served", None),
        ("ERR MOVED 1 host:7000", None),
    ],
)
def test_a_redirection_is_read(error: str, found: Redirection | None) -> None:
    """A node that does not know its own name is where we asked it."""
    assert read_redirection(error, "asked") == found


def test_a_layout_is_read() -> None:
    """Of Redis 6.2 (three fields a node) and of 7 (four); hosts empty or unknown are the one asked."""
    slots: list[Any] = [
        [0, 5, [b"a", 7000, b"one"], [b"b", 7001, b"two"]],
        [6, 6, [b"", 7002, b"three", []], [None, 7003, b"four", [b"hostname", b"x"]]],
        [7, 16383, [b"?", 7004, b"five", []]],
    ]
    layout = read_layout(slots, b"cluster_state:ok\r\ncluster_current_epoch:17\r\n", "asked")
    assert layout.ranges == [(0, 5, ("a", 7000)), (6, 6, ("asked", 7002)), (7, 16383, ("asked", 7004))]
    assert layout.replicas == {("b", 7001), ("asked", 7003)}
    assert layout.ids == {b"one", b"three", b"five"}
    assert (layout.epoch, layout.ok) == (17, True)
    assert read_layout(slots, None, "asked").epoch == 0
    assert not read_layout(slots, b"cluster_state:fail\r\ncluster_current_epoch:17\r\n", "asked").ok


def test_a_host_is_the_announced_one() -> None:
    """If there is one."""
    assert [host_or(named, "asked") for named in ("host", "", "?")] == ["host", "asked", "asked"]
