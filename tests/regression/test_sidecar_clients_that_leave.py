"""Clients of the sidecar that close a side of their connection, or hang up."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import select
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import hiredis
import pytest
import redis
from uvicorn.server import ServerState

from fastdedup import Dedup
from fastdedup.core.wakeups import Wakeups
from fastdedup.kernel.engine import Engine
from fastdedup.kernel.operations import ClaimOp, Op, ReadOp, ReleaseOp, Reply
from fastdedup.kernel.owners import draw_owner
from fastdedup.kernel.terms import Mode, terms
from fastdedup.kernel.verbs import Verb
from fastdedup.sidecar.http.application import HttpApp
from fastdedup.sidecar.http.protocol import HttpProtocol
from fastdedup.sidecar.limits import Limits
from fastdedup.sidecar.namespaces import Namespaces, RawCodec
from fastdedup.sidecar.resp.commands import WITH_STORES
from fastdedup.sidecar.resp.connection import RespConnection
from fastdedup.sidecar.resp.frames import OK
from fastdedup.sidecar.resp.reply_places import Slot
from fastdedup.stores.memory import MemoryStore
from fastdedup.stores.redis.scripts import pack as pack_command
from fastdedup.stores.sidecar.wire import RUNS, pack_run

from ..killable import until
from ..servers import RedisServer
from ..sidecar.attacks import answered, connect, post
from ..sidecar.conftest import Running, serve, sidecar
from ..sidecar.fuzz import Transport, pack
from ..sidecar.running import Sidecar, client
from ..waiting import wait_until

# Fault: a client that closed its sending side after its request got no answer over HTTP, as it does over
# RESP.


__all__ = ["serve", "sidecar"]

LOOK = b"GET /healthz HTTP/1.1\r\nhost: s\r\n\r\n"
CLAIM = post("/v1/claims", {"key": "a"})


@pytest.mark.parametrize(
    ("sent", "statuses"),
    [
        (LOOK, [b"200"]),
        (3 * LOOK, 3 * [b"200"]),
        (CLAIM, [b"201"]),
        (2 * LOOK + LOOK[:20], [b"200", b"200", b"400"]),  # fault: the connection closed at once
        (2 * LOOK + CLAIM[:-3], [b"200", b"200", b"400"]),
        (LOOK[:20], []),
    ],
)
def test_all_that_a_half_closed_client_asked_is_answered(
    serve: Callable[..., Running], sent: bytes, statuses: list[bytes]
) -> None:
    with serve().raw() as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        before, *answers = client.makefile("rb").read().split(b"HTTP/1.1 ")
        assert (before, [each[:3] for each in answers]) == (b"", statuses)


def test_the_end_changes_no_refusal_that_waits(serve: Callable[..., Running]) -> None:
    """Fault: headers that were too large were answered 400; a request that found no memory, too."""
    sidecar = serve()
    sidecar.call(sidecar.namespaces.root.claim("a"))
    with sidecar.raw() as client:
        client.sendall(post("/v1/claims", {"key": "a", "wait": 60_000}) + LOOK[:-2] + b"x: " + 50_000 * b"x")
        client.shutdown(socket.SHUT_WR)
        gate = sidecar.namespaces.root.gate
        until(lambda: gate.connection.wakeups.waiting, "it waits")
        (connection,) = sidecar.server.connections
        until(lambda: not connection.transport.is_reading(), "the end has come")
        sidecar.call(sidecar.namespaces.root.forget("a"))
        answers = client.makefile("rb").read()
        assert [answers.count(b"HTTP/1.1 %d" % status) for status in (201, 431)] == [1, 1]


# Fault: a RESP client closed its sending side, then died while its claim waited; it held the key for a
# whole lease. Over HTTP such a claim is released as its answer cannot be sent.


LEASE = ("LEASE", "60000")
WAIT = (*LEASE, "WAIT", "60000")


@asynccontextmanager
async def half_closed(
    sidecar: Running, *command: str
) -> AsyncIterator[tuple[socket.socket, Callable[[], Any]]]:
    """A client that waits for the key, and sends nothing more; and what frees the key and lets it be answered."""
    wakeups = sidecar.namespaces.root.gate.connection.wakeups

    def halves() -> int:
        return sum(
            isinstance(each, RespConnection) and each._draining
            for each in list(sidecar.server.server_state.connections)
        )

    with client(Path(sidecar.path)) as owner, sidecar.raw() as raw:
        outcome, name, fence, *_ = owner.execute_command("FD.CLAIM", "k", *LEASE)
        assert outcome == b"acquired"
        raw.sendall(pack_command(*command))
        await wait_until(lambda: wakeups.waiting, description="it waits")
        raw.shutdown(socket.SHUT_WR)
        await wait_until(halves, description="the sidecar knows that it sends nothing more")

        async def free() -> None:
            owner.execute_command("FD.RELEASE", "k", name, "FENCE", fence)
            await wait_until(lambda: not wakeups.waiting, description="it waits no more")

        yield raw, free


@pytest.mark.parametrize("command", [("FD.CLAIM", "k", *WAIT), ("FD.CLAIM", "k", *WAIT, "EPHEMERAL")])
async def test_the_claim_of_a_client_that_died_is_released(
    sidecar: Running, command: tuple[str, ...]
) -> None:
    async with half_closed(sidecar, *command) as (raw, free):
        raw.close()
        await free()
    with client(Path(sidecar.path)) as another:
        await wait_until(
            lambda: another.execute_command("FD.CLAIM", "k")[0] == b"acquired", description="it is free"
        )


async def test_the_claim_of_a_client_that_still_reads_is_kept(sidecar: Running) -> None:
    async with half_closed(sidecar, "FD.CLAIM", "k", *WAIT) as (raw, free):
        await free()
        assert b"acquired" in raw.recv(1000)
    with client(Path(sidecar.path)) as another:
        assert another.execute_command("FD.CLAIM", "k")[0] == b"in_progress"


async def test_a_named_owner_may_come_back(sidecar: Running) -> None:
    async with half_closed(sidecar, "FD.CLAIM", "k", *WAIT, "OWNER", "job-7") as (raw, free):
        raw.close()
        await free()
    with client(Path(sidecar.path)) as another:
        assert another.execute_command("FD.CLAIM", "k")[0] == b"in_progress"
        assert another.execute_command("FD.CLAIM", "k", "OWNER", "job-7")[0] == b"acquired"


# A client that hung up before its answer took the audit's line with it, and the answers of others in its
# batch.


CONFIG = """
namespace = "shop"
timeout = 10.0
allow_stores = true
log_format = "json"
log_keys = true

[ledgers.orders]
window = 60.0
capacity = 1000
"""
ASKED: dict[str, Callable[[bytes], bytes]] = {
    "FD.FORGET": lambda key: pack(b"FD.FORGET", key),
    "FD.FORGETID": lambda key: pack(b"FD.FORGETID", b"orders", key),
    "FD.LIST": lambda key: pack(b"FD.LIST", b"PREFIX", key),
    "FD.RUN": lambda key: pack(b"FD.RUN", b"forget", b"1", b"shop:=" + key),
    "HTTP": lambda key: b"DELETE /v1/records?key=%s HTTP/1.1\r\nhost: fd\r\n\r\n" % key,
    "HTTP list": lambda key: b"GET /v1/records/list?prefix=%s HTTP/1.1\r\nhost: fd\r\n\r\n" % key,
}


@pytest.mark.parametrize("asked", ASKED)
async def test_every_audited_request_of_a_gone_client_is_logged(server: RedisServer, asked: str) -> None:
    keys = [f"{number:02}" for number in range(20)]
    with Sidecar("--url", server.url, config=CONFIG) as sidecar:
        with server.frozen():
            for key in keys:
                with connect(sidecar.path) as client:
                    client.sendall(ASKED[asked](key.encode()))
            figures = sidecar.figures()  # by then it has read them all, and seen their ends
            assert "fastdedup" in figures

        def audited() -> list[dict[str, Any]]:
            told = [json.loads(line) for line in sidecar.log.splitlines()]
            return [line for line in told if line.get("uid") == os.getuid()]

        await wait_until(lambda: len(audited()) >= len(keys), description=lambda: sidecar.log[-2000:])
        named = [line.get("key") or line["prefix"] for line in audited()]
    assert {name.rpartition("/")[2] for name in named} == set(keys)


async def test_a_gone_client_costs_no_other_client_its_answer(server: RedisServer) -> None:
    """Their operations are in one batch: the store has as many batches under way as it may have."""
    with (
        Sidecar("--url", server.url, config=CONFIG) as sidecar,
        connect(sidecar.path) as first,
        connect(sidecar.path) as other,
    ):
        with server.frozen():
            for number in range(8):
                other.sendall(ASKED["FD.RUN"](b"before:%d" % number))
                sidecar.figures()  # it has read that, and sends it alone while it may
            first.sendall(ASKED["FD.RUN"](b"gone"))
            sidecar.figures()
            first.close()
            other.sendall(b"".join(ASKED["FD.RUN"](b"%d" % number) for number in range(50)))
            sidecar.figures()
        reader, answers = hiredis.Reader(), 0
        while answers < 58:
            received = other.recv(65_536)
            assert received, "the connection has ended"
            reader.feed(received)
            while reader.gets() is not False:
                answers += 1


# In the library: whatever raises as one operation is answered


class Failing:
    """Takes a claim's reply in place of a future, and raises."""

    def __init__(self, fault: BaseException) -> None:
        self._fault = fault

    def done(self) -> bool:
        return False

    def set_result(self, reply: Reply) -> None:
        raise self._fault

    set_exception = set_result


def claim(key: bytes) -> ClaimOp:
    return ClaimOp(key, terms(Mode.CLAIM, 1000, 2000, False), draw_owner(), None)


@pytest.mark.parametrize(
    "fault", [RuntimeError("a taker"), asyncio.CancelledError("a taker")], ids=["error", "end"]
)
async def test_a_taker_that_raises_costs_no_other_claim_its_answer(fault: BaseException) -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
    engine = Engine(MemoryStore(), timeout=5)
    for key in (b"failing", b"joined"):
        engine.claim(claim(key), Failing(fault))
    others = [engine.claim(claim(key)) for key in (b"joined", b"k1", b"k2")]
    for answer in await asyncio.wait_for(asyncio.gather(*others), 10):
        assert answer.outcome in ("acquired", "in_progress")
    assert [str(context["exception"]) for context in told] == ["a taker"] * 4, (
        "each as it takes the reply, and the error"
    )
    assert engine.pending == 0


async def test_a_witness_that_raises_costs_no_other_operation_its_answer() -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))

    def fail(op: Op, reply: Reply) -> Reply:
        raise RuntimeError("a witness")

    engine = Engine(MemoryStore(), timeout=5)
    reading, claiming = ReadOp(b"read"), claim(b"claimed")
    for op in (reading, claiming):
        op.let_witness(fail)
    failing = [engine.submit(reading), engine.claim(claiming)]
    others = [engine.submit(ReadOp(b"other")), engine.claim(claim(b"another"))]
    await asyncio.wait_for(asyncio.gather(*others), 10)
    for future in failing:
        with pytest.raises(RuntimeError, match="a witness"):
            await future
    assert len(told) == 2


async def test_a_listener_that_raises_costs_no_other_its_news() -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
    wakeups, heard = Wakeups(), []

    def first(wire: bytes | None) -> None:
        heard.append(wire)
        raise RuntimeError("a listener")

    def second(wire: bytes | None) -> None:
        first(wire)

    wakeups.overheard_by |= {first, second}
    wakeups.freed(b"k")
    assert (heard, len(told)) == ([b"k", b"k"], 2)


# Fault: what a client was granted stayed granted though it died before its reply was written, or read: behind a claim
# that waited, a key was held, a token used up and an id remembered.


@contextmanager
def granting() -> Iterator[tuple[Sidecar, redis.Redis, bytes, Callable[[], tuple[str | None, str, int]]]]:
    """A sidecar, a client that holds "held", a token of its, and what tells how "b", the token and an id stand."""
    with Sidecar("--url", "memory://", config=CONFIG) as sidecar, sidecar.client() as other:
        other.execute_command("FD.CLAIM", "held", *LEASE)
        token = other.execute_command("FD.ISSUE")

        def stand() -> tuple[str | None, str, int]:
            b = json.loads(other.execute_command("FD.GET", "b") or "{}").get("state")
            used = json.loads(other.execute_command("FD.GET", token, "KIND", "token"))["state"]
            return b, used, other.execute_command("FD.SEEN", "orders", "id")[0]

        yield sidecar, other, token, stand


async def test_what_stands_behind_a_command_that_waits_is_taken_back() -> None:
    with granting() as (sidecar, other, token, stand), connect(sidecar.path) as raw:
        commands = [
            pack(b"FD.CLAIM", b"held", b"WAIT", b"60000"),
            pack(b"FD.CLAIM", b"b", b"LEASE", b"60000"),
            pack(b"FD.CONSUME", token),
            pack(b"FD.FIRST", b"orders", b"id"),
        ]
        raw.sendall(b"".join(commands))
        await wait_until(lambda: stand() == ("processing", "succeeded", 1), description=lambda: str(stand()))
        raw.close()
        await wait_until(lambda: stand() == ("released", "issued", 0), description=lambda: str(stand()))
        assert other.execute_command("FD.CONSUME", token) == b"acquired"
        assert other.execute_command("FD.FIRST", "orders", "id") == [1]


async def test_a_token_that_a_batch_used_is_issued_again_if_the_batch_is_given_up() -> None:
    with granting() as (sidecar, other, token, stand), connect(sidecar.path) as raw:
        waits = {"op": "claim", "key": "held", "wait": 60_000}
        raw.sendall(post("/v1/batch", [waits, {"op": "consume", "token": token.decode()}]))
        await wait_until(lambda: stand()[1] == "succeeded", description="the token is used")
        raw.close()
        await wait_until(lambda: stand()[1] == "issued", description="it is issued again")
        assert other.execute_command("FD.CONSUME", token) == b"acquired"


async def test_a_use_and_an_id_whose_answer_was_not_read_are_taken_back() -> None:
    with granting() as (sidecar, _, token, stand):
        asked = [
            post("/v1/tokens/consume", {"token": token.decode()}),
            post("/v1/ledgers/orders/first", {"ids": ["id"]}),
        ]
        for ask in asked:
            with connect(sidecar.path) as raw:
                raw.sendall(ask)
                raw.recv(1, socket.MSG_PEEK)  # the answer is there, and stays unread
        await wait_until(lambda: stand() == (None, "issued", 0), description=lambda: str(stand()))


@pytest.mark.parametrize("pipelined", [b"", pack(b"PING")], ids=["alone", "behind another"])
async def test_what_a_reply_that_was_not_read_has_granted_is_taken_back(pipelined: bytes) -> None:
    with granting() as (sidecar, _, token, stand):
        ids = [b"id", *(b"%d" % number for number in range(200 if pipelined else 0))]
        asked = [pack(b"FD.CLAIM", b"b"), pack(b"FD.CONSUME", token), pack(b"FD.FIRST", b"orders", *ids)]
        for ask in asked:
            with connect(sidecar.path) as raw:
                raw.sendall(pipelined + ask)
                length = len(pipelined and b"+PONG\r\n")
                await wait_until(
                    lambda raw=raw, length=length: len(raw.recv(100, socket.MSG_PEEK)) > length,
                    description="the reply is there, and stays unread",
                )
        await wait_until(lambda: stand() == ("released", "issued", 0), description=lambda: str(stand()))


@pytest.mark.parametrize("end", ["a write that fails", "a cut", "no read in time"])
async def test_what_a_reply_that_was_not_sent_has_granted_is_taken_back(end: str) -> None:
    async with Dedup(MemoryStore(), codec=RawCodec()) as root:
        connection = RespConnection(Namespaces(root, limits=Limits(request_timeout=0.05)), set(), WITH_STORES)
        transport = Transport(connection)
        connection.data_received(pack(b"FD.CLAIM", b"k"))
        await wait_until(lambda: transport.written, description="it is answered")
        if end == "a write that fails":
            transport.lose(BrokenPipeError())
        else:
            transport.get_write_buffer_size = lambda: 10  # type: ignore[method-assign]
            connection.cut() if end == "a cut" else connection.data_received(b"*")  # the rest is never sent

        async def released() -> bool:
            record = await root.get("k")
            return record is not None and record.state == "released"

        await wait_until(released, description="it is released")


@pytest.mark.parametrize("is_read", [True, False])
@pytest.mark.parametrize("first", ["the write fails", "the read fails"])
async def test_what_all_replies_of_a_write_that_fails_have_granted_is_taken_back(
    is_read: bool, first: str
) -> None:
    """Fault: only the last one's grant was; and that of the write before it never was, or though it was read."""
    async with Dedup(MemoryStore(), codec=RawCodec()) as root:
        commands = {**WITH_STORES, b"LATER": lambda *_: Slot()}
        here, there = socket.socketpair()
        _, connection = await asyncio.get_running_loop().connect_accepted_socket(
            lambda: RespConnection(Namespaces(root), set(), commands), there
        )

        async def states() -> list[str]:
            records = [await root.get(key) for key in ("before", "a", "b", "c")]
            return [record.state for record in records if record]

        with here:
            here.sendall(pack(b"FD.CLAIM", b"before"))
            await wait_until(lambda: select.select([here], [], [], 0)[0], description="the reply is there")
            asked = [pack(b"LATER"), *[pack(b"FD.CLAIM", key) for key in (b"a", b"b", b"c")], pack(b"PING")]
            here.sendall(b"".join(asked))
            places = connection.places
            await wait_until(lambda: len([p for p in places if p.reply]) == 4, description="all but one")
            if is_read:
                here.recv(1000)
        if first == "the read fails":
            connection.answer(places[0], OK)  # the loop tells of the end before it writes
        else:
            places[0].reply = OK
            connection.data_received(pack(b"PING"))
        told = "processing" if is_read else "released"

        async def taken_back() -> bool:
            return await states() == [told, "released", "released", "released"]

        await wait_until(taken_back, description="all is taken back")


async def test_no_news_is_sent_to_a_connection_that_closes() -> None:
    """Fault: a client that ended, read nothing and had asked for news got all of it, beyond every bound."""
    async with Dedup(MemoryStore(), codec=RawCodec()) as root:
        here, there = socket.socketpair()
        there.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        _, connection = await asyncio.get_running_loop().connect_accepted_socket(
            lambda: RespConnection(Namespaces(root), set(), WITH_STORES), there
        )
        with here:
            here.sendall(1000 * pack(b"PING"))
            here.shutdown(socket.SHUT_WR)
            await wait_until(connection.transport.is_closing, description="all is answered")
            kept = connection.transport.get_write_buffer_size()
            assert kept
            for _ in range(1000):
                connection.push(bytes(1000))
            assert connection.transport.get_write_buffer_size() == kept


@pytest.mark.parametrize("is_read", [True, False])
async def test_an_answer_before_one_that_fails_is_taken_back_only_if_it_is_unread(is_read: bool) -> None:
    """Fault: over HTTP it never was."""
    async with Dedup(MemoryStore(), codec=RawCodec()) as root:
        namespaces, (here, there) = Namespaces(root), socket.socketpair()
        limits, memory, turns = namespaces.limits, namespaces.memory, namespaces.turns
        _, connection = await asyncio.get_running_loop().connect_accepted_socket(
            lambda: HttpProtocol(limits, memory, turns, HttpApp(namespaces), ServerState()), there
        )
        with here:
            here.sendall(post("/v1/claims", {"key": "before"}))
            await wait_until(lambda: select.select([here], [], [], 0)[0], description="the answer is there")
            wire, owner = (await root.claim("a")).settlement.held_key
            if is_read:
                here.recv(1000)
        connection.respond(b"HTTP/1.1 201 Created\r\n", b"", ((root, wire, owner),))

        async def taken_back() -> bool:
            records = [await root.get(key) for key in ("before", "a")]
            told = "processing" if is_read else "released"
            return [record.state for record in records if record] == [told, "released"]

        await wait_until(taken_back, description="all is taken back")


async def test_that_holds_while_the_connection_is_not_read(serve: Callable[..., Running]) -> None:
    sidecar = serve(limits=Limits(in_flight=2))
    wakeups = sidecar.namespaces.root.gate.connection.wakeups
    with client(Path(sidecar.path)) as other:
        other.execute_command("FD.CLAIM", "held", *LEASE)
        with sidecar.raw() as raw:
            waits = post("/v1/claims", {"key": "held", "wait": 60_000})
            raw.sendall(post("/v1/claims", {"key": "b", "lease": 60_000}) + waits + 3 * LOOK)
            await wait_until(
                lambda: wakeups.waiting, description="the second one waits, the first is answered"
            )
        await wait_until(
            lambda: other.execute_command("FD.CLAIM", "b")[0] == b"acquired", description="it is free again"
        )


# Fault: a client with as many requests outstanding as it may have is not read from, so its end was not noticed: what
# waited for a key won it, and held it for its lease.


@pytest.mark.parametrize("wire", ["RESP", "HTTP"])
async def test_a_client_that_dies_while_it_is_not_read_waits_no_more(
    serve: Callable[..., Running], wire: str
) -> None:
    sidecar = serve(limits=Limits(in_flight=2))
    waits = {
        "RESP": 4 * pack(b"FD.CLAIM", b"k", b"WAIT", b"60000", b"LEASE", b"60000"),
        "HTTP": post("/v1/claims", {"key": "k", "wait": 60_000}) + 3 * LOOK,
    }
    wakeups = sidecar.namespaces.root.gate.connection.wakeups
    with client(Path(sidecar.path)) as owner:
        owner.execute_command("FD.CLAIM", "k", *LEASE)
        with sidecar.raw() as raw:
            raw.sendall(waits[wire])
            await wait_until(lambda: wakeups.waiting, description="it waits")
        await wait_until(lambda: not wakeups.waiting, description="it waits no more")
        await wait_until(lambda: len(sidecar.server.connections) == 1, description="it is closed")


async def test_a_key_that_a_client_wins_after_its_death_is_free(serve: Callable[..., Running]) -> None:
    sidecar = serve(limits=Limits(in_flight=2))
    wakeups = sidecar.namespaces.root.gate.connection.wakeups
    with client(Path(sidecar.path)) as owner:
        _, name, *_ = owner.execute_command("FD.CLAIM", "k", *LEASE)
        with sidecar.raw() as raw:
            raw.sendall(pack(b"FD.CLAIM", b"k", b"WAIT", b"60000", b"LEASE", b"60000") + 3 * pack(b"PING"))
            await wait_until(lambda: wakeups.waiting, description="it waits")
        owner.execute_command("FD.RELEASE", "k", name)
        await wait_until(
            lambda: owner.execute_command("FD.CLAIM", "k")[0] == b"acquired", description="it is free"
        )


# Fault: a worker pipelined 1,000 FD.COMPLETE and closed. 256 began, and the others, which were read, never ran.


@pytest.mark.parametrize("ephemeral", [[], [b"EPHEMERAL"]])
async def test_what_an_owner_has_sent_is_done_though_its_client_hangs_up(
    serve: Callable[..., Running], redis_url: str, redis_server: RedisServer, ephemeral: list[bytes]
) -> None:
    sidecar = serve(redis_url, timeout=20.0)
    keys = [b"%d" % number for number in range(1000)]
    with client(Path(sidecar.path)) as other, sidecar.raw() as worker:
        for start in range(0, 1000, 100):
            part = keys[start : start + 100]
            worker.sendall(b"".join(pack(b"FD.CLAIM", key, b"OWNER", b"w", *ephemeral) for key in part))
            assert answered(worker, len(part)).count(b"acquired") == len(part)
        with redis_server.frozen():
            worker.sendall(b"".join(pack(b"FD.COMPLETE", key, b"w", b"1") for key in keys))
            turns = sidecar.namespaces.turns
            await wait_until(lambda: turns.brief.taken == 256, description="the first ones have begun")
            worker.close()
            clients = sidecar.server.connections
            await wait_until(lambda: all(each.gone for each in list(clients)), description="it has gone")
        await wait_until(lambda: not clients, description="all has ended")
        assert all(b"succeeded" in other.execute_command("FD.GET", key) for key in keys)


async def test_a_sidecar_that_stops_leaves_none_of_that_behind(
    serve: Callable[..., Running], redis_url: str, redis_server: RedisServer
) -> None:
    """It would be a task that is destroyed though it is pending."""
    sidecar = serve(redis_url, timeout=5.0)
    told: list[object] = []
    sidecar.loop.call_soon_threadsafe(sidecar.loop.set_exception_handler, lambda _, fault: told.append(fault))
    with redis_server.frozen():
        with sidecar.raw() as worker:
            worker.sendall(b"".join(pack(b"FD.COMPLETE", b"%d" % number, b"w") for number in range(1000)))
            turns = sidecar.namespaces.turns
            await wait_until(lambda: turns.brief.taken == 256, description="the first ones have begun")
        sidecar.stop()
    gc.collect()
    assert not told


async def test_what_an_owner_of_a_client_has_sent_is_done_by_the_rules_of_its_pipeline() -> None:
    """Fault: a store's settlement was dropped; and FD.COMPLETE in a MULTI ran, because the MULTI was dropped."""
    async with Dedup(MemoryStore(), codec=RawCodec()) as root:
        clients: set[RespConnection] = set()
        connection = RespConnection(Namespaces(root), clients, WITH_STORES)
        transport = Transport(connection)
        claims = [await root.claim(key) for key in ("stored", "in a MULTI", "behind it", "behind QUIT")]
        (wire, owner), names = claims[0].settlement.held_key, [claim.owner.encode() for claim in claims]
        ops = [ReleaseOp(wire, owner, claims[0].fence)]
        sent = [
            pack_run(RUNS[Verb.RELEASE], ops, reasons=False, patience=False),
            pack(b"MULTI"),
            pack(b"FD.RELEASE", b"in a MULTI", names[1]),
            pack(b"EXEC"),
            pack(b"FD.RELEASE", b"behind it", names[2]),
            pack(b"QUIT"),
            pack(b"FD.RELEASE", b"behind QUIT", names[3]),
        ]
        connection.data_received(b"".join([*40 * [pack(b"PING")], *sent]))
        transport.lose()
        await wait_until(lambda: not clients, description="all has ended")
        await wait_until(lambda: not root.pending, description="the store has answered")
        records = [await root.get(claim.key) for claim in claims]
        assert [each.state for each in records if each] == [
            "released",
            "processing",
            "released",
            "processing",
        ]


async def test_what_an_owner_has_sent_is_done_though_a_write_to_its_client_fails() -> None:
    """Fault: a reply that failed ended the connection before the rest of its stream was read."""
    async with Dedup(MemoryStore(), codec=RawCodec()) as root:
        claim, clients = await root.claim("k"), set[RespConnection]()
        commands = {**WITH_STORES, b"LATER": lambda *_: Slot()}
        here, there = socket.socketpair()
        loop = asyncio.get_running_loop()
        _, connection = await loop.connect_accepted_socket(
            lambda: RespConnection(Namespaces(root), clients, commands), there
        )
        with here:
            here.sendall(pack(b"LATER"))
            await wait_until(lambda: connection.places, description="it is read")
            here.sendall(pack(b"FD.RELEASE", b"k", claim.owner.encode()))
        connection.answer(connection.places[0], OK)
        await wait_until(lambda: not clients, description="all has ended")
        record = await root.get("k")
        assert record is not None
        assert record.state == "released"


@pytest.mark.parametrize("given_up", [False, True])
async def test_what_a_client_has_sent_before_it_went_is_counted_at_once(given_up: bool) -> None:
    """Fault: 150 clients that filled their sockets' buffers and closed took 180 MB beyond the limit."""
    async with Dedup(MemoryStore(), codec=RawCodec()) as root:
        clients, (here, there) = set[RespConnection](), socket.socketpair()
        connection = RespConnection(Namespaces(root), clients, WITH_STORES)
        transport = Transport(connection)
        there.setblocking(False)
        transport.get_extra_info = lambda name, default=None: there  # type: ignore[method-assign]
        with here, there:
            here.sendall(pack(b"PING", bytes(100_000)))
            if given_up:
                connection.cut()
            transport.lose()
        memory = connection.namespaces.memory.requests
        assert (memory.taken > 100_000) is not given_up
        await wait_until(lambda: not clients, description="all has ended")
        assert not memory.taken
