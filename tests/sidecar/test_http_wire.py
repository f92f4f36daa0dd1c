"""HTTP as it travels: connections, pieces, limits and clients that go away, through raw sockets."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from fastdedup import LocalLRU, Outcome, Record
from fastdedup.sidecar.http.protocol import HEAD_BYTES
from fastdedup.sidecar.limits import Limits
from fastdedup.stores.redis.scripts import pack

from ..fixtures import fixture_with
from ..programs import until
from ..servers import RedisServer
from .conftest import DEADLINE, Running, Serve


def request(body: Any, path: str = "/v1/claims", *headers: str) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "host: sidecar", f"content-length: {len(content)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + content


def read(
    connection: socket.socket, count: int = 1, kept: bytes = b""
) -> list[tuple[int, dict[str, str], Any]]:
    """Read so many answers."""
    answers = []
    while len(answers) < count:
        head, found, rest = kept.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:]) if found else {}
        size = int(headers.get("content-length", 0))
        if found and len(rest) >= size:
            answers.append((int(head.split()[1]), headers, json.loads(rest[:size] or b"null")))
            kept = rest[size:]
        else:
            piece = connection.recv(65536)
            assert piece, f"closed after {answers}, {kept!r}"
            kept += piece
    assert not kept
    return answers


def closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(65536) == b""
    except ConnectionResetError:
        return True


def turned_down(connection: socket.socket, ask: bytes) -> tuple[int, str]:
    """Send what is refused; return the status and the problem's name, and see that the connection is closed."""
    connection.sendall(ask)
    ((status, headers, facts),) = read(connection)
    assert headers["connection"] == "close"
    assert closed(connection)
    return status, facts["type"].removeprefix("urn:fastdedup:problem:")


def refused(connection: socket.socket, *pieces: bytes) -> bool:
    """Send the pieces, the last one often if there are several; True once the other side does not take them."""
    try:
        for piece in (*pieces, *pieces[1:] * 1000):
            connection.sendall(piece)
    except OSError:
        return True
    return False


def gate_request(query: str = "") -> bytes:
    """A proxy asks for a request of its client's, which has the key `GATE_KEY`."""
    return (
        f"GET /v1/gate?principal=everyone{query} HTTP/1.1\r\nhost: x\r\nidempotency-key: k\r\n\r\n".encode()
    )


GATE_KEY = "GATE *|-|k"
RESP_CLAIM = pack("FD.CLAIM", "k")


def record(sidecar: Running, key: str) -> Record | None:
    return sidecar.call(sidecar.namespaces.root.get(key))


def until_it_is(state: str, sidecar: Running, key: str = "k") -> None:
    until(lambda: (found := record(sidecar, key)) is not None and found.state == state, f"{key} is {state}")


raw = fixture_with(lambda sidecar: sidecar.raw())


# uvicorn's: shown, as they are part of what is promised


def test_a_connection_is_kept(raw: socket.socket) -> None:
    for number in range(3):
        raw.sendall(request({"key": f"k{number}"}))
        ((status, headers, _),) = read(raw)
        assert status == 201
        assert "connection" not in headers
        assert "date" in headers


def test_a_connection_is_closed_on_demand(sidecar: Running) -> None:
    with sidecar.raw() as raw:
        raw.sendall(request({"key": "k"}, "/v1/claims", "connection: close"))
        ((status, headers, _),) = read(raw)
        assert (status, headers["connection"]) == (201, "close")
        assert closed(raw)
    with sidecar.raw() as raw:
        raw.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert read(raw)[0][0] == 200
        assert closed(raw)


def test_pipelined_requests_are_answered_in_order(raw: socket.socket) -> None:
    asks = [request({"key": "a"}), b"GET /healthz HTTP/1.1\r\n\r\n", request({"key": "a"}), request(b"{")]
    asks += [
        request({"key": "b", "wait": 1}),
        request([{"op": "claim", "key": "c"}], "/v1/batch"),
        request({}),
    ]
    raw.sendall(b"".join(asks))
    assert [status for status, *_ in read(raw, 7)] == [201, 200, 409, 400, 201, 200, 422]
    raw.sendall(request({"key": "z"}))
    assert read(raw)[0][0] == 201


def test_many_pipelined_requests_are_answered(raw: socket.socket) -> None:
    raw.sendall(b"".join(request({"key": f"k{number}"}) for number in range(2000)))
    assert {status for status, *_ in read(raw, 2000)} == {201}
    raw.sendall(request(b"{") * 3000)  # answered at once, each: no deeper for that
    assert {status for status, *_ in read(raw, 3000)} == {400}


@pytest.mark.parametrize("expect", ["100-continue", "100-Continue "])
def test_a_client_may_ask_before_it_sends(raw: socket.socket, expect: str) -> None:
    content = b'{"key":"k"}'
    head = request(content, "/v1/claims", f"expect: {expect}").removesuffix(content)
    raw.sendall(head)
    assert raw.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
    raw.sendall(content)
    assert read(raw)[0][0] == 201


def test_a_client_of_http_1_0_gets_no_leave_to_send(raw: socket.socket) -> None:
    """It would take the leave for the answer."""
    ask = request({"key": "k", "wait": 1}, "/v1/claims", "expect: 100-continue")
    raw.sendall(ask.replace(b"HTTP/1.1", b"HTTP/1.0"))
    assert read(raw)[0][0] == 201
    assert closed(raw)


def test_a_client_that_asks_hears_that_it_is_too_much(serve: Serve) -> None:
    sidecar = serve(limits=Limits(frame=1000))
    with sidecar.raw() as raw:
        ask = b"POST /v1/claims HTTP/1.1\r\ncontent-length: 5000\r\nexpect: 100-continue\r\n\r\n"
        assert turned_down(raw, ask)[0] == 413


@pytest.mark.parametrize("coding", ["chunked", "Chunked  "])
def test_a_body_comes_in_chunks(raw: socket.socket, coding: str) -> None:
    """Spaces may follow the value of a header."""
    raw.sendall(f"POST /v1/claims HTTP/1.1\r\ntransfer-encoding: {coding}\r\n\r\n".encode())
    for piece in (b'{"key":', b'"k"}'):
        raw.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
    raw.sendall(b"0\r\n\r\n")
    assert read(raw)[0][0] == 201


@pytest.mark.parametrize("at_once", [True, False])
def test_a_trailer_is_no_header(sidecar: Running, at_once: bool) -> None:
    """It counted if it came in the same piece as the headers: the gate took a principal that no proxy has checked."""
    head = b"%b HTTP/1.1\r\ntransfer-encoding: chunked\r\nidempotency-key: k\r\n\r\n"
    gate = head % b"GET /v1/gate?principal=x-user&deny=own", b"0\r\nx-user: ann\r\n\r\n"
    claim = head % b"POST /v1/claims", b'b\r\n{"key":"k"}\r\n0\r\ncontent-type: text/plain\r\n\r\n'
    for pieces, status in ((gate, 400), (claim, 201)):
        with sidecar.raw() as raw:
            for piece in (b"".join(pieces),) if at_once else pieces:
                raw.sendall(piece)
            assert read(raw)[0][0] == status


@pytest.mark.parametrize("at_once", [True, False])
def test_a_trailer_that_ends_the_connection_is_refused(sidecar: Running, at_once: bool) -> None:
    """The parser dropped what followed: the client of the next request waited until the connection was idle."""
    head = b"POST /v1/claims HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"
    body = b'b\r\n{"key":"k"}\r\n0\r\nConnection: close\r\n\r\n'
    pieces = [head, body + request({"key": "next"})]
    with sidecar.raw() as raw:
        for piece in (b"".join(pieces),) if at_once else pieces:
            raw.sendall(piece)
        ((status, _, facts),) = read(raw)
    assert (status, facts["type"]) == (400, "urn:fastdedup:problem:bad-request")
    assert "trailer" in facts["detail"]


def test_a_request_comes_byte_by_byte(raw: socket.socket) -> None:
    for byte in request({"key": "k"}):
        raw.sendall(bytes((byte,)))
    assert read(raw)[0][0] == 201


# Limits


def test_headers_have_a_limit(serve: Serve) -> None:
    sidecar = serve()
    for head in (
        b"GET /healthz HTTP/1.1\r\n" + b"a: b\r\n" * (HEAD_BYTES // 6),
        b"GET /healthz HTTP/1.1\r\na: " + b"b" * HEAD_BYTES + b"\r\n\r\n",
        b"GET /" + b"a" * HEAD_BYTES * 2,
    ):
        with sidecar.raw() as raw:
            assert turned_down(raw, head) == (431, "headers-too-large")


def test_what_chunks_carry_beside_the_body_has_a_limit(serve: Serve) -> None:
    chunked = b"POST /v1/claims HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"
    sidecar = serve()
    for rest in (b"1;" + b"x" * 10 * HEAD_BYTES, b'1\r\n{\r\n0\r\na: "' + b"x" * 10 * HEAD_BYTES):
        with sidecar.raw() as raw:
            raw.sendall(chunked)
            assert refused(raw, rest, b"x" * 10_000)


@pytest.mark.parametrize(
    "start", [b"G", b"POST /v1/claims HTTP/1.1\r\na: b\r\n", request({"key": "kk"})[:-3]]
)
def test_a_request_has_to_arrive_in_time(serve: Serve, start: bytes) -> None:
    sidecar = serve(limits=Limits(request_timeout=0.1))
    with sidecar.raw() as raw:
        assert turned_down(raw, start) == (408, "request-timeout")


def test_drops_do_not_keep_a_request_alive(serve: Serve) -> None:
    sidecar = serve(limits=Limits(request_timeout=0.2))
    with sidecar.raw() as raw:
        raw.sendall(b"GET /healthz HTTP/1.1\r\n")
        until(lambda: refused(raw, b"a: b\r\n"), "the sidecar closes")


def test_an_idle_connection_is_closed(serve: Serve) -> None:
    sidecar = serve(limits=Limits(idle_timeout=0.2))
    with sidecar.raw() as raw:
        raw.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        assert read(raw)[0][0] == 200
        assert closed(raw)
    with sidecar.raw() as raw:
        raw.sendall(b"\r\n")
        assert closed(raw)


def test_a_long_wait_is_not_idle(serve: Serve) -> None:
    sidecar = serve(limits=Limits(idle_timeout=0.2, request_timeout=0.2))
    with sidecar.raw() as raw:
        raw.sendall(request({"key": "k"}))
        read(raw)
        raw.sendall(request({"key": "k", "wait": 300}))
        assert read(raw)[0][0] == 409


def test_a_client_that_does_not_read_is_closed(serve: Serve) -> None:
    sidecar = serve(limits=Limits(request_timeout=0.3, unread=64 * 1024))
    with sidecar.raw() as raw:
        raw.setblocking(False)
        ask = b"GET /openapi.json HTTP/1.1\r\n\r\n"
        sent = 0

        def gone() -> bool:
            nonlocal sent
            try:
                sent += raw.send(ask * 100)
            except BlockingIOError:
                return False
            except OSError:
                return True
            return False

        until(gone, "the sidecar closes")
        # What it had taken in is bounded, however long it was sent to.
        assert sent < 5_000_000
    until(lambda: not sidecar.server.connections, "it forgets the connection")


@pytest.mark.parametrize("before", [1, 8], ids=["while it closes", "before it closes"])
def test_a_client_that_does_not_read_its_last_answer_is_closed(serve: Serve, before: int) -> None:
    sidecar = serve(limits=Limits(request_timeout=0.2))
    with sidecar.raw() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        many = [{"op": "claim", "key": f"k{number}"} for number in range(1000)] * 1
        raw.sendall(request(many, "/v1/batch") * before + request(many, "/v1/batch", "connection: close"))
        until(lambda: sidecar.server.connections, "it has accepted the connection")
        until(lambda: not sidecar.server.connections, "it forgets the connection")


@pytest.mark.parametrize(
    "garbage", [b"\x00\x01\x02", b"GET\r\n\r\n", b"POST /v1/claims HTTP/1.1\r\nx\r\n\r\n", b"A" * 99]
)
def test_what_is_no_http_is_turned_down(raw: socket.socket, garbage: bytes) -> None:
    assert turned_down(raw, garbage + b"\r\n\r\n") == (400, "bad-request")


@pytest.mark.parametrize("path", ["/healthz", "/v1/gate?principal=everyone"])
def test_a_request_with_two_hosts_is_turned_down(raw: socket.socket, path: str) -> None:
    """A proxy may have looked at the other one: RFC 9112, section 3.2."""
    ask = f"GET {path} HTTP/1.1\r\nhost: a\r\nidempotency-key: k\r\nHost: b\r\n\r\n"
    assert turned_down(raw, ask.encode()) == (400, "bad-request")


def test_garbage_waits_for_the_answers_before_it(raw: socket.socket) -> None:
    raw.sendall(request({"key": "a"}) + request({"key": "b", "wait": 5}) + b"\x00garbage\r\n\r\n")
    assert [status for status, *_ in read(raw, 3)] == [201, 201, 400]
    assert closed(raw)


def test_a_broken_body_behind_another_request_is_dropped(raw: socket.socket) -> None:
    broken = b"POST /v1/tokens HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"
    raw.sendall(request({"key": "a", "wait": 5}) + broken)
    assert [status for status, *_ in read(raw, 2)] == [201, 400]
    assert closed(raw)


def test_an_upgrade_is_not_taken(raw: socket.socket) -> None:
    upgrade = ("connection: Upgrade", "upgrade: h2c")
    raw.sendall("\r\n".join(["GET /healthz HTTP/1.1", *upgrade, "", ""]).encode())
    assert read(raw)[0][0] == 200
    raw.sendall(request({"key": "a"}, "/v1/claims", *upgrade))
    assert read(raw)[0][0] == 400
    assert closed(raw)


def test_what_follows_an_upgrade_is_answered(raw: socket.socket) -> None:
    upgrade = b"GET /healthz HTTP/1.1\r\nconnection: Upgrade\r\nupgrade: h2c\r\n\r\n"
    raw.sendall(upgrade * 2 + request({"key": "a"}) + upgrade + b"GET /readyz HTTP/1.1\r\n\r\n")
    assert [status for status, *_ in read(raw, 5)] == [200, 200, 201, 200, 200]


@pytest.mark.parametrize("size", ["content-length: 26", "transfer-encoding: chunked"])
def test_the_body_beside_an_upgrade_is_not_taken_for_a_request(raw: socket.socket, size: str) -> None:
    lines = ["DELETE /v1/records?key=a HTTP/1.1", "connection: Upgrade", "upgrade: h2c", size, "", ""]
    raw.sendall("\r\n".join(lines).encode() + b"GET /healthz HTTP/1.1\r\n\r\n")
    assert read(raw)[0][0] == 400
    assert closed(raw)


@pytest.mark.parametrize(
    "lines",
    [
        ["1.1", "transfer-encoding: gzip, chunked"],
        ["1.1", "transfer-encoding: gzip", "transfer-encoding: chunked"],
        ["1.1", "transfer-encoding: gzip"],
        ["1.1", "transfer-encoding: identity"],
        ["1.1", "transfer-encoding: chunked, chunked"],
        ["1.1", "transfer-encoding: chunked", "transfer-encoding: chunked"],
        ["1.1", "transfer-encoding: ,chunked"],
        ["1.1", "transfer-encoding: chunked", "content-length: 5"],
        ["1.1", "content-length: 5", "transfer-encoding: chunked"],
        ["1.1", "content-length: 5", "content-length: 5"],
        ["0.9", "transfer-encoding: chunked"],
        ["2.0", "transfer-encoding: chunked"],
        ["1.0", "transfer-encoding: chunked"],
        ["1.0", "transfer-encoding: chunked", "connection: keep-alive"],
    ],
    ids=" / ".join,
)
def test_a_body_in_another_coding_than_chunks_is_refused(sidecar: Running, lines: list[str]) -> None:
    """The request has no effect, and what follows is not taken for a request."""
    head = "\r\n".join([f"DELETE /v1/records?key=a HTTP/{lines[0]}", *lines[1:], "", ""])
    ask = head.encode() + b"5\r\nhello\r\n0\r\n\r\nGET /healthz HTTP/1.1\r\n\r\n"
    assert removes_nothing(sidecar, ask) == (400, "bad-request")


def test_a_request_that_breaks_off_in_the_same_data_has_no_effect(sidecar: Running) -> None:
    """It was answered 400, and its record was removed after that."""
    ask = b"DELETE /v1/records?key=a HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"
    assert removes_nothing(sidecar, ask)[0] == 400


def removes_nothing(sidecar: Running, ask: bytes) -> tuple[int, str]:
    """See that a request to remove the record "a" is turned down, and leaves it there; see `turned_down`."""
    dedup = sidecar.namespaces.root
    assert sidecar.call(dedup.claim("a")).acquired
    with sidecar.raw() as raw:
        answer = turned_down(raw, ask)
    assert sidecar.call(dedup.get("a")) is not None
    return answer


# Clients that go away


@pytest.fixture
def frozen(serve: Serve) -> Any:
    """A sidecar whose redis-server does not answer until thawed."""
    server = RedisServer().start()
    sidecar = serve(server.url, timeout=15.0)
    sidecar.call(sidecar.namespaces.root.get("warm"))
    yield sidecar, server
    server.stop()


def waiting(sidecar: Running) -> int:
    return sidecar.namespaces.root.gate.connection.engine.pending  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("ask", "state"),
    [
        (request({"key": "k"}), "released"),
        (request({"key": "k", "owner": "mine"}), "processing"),
        (request([{"op": "claim", "key": "k"}, {"op": "claim", "key": "l"}], "/v1/batch"), "released"),
        (gate_request(), "released"),
        (RESP_CLAIM, "released"),
    ],
    ids=["drawn owner", "own owner", "batch", "gate", "RESP"],
)
def test_a_claim_that_nobody_gets_is_released(frozen: Any, ask: bytes, state: str) -> None:
    sidecar, server = frozen
    server.freeze()
    with sidecar.raw() as raw:
        raw.sendall(ask)
        until(lambda: waiting(sidecar), "the claim is on its way")
    until(lambda: not sidecar.server.connections, "the client is gone")
    server.thaw()
    until_it_is(state, sidecar, GATE_KEY if ask == gate_request() else "k")
    assert not waiting(sidecar)


async def working(*names: str) -> list[Any]:
    """Return the tasks of these names in the event loop."""
    return [task for task in asyncio.all_tasks() if task.get_name() in names]


@pytest.mark.parametrize("is_batch", [False, True])
def test_a_token_whose_use_no_caller_is_told_of_can_be_used(frozen: Any, is_batch: bool) -> None:
    """The use took effect though its client had gone: the token was lost for good."""
    sidecar, server = frozen
    tokens = sidecar.namespaces.root.tokens
    token = sidecar.call(tokens.issue())
    server.freeze()
    with sidecar.raw() as raw:
        batch = request([{"op": "consume", "token": token}, {"op": "issue"}], "/v1/batch")
        raw.sendall(batch if is_batch else request({"token": token}, "/v1/tokens/consume"))
        until(lambda: waiting(sidecar), "the use is on its way")
    # Before the store's timeout, which also takes a use back.
    works = "fastdedup-request", "fastdedup-batch"

    def is_cancelled() -> bool:
        return len(sidecar.call(working(*works))) == is_batch  # the token of a batch is issued all the same

    until(is_cancelled, "its client is gone, so it is cancelled", deadline=10.0)
    server.thaw()
    until(lambda: sidecar.call(tokens.consume(token)) is Outcome.ACQUIRED, "the use is taken back")


@pytest.mark.parametrize("ended", ["consume", "claim"])
def test_a_batch_settles_though_its_client_hangs_up(frozen: Any, ended: str) -> None:
    """The end of a use, or of a wait, in the same batch ended the settlements that had not begun."""
    sidecar, server = frozen
    root = sidecar.namespaces.root
    first = {"op": "claim", "key": "held", "wait": 60_000}
    if ended == "consume":
        first = {"op": "consume", "token": sidecar.call(root.tokens.issue())}
    for key in ("held", "k"):
        assert sidecar.call(root.claim(key, owner="mine")).acquired
    others = [{"op": "touch", "key": "none", "owner": "mine"}] * 300
    server.freeze()
    with sidecar.raw() as raw:
        raw.sendall(request([first, *others, {"op": "complete", "key": "k", "owner": "mine"}], "/v1/batch"))
        until(lambda: waiting(sidecar) > 256, "the batch is on its way")
    until(lambda: not sidecar.call(working("fastdedup-watch")), "its client is known to be gone")
    server.thaw()
    until_it_is("succeeded", sidecar)


@contextmanager
def standing_still(sidecar: Running, then: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold up the sidecar's loop: it calls `then`, and reads in one turn and in order what has come meanwhile."""
    stands, goes_on = threading.Event(), threading.Event()

    def stand() -> None:
        stands.set()
        goes_on.wait(DEADLINE)
        then()

    sidecar.loop.call_soon_threadsafe(stand)
    assert stands.wait(DEADLINE)
    try:
        yield
    finally:
        goes_on.set()


GATED = (
    b"GET /v1/gate?principal=everyone HTTP/1.1\r\nidempotency-key: k\r\ntransfer-encoding: chunked\r\n\r\n"
)


def hangs_up(sidecar: Running, raw: socket.socket) -> None:
    raw.close()


def breaks_its_body(sidecar: Running, raw: socket.socket) -> None:
    raw.sendall(b"zz\r\n")


@pytest.mark.parametrize(
    ("ask", "ends", "before"),
    [
        (request({"key": "k"}), hangs_up, True),
        (request([{"op": "claim", "key": "k"}], "/v1/batch"), hangs_up, False),
        (GATED, breaks_its_body, False),
    ],
    ids=["claim", "batch", "gate"],
)
def test_a_claim_that_is_won_as_its_connection_closes_is_released(
    frozen: Any, ask: bytes, ends: Callable[[Running, socket.socket], None], before: bool
) -> None:
    """Its answer was dropped, and the key was held for the whole lease."""
    sidecar, server = frozen
    server.freeze()
    with sidecar.raw() as raw, redis.Redis.from_url(server.url) as store:
        raw.sendall(ask)
        until(lambda: waiting(sidecar), "the claim is on its way")
        with standing_still(sidecar):
            if before:
                ends(sidecar, raw)
            server.thaw()
            until(lambda: store.dbsize() == 1, "it is won")
            if not before:
                ends(sidecar, raw)
        until(lambda: not sidecar.server.connections, "the connection is closed")
    until_it_is("released", sidecar, GATE_KEY if ask is GATED else "k")


@pytest.mark.parametrize("ask", [request({"key": "k"}), RESP_CLAIM], ids=["HTTP", "RESP"])
def test_a_claim_that_is_won_after_its_client_was_cut_is_released(frozen: Any, ask: bytes) -> None:
    sidecar, server = frozen
    server.freeze()
    with sidecar.raw() as raw, redis.Redis.from_url(server.url) as store:
        raw.sendall(ask)
        until(lambda: waiting(sidecar), "the claim is on its way")
        (connection,) = sidecar.server.connections
        with standing_still(sidecar, connection.cut):
            server.thaw()
            until(lambda: store.dbsize() == 1, "it is won")
        until_it_is("released", sidecar)


@pytest.mark.parametrize("wire", ["claim", "gate", "pipelined"])
def test_a_wait_ends_with_its_client(sidecar: Running, wire: str) -> None:
    """It is not the newest of pipelined requests alone that hears of it."""
    asks = [gate_request(), gate_request("&wait=60000")]
    if wire != "gate":
        asks = [request({"key": "k"}), request({"key": "k", "wait": 60_000})]
    if wire == "pipelined":
        asks[1] += request({"key": "l"})
    key = GATE_KEY if wire == "gate" else "k"
    with sidecar.raw() as first, sidecar.raw() as second:
        first.sendall(asks[0])
        ((_, _, mine),) = read(first)
        second.sendall(asks[1])
        waiters = sidecar.namespaces.root.gate.connection.wakeups
        until(lambda: waiters.waiting, "it waits")
        second.close()
        until(lambda: not waiters.waiting, "it waits no more")
        first.sendall(request({"key": key, "owner": mine["owner"]}, "/v1/claims/release"))
        assert read(first)[0][0] == 200
    found = record(sidecar, key)
    assert found is not None
    assert found.state == "released"
    assert record(sidecar, "l") is None


def test_an_answer_that_was_not_read_is_taken_back(sidecar: Running) -> None:
    with sidecar.raw() as raw:
        raw.sendall(request({"key": "k"}))
        raw.recv(1, socket.MSG_PEEK)  # it is there, and stays unread
    until_it_is("released", sidecar)


@pytest.mark.parametrize("then", ["nothing", "a broken request", "a request that waits for leave"])
def test_a_claim_that_was_read_is_kept_though_what_follows_is_not(
    serve: Serve, redis_url: str, then: str
) -> None:
    """It was released: the client was believed not to have read its answer, and another one got the key."""
    sidecar = serve(redis_url, timeout=5.0)
    with sidecar.raw() as raw:
        raw.sendall(request({"key": "k"}))
        read(raw)
        if then == "a broken request":
            with standing_still(sidecar):
                raw.sendall(b"zz\r\n\r\n")
                raw.close()
        elif then != "nothing":
            ask = request({"key": "l"}, "/v1/claims", "expect: 100-continue")
            raw.sendall(ask.partition(b"{")[0])
            raw.recv(1, socket.MSG_PEEK)  # the leave is there, and stays unread
    until(lambda: not sidecar.server.connections, "the client is gone")
    found = record(sidecar, "k")
    assert found is not None
    assert found.state == "processing"


def test_the_claims_of_an_answer_that_is_cut_off_are_released(serve: Serve, redis_url: str) -> None:
    """The client reads nothing, so the sidecar hangs up in the midst of its answer."""
    sidecar = serve(redis_url, limits=Limits(request_timeout=0.2), timeout=5.0)
    with sidecar.raw() as raw:
        size = raw.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        most = size // 150_000 + 2  # an answer for 1,000 claims takes 150 kB
        for number in range(most):
            raw.sendall(request([{"op": "claim", "key": f"{number}:{n}"} for n in range(1000)], "/v1/batch"))
        until(lambda: not sidecar.server.connections, "it is closed")
        last = max(number for number in range(most) if record(sidecar, f"{number}:0") is not None)
        until_it_is("released", sidecar, f"{last}:999")


def test_a_degraded_claim_that_nobody_gets_is_released(serve: Serve) -> None:
    sidecar = serve("unix:///nowhere/redis.sock", on_unavailable=LocalLRU())
    with sidecar.raw() as raw:
        raw.sendall(request({"key": "k"}))
        raw.recv(1, socket.MSG_PEEK)
    with sidecar.http() as http:
        until(lambda: http.post("/v1/claims", json={"key": "k"}).status_code == 201, "it is free")


def test_stopping_answers_what_is_asked(serve: Serve) -> None:
    sidecar = serve()
    with sidecar.raw() as raw, sidecar.raw() as idle:
        idle.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        read(idle)
        raw.sendall(request({"key": "k"}))
        read(raw)
        raw.sendall(request({"key": "k", "wait": 200}))
        until(lambda: sidecar.namespaces.root.gate.connection.wakeups.waiting, "it waits")
        sidecar.server.should_exit = True
        ((status, headers, _),) = read(raw)
        assert (status, headers["connection"]) == (409, "close")
        assert closed(raw)
        assert closed(idle)
