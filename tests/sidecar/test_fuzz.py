"""Hostile bytes at both wires: a small helping of `fuzz.py`, and what it found."""

from __future__ import annotations

import asyncio
import random
import time
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastdedup.sidecar.limits import Limits
from fastdedup.sidecar.resp.commands import WITH_STORES
from fastdedup.sidecar.resp.connection import RespConnection
from fastdedup.sidecar.resp.frames import Frames
from fastdedup.stores.sidecar.wire import MAX_ARGUMENTS

from . import fuzz
from .fuzz import LIMITS, Transport, cut, opened, pack

BOUNDED = settings(max_examples=50, derandomize=True, deadline=None)

_PIECE = st.one_of(
    st.binary(max_size=40),
    st.lists(st.binary(max_size=600), min_size=1, max_size=20).map(lambda parts: pack(*parts)),
    st.integers(0, 10**12).map(lambda number: b"*%d\r\n" % number),
    st.integers(0, 10**12).map(lambda number: b"$%d\r\n" % number),
    st.sampled_from([b"\r\n", b"*1\r\n*1\r\n$4\r\nPING\r\n", b"PING\r\n", pack(b"FD.RUN", *[b"k"] * 40)]),
)


@BOUNDED
@given(st.lists(_PIECE, max_size=8).map(b"".join), st.randoms(use_true_random=False))
def test_a_stream_is_the_same_however_it_is_cut(data: bytes, choice: random.Random) -> None:
    asyncio.run(fuzz.check_frames(data, choice))


@BOUNDED
@given(st.lists(st.lists(st.binary(max_size=30), min_size=1, max_size=5), min_size=1, max_size=5))
def test_a_stream_may_be_cut_anywhere(commands: list[list[bytes]]) -> None:
    data = b"".join(pack(*command) for command in commands)
    assert cut([data]) == (commands, "")
    assert cut([data[at : at + 1] for at in range(len(data))]) == (commands, "")
    for at in range(len(data)):
        assert cut([data[:at], data[at:]]) == (commands, "")


def test_both_wires_withstand_a_few_thousand_inputs() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checks, found = asyncio.run(fuzz.throw(2000, seed=5))
    assert not found
    assert sum(checks.counts.values()) == 2000


# What was found


@pytest.mark.parametrize("step", [1, 7])
def test_a_batch_that_arrives_bit_by_bit_is_parsed_once(step: int) -> None:
    """Parsed from its start on each arrival, these 12 KB would take 14 s of CPU, or 2.5 s."""
    data = pack(b"FD.RUN", b"read", b"256", *[b"k"] * (MAX_ARGUMENTS - 3))
    frames = Frames(max_bytes=1 << 20, max_arguments=64)
    begun = time.process_time()
    commands = [command for at in range(0, len(data), step) for command in frames.feed(data[at : at + step])]
    assert [len(command) for command in commands] == [MAX_ARGUMENTS]
    assert time.process_time() - begun < 1.0


def test_a_command_between_two_arguments_is_unfinished() -> None:
    frames = Frames(max_bytes=1024, max_arguments=64)
    assert not frames.unfinished
    for piece in (b"*2\r\n", b"$4\r\nPING\r\n", b"$1\r\n", b"x\r"):
        assert frames.feed(piece) == []
        assert frames.unfinished
    assert frames.feed(b"\n" + pack(b"PING")) == [[b"PING", b"x"], [b"PING"]]
    assert not frames.unfinished


@pytest.mark.parametrize("pieces", [1, 5])
def test_short_arguments_do_not_add_up_beyond_the_limit(pieces: int) -> None:
    data = pack(*[b"x" * 200] * 10)
    step = -(-len(data) // pieces)
    commands, fault = cut([data[at : at + step] for at in range(0, len(data), step)], Limits(frame=1024))
    assert (commands, fault) == ([], "a command takes at most 1024 bytes")


async def test_what_follows_a_broken_stream_is_dropped() -> None:
    """While a reply is still to come the connection stays open: each piece of garbage added an answer to it."""
    checks = await opened()
    connection = RespConnection(checks.namespaces, set(), WITH_STORES)
    transport = Transport(connection)
    connection.data_received(pack(b"FD.CLAIM", b"k") + pack(b"FD.CLAIM", b"k", b"WAIT", b"60000"))
    for _ in range(500):
        connection.data_received(b"garbage\r\n")
    assert len(connection.places) == 3
    assert not transport.closing
    transport.lose()
    await asyncio.sleep(0)
    await checks.close()


async def test_a_client_that_goes_at_once_leaves_no_warning() -> None:
    checks = await opened()
    connection = RespConnection(checks.namespaces, set(), WITH_STORES)
    transport = Transport(connection)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        connection.data_received(pack(b"FD.CLAIM", b"k", b"OWNER", b"me"))
        transport.lose()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert not connection.tasks.brief.tasks
    assert [str(each.message) for each in caught] == []
    await checks.close()


async def test_a_command_beyond_the_limit_is_refused_and_the_connection_closed() -> None:
    checks = await opened()
    transport = Transport(connection := RespConnection(checks.namespaces, set(), WITH_STORES))
    connection.data_received(pack(b"PING") + b"*2\r\n$4\r\nPING\r\n$%d\r\n" % LIMITS.frame)
    assert bytes(transport.written).startswith(b"+PONG\r\n-ERR Protocol error: a command takes at most")
    assert transport.closing
    await asyncio.sleep(0)
    await checks.close()
