"""A RESP connection: a claim in two reads is answered as a whole one is, and the bytes of replies are counted."""

from __future__ import annotations

import asyncio
import re
import tracemalloc
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from statistics import median
from types import SimpleNamespace
from typing import Any

import pytest

from fastdedup import Dedup, LocalLRU, Reject
from fastdedup.sidecar import turns
from fastdedup.sidecar.limits import Limits
from fastdedup.sidecar.namespaces import Namespaces, RawCodec
from fastdedup.sidecar.reply_memory import LARGE, ReplyMemory
from fastdedup.sidecar.request_memory import PLACE
from fastdedup.sidecar.resp.commands import COMMANDS, WITH_STORES
from fastdedup.sidecar.resp.connection import RespConnection
from fastdedup.sidecar.resp.frames import OK
from fastdedup.sidecar.resp.large import LargeReplies, LargeReply
from fastdedup.sidecar.resp.options import kind_of
from fastdedup.sidecar.resp.task_commands import FunctionCommand
from fastdedup.sidecar.turns import Pipelines
from fastdedup.stores.memory import MemoryStore

from ..waiting import wait_until
from .fuzz import Transport, pack

CLAIM = pack(b"FD.CLAIM", b"order:42")
DRAWN = re.compile(rb"\$20\r\n[0-9a-f]{20}|id\r\n:\d+")
FENCE = re.compile(rb":\d{16}")  # each store counts from a moment of its own
"""An owner, or a connection's number: another one each time."""


@asynccontextmanager
async def connected(limits: Limits, policy: Any = Reject) -> AsyncIterator[tuple[RespConnection, Transport]]:
    """A connection over a store whose clock stands still."""
    store = MemoryStore(clock=lambda: 1.8e9)
    async with Dedup(store, codec=RawCodec(), on_unavailable=policy()) as root:
        connections: set[RespConnection] = set()
        connection = RespConnection(Namespaces(root, limits=limits), connections, COMMANDS)
        transport = Transport(connection)
        yield connection, transport
        transport.lose()
        await wait_until(lambda: not connections, description="what owners have sent is done")
        await connection.namespaces.ephemeral.releases.finish(asyncio.get_running_loop().time() + 1.0)
        await asyncio.sleep(0)


async def told(inputs: list[bytes], in_pieces: bool, limits: Limits, policy: Any) -> tuple[bytes, bool]:
    """Return what a client is told that sends these and waits for each reply, and whether it is hung up on."""
    async with connected(limits, policy) as (connection, transport):
        for data in inputs:
            for piece in (data[:1], data[1:]) if in_pieces else (data,):
                connection.data_received(piece)
            while connection.places:  # noqa: ASYNC110 -- a connection has no event for it
                await asyncio.sleep(0)
        return FENCE.sub(b":(fence)", DRAWN.sub(b"(drawn)", transport.written)), transport.closing


@pytest.mark.parametrize("policy", [Reject, LocalLRU])
@pytest.mark.parametrize(
    "inputs",
    [
        [CLAIM],
        [CLAIM, CLAIM],
        [CLAIM, pack(b"FD.CLAIM", b"order:43"), pack(b"FD.RELEASE", b"order:42", b"nobody")],
        [pack(b"fd.claim", b"order:42"), CLAIM],
        [pack(b"HELLO", b"3"), CLAIM, CLAIM],
        [pack(b"FD.CLAIM", b"")],
        [pack(b"FD.CLAIM", b"\xff")],
        [pack(b"FD.CLAIM", "straße".encode())],
        [pack(b"FD.CLAIM", b"two\r\nlines")],
        [pack(b"FD.CLAIM", b"k" * 600)],
        [pack(b"FD.CLAIM", b"k" * 1025)],
        [pack(b"FD.CLAIM", b"k", b"EPHEMERAL"), pack(b"FD.CLAIM", b"k")],
        [CLAIM + CLAIM],
        [CLAIM + b"*", CLAIM[1:]],
        [CLAIM.replace(b"$8\r\norder", b"$7\r\norder")],
        [CLAIM.replace(b"$8\r\norder", b"$08\r\norder")],
        [pack(b"PING"), b"garbage\r\n", CLAIM],
        [pack(b"QUIT"), CLAIM],
    ],
)
async def test_a_claim_in_two_reads_is_answered_as_a_whole_one(inputs: list[bytes], policy: Any) -> None:
    whole = await told(inputs, False, Limits(), policy)
    assert whole == await told(inputs, True, Limits(), policy)
    assert whole[0]


@pytest.mark.parametrize("limits", [Limits(frame=20), Limits(arguments=1)])
async def test_a_claim_in_two_reads_keeps_the_limits(limits: Limits) -> None:
    whole = await told([CLAIM], False, limits, Reject)
    assert whole == await told([CLAIM], True, limits, Reject)
    assert whole[0].startswith(b"-ERR Protocol error")


async def test_replies_come_in_the_order_of_the_commands() -> None:
    async with connected(Limits()) as (connection, transport):
        connection.data_received(CLAIM)
        connection.data_received(pack(b"PING"))
        connection.data_received(CLAIM)
        await wait_until(lambda: not connection.places, description="all is answered")
        assert re.findall(rb"acquired|PONG|in_progress", transport.written) == [
            b"acquired",
            b"PONG",
            b"in_progress",
        ]


async def test_a_claim_whose_client_has_gone_is_released() -> None:
    async with connected(Limits()) as (connection, transport):
        connection.data_received(CLAIM)
        transport.lose()
        again = RespConnection(connection.namespaces, set(), COMMANDS)
        second = Transport(again)

        def won() -> bool:
            again.data_received(CLAIM)
            return b"acquired" in second.written

        await wait_until(won, description="the claim is free again")
        assert not transport.written
        second.lose()


@pytest.mark.parametrize("end", [b"", b"garbage\r\n"], ids=["whole", "with an error"])
async def test_long_pipelines_of_many_clients_wait_outside_of_the_stores_queue(
    end: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 clients with 1,000 claims each were 64,000 operations there: 58 % missed the deadline, UNAVAILABLE."""
    monkeypatch.setattr(turns, "monotonic", lambda: 0.0)  # no turn of the loop is too long
    async with connected(Limits()) as (first, transport):
        others = [RespConnection(first.namespaces, set(), COMMANDS) for _ in range(63)]
        clients = [(first, transport), *((each, Transport(each)) for each in others)]
        for number, (connection, _) in enumerate(clients):
            connection.data_received(
                b"".join(pack(b"FD.CLAIM", b"%d:%d" % (number, key)) for key in range(200)) + end
            )
        most, root = 0, first.namespaces.root
        while any(written.written.count(b"acquired") < 200 for _, written in clients):
            most = max(most, root.pending)
            await asyncio.sleep(0)
        assert 512 <= most < 1000
        for _, written in clients:
            assert written.written.count(b"-ERR Protocol error") == written.closing == bool(end)
        for _, written in clients[1:]:
            written.lose()


async def test_a_pipeline_goes_on_though_others_fill_the_queue_and_one_raises_an_error() -> None:
    went_on: list[int] = []
    pipelines = Pipelines(lambda: 1000)

    def fail() -> None:
        went_on.append(0)
        raise ZeroDivisionError

    told: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
    for go_on in (fail, lambda: went_on.append(1), lambda: went_on.append(2)):
        pipelines.add(go_on)
    await wait_until(lambda: len(went_on) == 3, description="each had its turn")
    assert went_on == [0, 1, 2]
    assert [type(error) for error in told] == [ZeroDivisionError]


async def test_long_pipelines_leave_the_loop_to_new_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their commands ran in one turn of the loop: with 300 clients a new one was accepted after 19 s."""
    clock, went_on = [0.0], []
    monkeypatch.setattr(turns, "monotonic", lambda: clock[0])
    pipelines = Pipelines(lambda: 0)

    def go_on() -> None:
        went_on.append(0)
        clock[0] += 0.0015

    for _ in range(4):
        pipelines.add(go_on)
    await asyncio.sleep(0)
    assert len(went_on) == 2
    await wait_until(lambda: len(went_on) == 4, description="each had its turn")


async def test_what_many_clients_send_at_once_is_cut_and_run_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of it was cut in one turn of the loop: with 300 clients a new one was answered after 8 s."""
    clock = [0.0]
    monkeypatch.setattr(turns, "monotonic", lambda: clock[0])

    def ping(_: RespConnection, command: list[bytes]) -> bytes:
        clock[0] += 0.0001
        return b"%b\r\n" % command[1]

    async with Dedup("memory://", codec=RawCodec()) as root:
        namespaces = Namespaces(root, limits=Limits())
        connections = [RespConnection(namespaces, set(), {b"PING": ping}) for _ in range(20)]
        clients = [(each, Transport(each)) for each in connections]
        data = b"".join(pack(b"PING", b"%d" % number) for number in range(2000))
        for connection, transport in clients:
            connection.data_received(data)
            assert transport.paused
        assert clock[0] < 0.006  # the first client's 32 commands
        while any(transport.written.count(b"\n") < 2000 for _, transport in clients):
            before = clock[0]
            await asyncio.sleep(0)
            assert clock[0] - before < 0.006
            assert namespaces.memory.requests.taken < 20 * (len(data) + 200_000)  # 20 MB if all of it is cut
        for _, transport in clients:
            assert transport.written == b"".join(b"%d\r\n" % number for number in range(2000))
            assert not transport.paused
            transport.lose()


async def test_a_claim_after_the_shutdown_began_is_refused() -> None:
    async with connected(Limits()) as (connection, transport):
        connection.data_received(CLAIM)
        connection.shutdown()
        connection.data_received(CLAIM)
        while connection.places:  # noqa: ASYNC110 -- a connection has no event for it
            await asyncio.sleep(0)
        assert b"acquired" in transport.written
        assert b"-UNAVAILABLE 1000 the sidecar is shutting down" in transport.written


@pytest.mark.parametrize(
    "after",
    [[CLAIM], [b"garbage\r\n"], [CLAIM[:10]], [CLAIM * 100], [pack(b"QUIT"), CLAIM]],
    ids=["a claim", "garbage", "a part", "many", "another QUIT"],
)
@pytest.mark.parametrize("at_once", [True, False])
async def test_nothing_is_answered_behind_quit(after: list[bytes], at_once: bool) -> None:
    """Redis answers nothing there; here each command was told that the sidecar shuts down."""
    async with connected(Limits()) as (connection, transport):
        data = [pack(b"FD.CLAIM", b"before"), pack(b"QUIT"), *after]
        for piece in [b"".join(data)] if at_once else data:
            connection.data_received(piece)
        await wait_until(lambda: not connection.places, description="the claim is answered")
        assert transport.closing
        assert transport.written.count(b"acquired") == 1
        assert transport.written.endswith(b":0\r\n+OK\r\n")
        assert await connection.namespaces.root.get("order:42") is None


async def test_a_client_that_has_quit_is_told_of_no_shutdown() -> None:
    async with connected(Limits()) as (connection, transport):
        connection.data_received(CLAIM + pack(b"QUIT"))
        connection.shutdown()
        connection.data_received(CLAIM)
        await wait_until(lambda: not connection.places, description="the claim is answered")
        assert transport.written.endswith(b":0\r\n+OK\r\n")


TASKS = {
    "claim": pack(b"FD.CLAIM", b"order:42", b"WAIT", b"60000"),
    "claim of an owner": pack(b"FD.CLAIM", b"order:42", b"OWNER", b"me"),
    "redeem": pack(b"FD.REDEEM", b"T" * 30, b"WAIT", b"60000"),
    "complete": pack(b"FD.COMPLETE", b"order:42", b"me", b"done"),
    "fail": pack(b"FD.FAIL", b"order:42", b"me", b"why"),
    "release": pack(b"FD.RELEASE", b"order:42", b"me"),
    "renew": pack(b"FD.RENEW", b"order:42", b"me"),
    "issue": pack(b"FD.ISSUE"),
    "consume": pack(b"FD.CONSUME", b"T" * 30),
    "get": pack(b"FD.GET", b"order:42"),
    "list": pack(b"FD.LIST"),
    "forget": pack(b"FD.FORGET", b"order:42"),
}


@pytest.mark.parametrize("command", TASKS.values(), ids=TASKS)
async def test_a_command_that_waits_takes_no_more_memory_than_is_counted(command: bytes) -> None:
    """A claim took 1,530 bytes, a token 1,160: 200 clients with 1,000 of them brought the sidecar to 294 MB."""
    async with connected(Limits()) as (connection, _):
        turns = connection.namespaces.turns
        turns.brief.taken = turns.waiting.taken = turns.reading.taken = 10_000  # one task a line, and no more
        kind_of.cache_clear()  # an object takes more if one of its class has ever had many attributes
        for each in TASKS.values():
            connection.data_received(each)
        tracemalloc.start()
        taken: list[float] = []
        while len(taken) < 6:
            began, _ = tracemalloc.get_traced_memory()
            connection.data_received(command * 30)  # they run in this turn of the loop
            taken.append((tracemalloc.get_traced_memory()[0] - began) / 30)
            assert len(connection.places) == len(TASKS) + 30 * len(taken)
        tracemalloc.stop()
        # What else the process does falls into one of the five.
        assert median(taken[1:]) < PLACE + len(command), taken


async def test_the_bytes_of_a_command_that_waits_are_counted() -> None:
    """300 clients that redeemed with subjects of 16 kB, and waited, took 337 MB: a command counted 512 bytes."""
    async with connected(Limits()) as (connection, transport):
        connection.data_received(pack(b"FD.ISSUE", b"SUBJECT", b"me"))
        await wait_until(lambda: not connection.places, description="the token is there")
        token = bytes(transport.written).split(b"\r\n")[1]
        redeem = pack(b"FD.REDEEM", token, b"WAIT", b"60000", b"SUBJECT", b"x" * 16_000)
        connection.namespaces.turns.waiting.taken = 10_000  # one task, and no more
        requests = connection.namespaces.memory.requests
        connection.data_received(redeem * 20)
        assert 320_000 < requests.taken < 340_000
        transport.lose()
        assert not requests.taken


async def test_the_bytes_of_a_run_are_counted() -> None:
    """An FD.RUN with 10 kB of keys counted 512 bytes."""
    async with Dedup(MemoryStore(), codec=RawCodec()) as root:
        connection = RespConnection(Namespaces(root), set(), WITH_STORES)
        transport, memory = Transport(connection), connection.namespaces.memory.requests
        wires = [b"t:=" + b"%0100d" % number for number in range(100)]
        connection.data_received(pack(b"FD.RUN", b"read", b"100", *wires))
        assert sum(map(len, wires)) < memory.taken < sum(map(len, wires)) + 2 * PLACE
        await wait_until(lambda: not connection.places, description="it is answered")
        assert not memory.taken
        transport.lose()


async def test_a_connection_that_is_lost_keeps_nothing_of_its_commands() -> None:
    """The garbage collector comes for it, but seldom: 150 clients left 131 MB behind."""
    async with connected(Limits()) as (connection, transport):
        connection.namespaces.turns.brief.taken = 10_000
        tracemalloc.start()
        connection.data_received(pack(b"FD.ISSUE", b"SUBJECT", b"x" * 100_000) * 4)
        connection.data_received(pack(b"PING", b"x" * 400_000)[:-1])
        assert tracemalloc.get_traced_memory()[0] > 800_000
        transport.lose()
        await wait_until(lambda: not connection.tasks.brief.tasks, description="its tasks have ended")
        assert tracemalloc.get_traced_memory()[0] < 100_000
        tracemalloc.stop()


async def test_answered_commands_make_room_though_others_are_always_outstanding() -> None:
    """After 1 MiB nothing was read until all were answered, not even the completion that one waited for."""
    async with connected(Limits(frame=4096)) as (connection, transport):
        waiting: deque[asyncio.Future[tuple[bytes, str, tuple[()]]]] = deque()

        async def work() -> tuple[bytes, str, tuple[()]]:
            waiting.append(asyncio.get_running_loop().create_future())
            return await waiting[-1]

        async def ask(outstanding: int) -> None:
            connection.data_received(pack(b"WORK", bytes(1000)))
            await wait_until(lambda: len(waiting) == outstanding, description="it runs")

        root, line = connection.namespaces.root, connection.tasks.brief
        connection.answer_only(
            {b"WORK": lambda it, command: FunctionCommand(it, command, root, "get", line, work).run()}
        )
        await ask(1)
        for _ in range(20):
            await ask(2)
            waiting.popleft().set_result((OK, "ok", ()))
            await wait_until(lambda: len(connection.places) == 1, description="one is answered")
            assert not transport.paused
        for more in range(2, 6):
            await ask(more)
        assert transport.paused
        waiting.popleft().set_result((OK, "ok", ()))
        await wait_until(lambda: not transport.paused, description="there is room")


async def test_a_value_that_reads_like_a_claim_is_no_claim() -> None:
    async with connected(Limits()) as (connection, transport):
        connection.data_received(b"*2\r\n$4\r\nPING\r\n$%d\r\n" % len(CLAIM))
        connection.data_received(CLAIM)
        assert not connection.places
        connection.data_received(b"\r\n")
        assert transport.written == b"$%d\r\n%b\r\n" % (len(CLAIM), CLAIM)


# The count of the bytes that replies take, without a connection


class Client:
    """A connection whose client has read nothing for a long time.

    Args:
        size: the bytes that its transport keeps.
    """

    def __init__(self, size: int) -> None:
        self.unread = SimpleNamespace(since=1e-9, size=lambda: size)
        self.is_cut = False

    def cut(self) -> None:
        self.is_cut = True


async def test_bytes_of_a_cut_client_count_until_they_are_freed() -> None:
    memory = ReplyMemory(100_000)
    client = Client(80_000)
    memory.connections = {client}
    memory.grew(80_000)
    assert not memory.reserve(30_000)
    assert client.is_cut
    assert memory.is_clearing
    await asyncio.sleep(0)  # in this turn a transport closes, and frees its bytes at the end
    assert not memory.reserve(30_000)
    await wait_until(lambda: not memory.is_clearing, description="the bytes are given back")
    assert memory.reserve(30_000)


async def test_a_reply_ahead_of_its_turn_cuts_no_client() -> None:
    """It looked at each client, though it can be let go: 300,000 looks kept another client's claim for 20 s."""
    memory = ReplyMemory(100_000)
    client = Client(80_000)
    memory.connections = {client}
    memory.grew(80_000)
    replies = LargeReplies(memory, 100_000)
    for first in (False, True):
        reply = LargeReply(bytes, bytes(30_000), lambda: None)
        assert replies.put(object(), reply, first=first)
        assert reply.build is None
        assert client.is_cut is first


async def test_a_client_is_cut_once() -> None:
    memory = ReplyMemory(100_000)
    memory.connections = {Client(80_000)}
    memory.grew(80_000)
    assert not memory.reserve(30_000)
    assert not memory.reserve(30_000)
    assert memory.cut == 1


async def test_clients_with_few_unread_bytes_are_not_cut() -> None:
    memory = ReplyMemory(100_000)
    small, large = Client(LARGE), Client(98_000)
    small.unread.since = large.unread.since / 2
    memory.connections = {small, large}
    memory.grew(LARGE + 98_000 - 3000)
    assert not memory.reserve(30_000)
    assert large.is_cut
    assert not small.is_cut
