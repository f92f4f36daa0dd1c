"""What a sidecar's clients send, leave unread or wait for takes bounded memory."""

from __future__ import annotations

import fcntl
import re
import socket
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import orjson
import pytest

from ..fixtures import fixture_of
from ..servers import RedisServer
from ..sidecar.attacks import RESULT, connect, peak, post, push, settle
from ..sidecar.fuzz import pack
from ..sidecar.running import Sidecar, figure
from ..waiting import wait_until

# 1,000 clients that sent a request of 1 MB but for its end took 1 GB; 40 that pipelined the shortest ones
# 565 MB, and one that pipelined 1,000 with many headers 550 MB.


CLIENTS = 40
IN_ALL = 4 * 1024 * 1024
WAITS = b'{"key":"held","wait":30000}'
HEAD = b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 100
ATTACKS = {
    "a body without its end": post("/v1/batch", b" " * 900_000)[:-1],
    "a command without its end": b"*2\r\n$4\r\nPING\r\n$1000000\r\n" + b"x" * 900_000,
    "a claim with a large body that waits": post(
        "/v1/claims", b'{"key":"held","wait":30000,"fingerprint":"%b"}' % (b"x" * 900_000)
    ),
    "heads behind one that waits": post("/v1/claims", WAITS) + (HEAD + b"\r\n") * 1000,
    "requests behind one that waits": post("/v1/claims", WAITS) + b"GET / HTTP/1.1\r\n\r\n" * 10_000,
    "commands behind one that waits": pack(b"FD.CLAIM", b"held", b"WAIT", b"30000") + pack(b"PING") * 13_000,
}


sidecar = fixture_of(Sidecar, "--grace", "0.2", config=f"[limits]\nrequests_in_all = {IN_ALL}\n")


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
async def test_unfinished_and_waiting_requests_take_bounded_memory(attack: bytes, sidecar: Sidecar) -> None:
    """The clients with the most are hung up on; one with a short request is served beside them."""
    before = peak(sidecar)
    with ExitStack() as stack, sidecar.http() as bystander, connect(sidecar.path) as holder:
        holder.sendall(pack(b"FD.CLAIM", b"held"))
        assert holder.recv(100).startswith(b"*7\r\n$8\r\nacquired")
        for number in range(CLIENTS):
            raw = stack.enter_context(connect(sidecar.path))
            push(raw, attack)
            assert bystander.post("/v1/claims", json={"key": str(number)}).status_code == 201
        await wait_until(lambda: "whose requests take" in sidecar.log, description="some are hung up on")
        assert peak(sidecar) - before < IN_ALL // 2**20 + 20


async def test_what_clients_sent_before_they_went_takes_no_memory(sidecar: Sidecar) -> None:
    """150 clients, one after another, that sent a command of 0.9 MB but for its end left 131 MB behind."""
    before = peak(sidecar)
    for number in range(CLIENTS):
        with connect(sidecar.path) as raw:
            push(raw, ATTACKS["a command without its end"])
        await wait_until(
            lambda: figure(sidecar.figures(), "fastdedup_connections") <= 1,
            description=f"client {number} has gone",
        )
    assert peak(sidecar) - before < IN_ALL // 2**20 + 20


# 1,024 pipelined claims of a key with a large result, unread, took 770 MB; one batch of 1,000 of them 810
# MB.


KEYS = [f"key:{number}" for number in range(12)]
REPLIES_IN_ALL = 12 * 1024 * 1024
ON_THE_WAY = 4 * 4
"""MiB of results that come from the store beside those that are counted: four batches, each of 4 MiB at most."""


@pytest.fixture(scope="module")
def narrow_sidecar(server: RedisServer) -> Iterator[Sidecar]:
    """A sidecar whose store has a large result under each of the keys.

    Other tests here empty the worker's server when they end, and may run between those that need the results.
    """
    config = f"allow_stores = true\n[limits]\nreplies_in_all = {REPLIES_IN_ALL}\n"
    options = ("--url", server.url, "--namespace", "unread", "--ttl", "300", "--timeout", "5")
    with Sidecar(*options, config=config) as narrow_sidecar:
        settle(narrow_sidecar.path, KEYS, RESULT)
        yield narrow_sidecar


def answered(narrow_sidecar: Sidecar) -> float:
    return figure(narrow_sidecar.figures(), "fastdedup_operations_total", outcome="succeeded")


def read_results(raw: Any, count: int) -> bytes:
    """Read as many results as there are; return all that was read."""
    data = bytearray()
    while len(data) < count * RESULT:
        more = raw.recv(1 << 20)
        assert more, bytes(data[-200:])
        data += more
    return bytes(data)


def unread_by_peer(raw: socket.socket) -> int:
    """Return the bytes, and the kernel's own beside them, that the other end has not read."""
    return int.from_bytes(fcntl.ioctl(raw, termios.TIOCOUTQ, bytes(4)), sys.byteorder)


async def test_unread_replies_take_bounded_memory(narrow_sidecar: Sidecar) -> None:
    before, so_far = peak(narrow_sidecar), answered(narrow_sidecar)
    with connect(narrow_sidecar.path) as raw:
        raw.sendall(pack(b"FD.CLAIM", KEYS[0].encode()) * 300)
        await wait_until(lambda: answered(narrow_sidecar) == so_far + 300, description="all are answered")
        assert peak(narrow_sidecar) - before < REPLIES_IN_ALL // 2**20 + ON_THE_WAY
        assert read_results(raw, 300).count(b"succeeded") == 300
        assert peak(narrow_sidecar) - before < REPLIES_IN_ALL // 2**20 + ON_THE_WAY


async def test_replies_without_room_come_later_and_in_order(narrow_sidecar: Sidecar) -> None:
    asked = KEYS * 6
    with connect(narrow_sidecar.path) as raw:
        for command in (b"FD.CLAIM", b"FD.GET"):
            raw.sendall(b"".join(pack(command, key.encode()) for key in asked) + pack(b"PING"))
            read = read_results(raw, len(asked))
            while not read.endswith(b"+PONG\r\n"):
                read += raw.recv(1 << 20)
            assert read.count(b"succeeded") == len(asked)
            if command == b"FD.GET":
                assert [key.decode() for key in re.findall(rb'"key":"([^"]+)', read)] == asked


async def test_clients_that_read_nothing_make_room_for_others(narrow_sidecar: Sidecar) -> None:
    """The bystander is refused for a moment, until the others have read nothing for a second.

    The others' replies wait where there is no room for them. Before, the sidecar closed 20 of their connections in
    one turn of the loop, and their bytes were freed in a later turn.
    """
    before = peak(narrow_sidecar)
    with ExitStack() as stack:
        others = [stack.enter_context(connect(narrow_sidecar.path)) for _ in range(60)]
        for each in others:
            each.sendall(pack(b"FD.CLAIM", KEYS[0].encode()) * 8)

        def answer_to(*words: bytes) -> bytes:
            with connect(narrow_sidecar.path) as raw:
                raw.sendall(pack(*words))
                return raw.recv(100)

        def is_served() -> bool:
            return answer_to(b"FD.CLAIM", KEYS[1].encode()).startswith(b"*7\r\n$9\r\nsucceeded")

        # If the sidecar stood still for a second while they came, the late ones take the room of the early ones, one
        # after the other, each in some turns of the loop. That is over if 20 answers come without another one.
        hung_up = [-1]

        def have_come() -> bool:
            for _ in range(20):
                assert answer_to(b"FD.GET", b"nothing").startswith((b"$-1", b"_"))
            hung_up.append(narrow_sidecar.log.count("hung up on a client"))
            return not any(map(unread_by_peer, others)) and hung_up[-1] == hung_up[-2]

        await wait_until(have_come, description="no other client is hung up on")
        await wait_until(is_served, description="a client that reads is served")
        assert peak(narrow_sidecar) - before < REPLIES_IN_ALL // 2**20 + 24
        assert narrow_sidecar.log.count("hung up on a client") - hung_up[-1] < 10


def test_a_batch_refuses_the_results_that_have_no_room(narrow_sidecar: Sidecar) -> None:
    before = peak(narrow_sidecar)
    asks = orjson.dumps(
        [{"op": "claim", "key": KEYS[0]}] * 300 + [{"op": "claim", "key": "fresh", "lease": 1}]
    )
    with connect(narrow_sidecar.path) as raw:
        raw.sendall(post("/v1/batch", asks).replace(b"host: x", b"host: x\r\nconnection: close"))
        answer = b"".join(iter(lambda: raw.recv(1 << 20), b""))
    items = orjson.loads(answer.partition(b"\r\n\r\n")[2])
    statuses = [item["status"] for item in items]
    assert statuses == [200] * 31 + [503] * 269 + [201]
    assert "limits.replies" in items[100]["body"]["detail"]
    assert peak(narrow_sidecar) - before < 48


def test_a_batch_of_a_store_refuses_what_has_no_room(narrow_sidecar: Sidecar) -> None:
    before = peak(narrow_sidecar)
    wires = [f"unread:={key}".encode() for key in KEYS] * 6
    with connect(narrow_sidecar.path) as raw:
        raw.sendall(pack(b"FD.RUN", b"read", b"%d" % len(wires), *wires) + pack(b"PING"))
        read = read_results(raw, 31)
        while not read.endswith(b"+PONG\r\n"):
            read += raw.recv(1 << 20)
    assert read.count(b"limits.replies") == len(wires) - 32
    assert peak(narrow_sidecar) - before < 64


# 60 HTTP clients that asked for a large result and read nothing took 34 MB, where 12 MiB were allowed.


ANSWERS_IN_ALL = 12 * 1024 * 1024
ASK = post("/v1/claims", b'{"key":"k"}')


@pytest.fixture
def http_sidecar(redis_url: str) -> Iterator[Sidecar]:
    """A sidecar whose store has a large result under a key."""
    options = ("--url", redis_url, "--namespace", "unread-http", "--ttl", "300", "--timeout", "5")
    with Sidecar(*options, config=f"[limits]\nreplies_in_all = {ANSWERS_IN_ALL}\n") as http_sidecar:
        settle(http_sidecar.path, ["k"], RESULT)
        yield http_sidecar


async def test_unread_answers_over_http_stay_within_their_limit(http_sidecar: Sidecar) -> None:
    """The bystander is refused for a moment, until the others have read nothing for a second."""
    before = peak(http_sidecar)
    statuses: list[int] = []
    with ExitStack() as stack, http_sidecar.http() as bystander:
        for _ in range(60):
            stack.enter_context(connect(http_sidecar.path)).sendall(ASK * 8)

        def is_served() -> bool:
            statuses.append(bystander.post("/v1/claims", json={"key": "k"}).status_code)
            return statuses[-1] == 200

        await wait_until(is_served, description="a client that reads is served")
        assert set(statuses) <= {503, 200}
        assert peak(http_sidecar) - before < ANSWERS_IN_ALL // 2**20 + 10


def test_answers_behind_unread_ones_come_later_and_whole(http_sidecar: Sidecar) -> None:
    with connect(http_sidecar.path) as raw:
        raw.sendall(ASK * 40)
        read = bytearray()
        while read.count(b'"degraded":false}') < 40:
            more = raw.recv(1 << 20)
            assert more, bytes(read[-200:])
            read += more
    assert read.count(b"HTTP/1.1 200 OK\r\n") == 40
    assert read.count(b"x" * RESULT) == 40


# 100 RESP clients with 1,000 waiting claims each took 970 MB, and a bystander waited for more than 5 s. 32
# HTTP clients with a batch of 1,000 named claims of large results took 321 MB; such batches also opened the
# breaker.


WAITING = b"".join(pack(b"FD.CLAIM", b"held", b"WAIT", b"30000") for _ in range(1000))


@pytest.fixture
def fresh(redis_url: str) -> Iterator[Sidecar]:
    """A sidecar of its own, for tests of its memory."""
    options = ("--url", redis_url, "--namespace", "work", "--ttl", "60", "--timeout", "20", "--grace", "0.1")
    with Sidecar(*options) as working_sidecar:
        longest_claim(working_sidecar.path, 1)
        yield working_sidecar


working_sidecar = fixture_of(Sidecar, "--grace", "0.1", scope="module")


def longest_claim(path: Path, times: int) -> float:
    """Claim so many new keys one after another; return the longest time in seconds."""
    longest = 0.0
    with connect(path) as raw:
        for number in range(times):
            began = time.monotonic()
            raw.sendall(pack(b"FD.CLAIM", b"new %d %d" % (number, id(raw))))
            assert raw.recv(1000).startswith(b"*7\r\n$8\r\nacquired")
            longest = max(longest, time.monotonic() - began)
    return longest


def test_waiting_commands_take_bounded_memory_and_time(fresh: Sidecar) -> None:
    """20,000 of them took 190 MB."""
    before = peak(fresh)
    with ExitStack() as stack, connect(fresh.path) as holder:
        holder.sendall(pack(b"FD.CLAIM", b"held"))
        holder.recv(1000)
        for _ in range(20):
            push(stack.enter_context(connect(fresh.path)), WAITING)
        assert longest_claim(fresh.path, 20) < 15.0
        assert peak(fresh) - before < 60


def test_who_waits_keeps_nobody_from_completing(working_sidecar: Sidecar) -> None:
    """The completion stands behind 1,000 claims that wait for it, on the same connection."""
    with connect(working_sidecar.path) as raw:
        raw.sendall(pack(b"FD.CLAIM", b"mine"))
        owner = raw.recv(1000).split(b"\r\n")[4]
        waits = pack(b"FD.CLAIM", b"mine", b"WAIT", b"15000") * 1000
        raw.sendall(waits + pack(b"FD.COMPLETE", b"mine", owner, b"done"))
        read = b""
        while not read.endswith(b"+OK\r\n"):
            read += raw.recv(1 << 20)
    assert read.count(b"$4\r\ndone\r\n") == 1000


def test_a_wait_counts_from_its_arrival(working_sidecar: Sidecar) -> None:
    """Of 320 claims on one connection only 64 wait at once: in five rows of 2 s they would take 10 s."""
    with connect(working_sidecar.path) as raw:
        raw.sendall(pack(b"FD.CLAIM", b"late"))
        raw.recv(1000)
        began = time.monotonic()
        raw.sendall(pack(b"FD.CLAIM", b"late", b"WAIT", b"2000") * 320)
        read = b""
        while read.count(b"in_progress") < 320:
            read += raw.recv(1 << 20)
    assert 2.0 <= time.monotonic() - began < 9.0


def test_batches_take_bounded_memory_and_time(fresh: Sidecar) -> None:
    """16 of them took 200 MB, and the store's silence of 2 s refused everybody."""
    settle(fresh.path, [f"k{number}" for number in range(60)], RESULT)
    before = peak(fresh)
    asks = [{"op": "claim", "key": f"k{number % 60}", "owner": f"o{number}"} for number in range(1000)]
    with ExitStack() as stack:
        for _ in range(16):
            push(stack.enter_context(connect(fresh.path)), post("/v1/batch", orjson.dumps(asks)))
        assert longest_claim(fresh.path, 5) < 15.0
        waiting = stack.enter_context(fresh.http())
        assert waiting.post("/v1/batch", json=[{"op": "claim", "key": "last"}]).json()[0]["status"] == 201
    assert peak(fresh) - before < 140
    assert "breaker opened" not in fresh.log


def test_waiting_batches_leave_room_for_others(working_sidecar: Sidecar) -> None:
    asks = [{"op": "claim", "key": "long", "wait": 20000}] * 1000
    with ExitStack() as stack, working_sidecar.http() as http:
        assert http.post("/v1/claims", json={"key": "long"}).status_code == 201
        for _ in range(20):
            push(stack.enter_context(connect(working_sidecar.path)), post("/v1/batch", orjson.dumps(asks)))
        began = time.monotonic()
        assert http.post("/v1/batch", json=[{"op": "claim", "key": "other"}]).json()[0]["status"] == 201
        assert time.monotonic() - began < 15.0


def test_commands_of_one_client_take_turns_with_others(working_sidecar: Sidecar) -> None:
    """They are answered in order, whole, and also where the client sends nothing more."""
    with connect(working_sidecar.path) as raw:
        raw.sendall(b"".join(pack(b"PING", b"%d" % number) for number in range(2000)))
        raw.shutdown(socket.SHUT_WR)
        read = b""
        while more := raw.recv(1 << 20):
            read += more
    assert [int(line) for line in read.split(b"\r\n")[1::2]] == list(range(2000))
