"""An HTTP connection alone: what a client sends at once is parsed and answered in turns, between those of others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from fastdedup.sidecar import turns
from fastdedup.sidecar.http.protocol import HttpProtocol
from fastdedup.sidecar.http.request import HttpRequest
from fastdedup.sidecar.limits import Limits
from fastdedup.sidecar.reply_memory import ReplyMemory
from fastdedup.sidecar.turns import Turns

from ..waiting import wait_until
from .fuzz import Transport

ASK = b"GET /%d HTTP/1.1\r\nhost: x\r\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n"


class App:
    """Answers at once; notes each request that it begins, and moves a clock that stands still otherwise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[str] = []
        self.problems: list[Any] = []
        self.memory = ReplyMemory(Limits().replies_in_all)
        self.clock = 0.0
        self.takes = 0.0
        """The seconds that a request takes."""
        self.waits = False
        """Do requests wait for the end of their clients?"""
        monkeypatch.setattr(turns, "monotonic", lambda: self.clock)

    def quick(self, connection: HttpProtocol, request: HttpRequest) -> bool:
        self.begun.append(request.path)
        self.clock += self.takes
        if not self.waits:
            connection.respond(HEAD, b"", ())
        return not self.waits

    async def __call__(self, connection: HttpProtocol, request: HttpRequest) -> None:
        self.begun.append(request.path)
        await connection.until_gone(request)

    def turned_down(self, problem: Any) -> None:
        self.problems.append(problem)


class Slow(HttpProtocol):
    """Each request takes half a millisecond to parse."""

    def on_message_begin(self) -> None:
        self._app.clock += 0.0005  # type: ignore[attr-defined]
        super().on_message_begin()


Client = tuple[HttpProtocol, Transport]


@asynccontextmanager
async def connected(app: App, count: int = 1) -> AsyncIterator[list[Client]]:
    """Connections that share their turns."""
    limits = Limits()
    shared, state = Turns(limits, lambda: 0), uvicorn.server.ServerState()
    connections = [Slow(limits, app.memory, shared, app, state) for _ in range(count)]
    clients = [(each, Transport(each)) for each in connections]
    yield clients
    for _, transport in clients:
        transport.lose()
    await wait_until(lambda: not state.tasks, description="the tasks have ended")
    assert not app.memory.requests.taken


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> App:
    return App(monkeypatch)


def asks(count: int) -> bytes:
    return b"".join(ASK % number for number in range(count))


def answers(transport: Transport) -> int:
    return transport.written.count(b"HTTP/1.1 200")


async def test_pipelines_of_many_clients_leave_the_loop_to_new_clients(app: App) -> None:
    """A request of each ran in each turn of the loop: with 300 clients a new one was answered after 0.4 s."""
    app.takes = 0.0015
    async with connected(app, 4) as clients:
        for connection, _ in clients:
            connection.data_received(asks(3))
        before, most = len(app.begun), 0
        assert before == 4  # the first request of each is as good as one that is not pipelined
        while len(app.begun) < 12:
            await asyncio.sleep(0)
            most, before = max(most, len(app.begun) - before), len(app.begun)
        assert most == 2
        assert [answers(transport) for _, transport in clients] == [3] * 4


async def test_what_many_clients_send_at_once_is_parsed_in_turns(app: App) -> None:
    """All of it was parsed in one turn of the loop: with 300 clients a new one was answered after 2.7 s."""
    async with connected(app, 20) as clients:
        data = asks(600)
        for connection, transport in clients:
            connection.data_received(data)
            assert transport.paused
        assert app.clock < 0.1  # 6 s for all
        assert app.memory.requests.taken < 20 * (len(data) + 200_000)  # 24 MB if all of it is parsed
        while any(answers(transport) < 600 for _, transport in clients):
            before = app.clock
            await asyncio.sleep(0)
            assert app.clock - before < 0.1
        assert app.begun.count("/599") == 20
        await wait_until(lambda: not any(each.paused for _, each in clients), description="all read again")


async def test_a_long_body_is_whole_though_others_take_the_turn(app: App) -> None:
    async with connected(app, 2) as ((busy, _), (connection, transport)):
        busy.data_received(asks(3000))
        body = b"POST /long HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n" + b"x" * 100_000
        connection.data_received(body)
        assert "/long" not in app.begun  # this turn has no more time
        assert transport.paused
        await wait_until(lambda: answers(transport), description="it is answered")
        assert not transport.paused
        connection.data_received(body)
        await wait_until(lambda: answers(transport) == 2, description="it is answered again")


async def test_a_fault_in_the_rest_follows_the_answers_before_it(app: App) -> None:
    async with connected(app) as [(connection, transport)]:
        connection.data_received(asks(500) + b"garbage\r\n\r\n" + asks(500))
        await wait_until(lambda: transport.closing, description="it is closed")
        assert len(app.begun) == 500
        assert answers(transport) == 500
        assert transport.written.count(b"HTTP/1.1 400") == 1
        assert [problem.status for problem in app.problems] == [400]


async def test_a_request_whose_turn_comes_after_its_client_has_gone_does_not_run(app: App) -> None:
    async with connected(app) as [(connection, transport)]:
        connection.data_received(asks(500))
        transport.lose()
        before = len(app.begun)
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(app.begun) == before


async def test_the_rest_does_not_run_when_the_server_stops(app: App) -> None:
    async with connected(app) as [(connection, transport)]:
        connection.data_received(asks(500))
        connection.shutdown()
        await wait_until(lambda: transport.lost, description="it is closed")
        assert len(app.begun) == answers(transport) < 10
        assert b"connection: close" in transport.written


async def test_behind_a_request_that_waits_the_client_is_still_heard(app: App) -> None:
    """What it sends is read up to its limit: the end of a client that is not read is not seen."""
    app.waits = True
    async with connected(app) as [(connection, transport)]:
        connection.data_received(asks(500))
        await wait_until(lambda: len(connection.pipeline) == 499, description="all is parsed")
        assert not transport.paused
        assert app.begun == ["/0", "/0"]  # quick, and in a task
