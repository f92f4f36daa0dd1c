"""ASGI: a handler's response is held back until its transaction has committed with it.

Main path: `begin_committed` → the handler → `ResponseStage.send` → `AsgiExchange.send`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from ...claim import Claim
from ...extras import needs
from ...flows import drive
from ...tasks import until_done, wake
from ...web.admit import admit
from ...web.answers import streams
from ...web.response import Response
from .committing import Committed, CommittedWork, Named, RouteCommits, Steps
from .exchange import WORK, AsgiExchange, NotSent, send_response
from .guarded import key_fields
from .lifespan import Message, Scope
from .threads import CallsInThreads

with needs("fastdedup.integrations.starlette", "Starlette", "'fastdedup[web]'"):
    from anyio import CancelScope, CapacityLimiter, to_thread

T = TypeVar("T")


async def begin_committed(
    route: RouteCommits,
    scope: Scope,
    exchange: AsgiExchange,
    docs: str | None,
    identify: Callable[[str], Awaitable[Named]],
) -> Committed[Any] | Response:
    """Claim a request's key at the gate and begin its transaction; return what its handler gets.

    A response is the answer in the handler's place. It runs inside of `exchange.run`, which ends what it begins.

    Args:
        route: the request's route.
        scope: the request's.
        exchange: between the server and the application that has the handler.
        docs: the address of the documentation, which every error links to.
        identify: returns the request's name and fingerprint for its Idempotency-Key; it reads the body.
    """
    steps = AWAITED if route.inbox.bridge.is_async else IN_THREADS
    work = CommittedWork(route, docs, scope["path"], scope["method"], steps)

    async def claim(key: str) -> Claim | None:
        return await work.claim(key, await identify(key))  # type: ignore[no-any-return]

    got = await admit(key_fields(scope), claim, route.claims.rule, docs)
    if isinstance(got, Response):
        return got
    if got is not None:
        work.hold(got, exchange.hold(scope, got, route.claims.rule, docs))
    elif work.gate_wire is not None:
        exchange.work_under(work.gate_wire)
    scope[WORK] = work
    # The stage ends the transaction also if this request is cancelled now.
    exchange.commit_with(ResponseStage(exchange, work), scope, route.claims.rule)
    begun = await work.begin()
    if isinstance(begun, Response):
        exchange.stage = None
        exchange.committed()
    return begun


class ResponseStage:
    """Stands before an exchange's `send` until the response is whole and its transaction has ended."""

    def __init__(self, exchange: AsgiExchange, work: CommittedWork) -> None:
        self.work = work
        self._exchange = exchange
        self._send_on = partial(exchange.send, from_stage=True)
        # Mutable: the response's start, its body so far, and its size; is another one sent in its place.
        self._start: Message | None = None
        self._chunks: list[bytes] = []
        self._size = 0
        self._replaced = False

    async def send(self, message: Message) -> None:
        """Take a message from the application.

        Raises:
            ResultError: the response cannot be stored, so nothing was committed.
            NotSent: another response was sent in its place: nothing was committed, or that is unknown.
        """
        kind = message["type"]
        if self._replaced:
            return  # middleware within may answer NotSent
        if kind == "http.response.start":
            self._start, self._chunks, self._size = message, [], 0  # it may replace another one
            headers = message["headers"] = list(message.get("headers", ()))
            if self.work.transaction.is_open and any(
                name.lower() == b"content-type" and streams(value) for name, value in headers
            ):
                raise await self.work.refuse("it is a stream")
        elif kind == "http.response.body" and self._start is not None:
            await self._take(self._start, message)
        else:
            await self._send_on(message)  # no part of the response, such as an early hint

    async def _take(self, start: Message, message: Message) -> None:
        chunk = message.get("body", b"")
        self._chunks.append(chunk)
        self._size += len(chunk)
        if not self.work.transaction.is_open:
            return await self._leave(start, message.get("more_body", False))
        if self._size > self.work.rule.max_response:
            raise await self.work.refuse(self.work.too_large)
        if message.get("more_body", False):
            return None
        response = Response(start["status"], start["headers"], b"".join(self._chunks))
        sent = await self.work.end(response)
        if sent is response:
            return await self._leave(start, more_body=False)
        await send_response(self._send_on, sent)
        self._replaced = True
        raise NotSent

    async def _leave(self, start: Message, more_body: bool) -> None:
        """Pass the response on, and what comes after it."""
        self._exchange.stage = None
        body = b"".join(self._chunks)
        await self._exchange.send(start)
        await self._exchange.send({"type": "http.response.body", "body": body, "more_body": more_body})
        self._exchange.committed()

    async def close(self) -> None:
        """Roll back what has not ended, because the application has: without a response, or by an error."""
        self._exchange.stage = None
        await self.work.roll_back()


class ReplayStage:
    """Stands before an exchange's `send` if the answer is a stored response, and sends that past inner middleware.

    A stored response has the changes of the middleware within the exchange already, and a second run would change it
    again. The middleware runs all the same, and its cookies and CORS headers for this request are sent.
    """

    def __init__(self, exchange: AsgiExchange, stored: Response) -> None:
        self._exchange = exchange
        self._send_on = partial(exchange.send, from_stage=True)
        self._stored = stored
        # Mutable: was it sent.
        self._sent = False

    async def send(self, message: Message) -> None:
        """Take a message from the application."""
        kind = message["type"]
        if kind == "http.response.body" and self._sent:
            return
        if kind == "http.response.start" and message["status"] == self._stored.status:
            self._sent = True
            await send_response(self._send_on, self._stored.for_request(message.get("headers", ())))
            return
        if kind == "http.response.start":
            self._exchange.stage = None  # middleware answers in its place
        await self._send_on(message)

    async def close(self) -> None:
        """Let the exchange's own messages through."""
        self._exchange.stage = None


class AwaitedSteps(Steps):
    """Runs the flows of async code in the event loop."""

    async def finish(self, flow: Coroutine[Any, Any, T]) -> T:
        """See `Steps.finish`. A cancelled caller leaves; the flow goes on in a task of its own."""
        loop = asyncio.get_running_loop()
        task, left = loop.create_task(flow), loop.create_future()
        _going_on.add(task)
        # Not with a shield, which costs as much again as the task, and logs an error whose caller has left.
        task.add_done_callback(partial(_ended, left))
        await left
        return task.result()


def _ended(left: asyncio.Future[None], task: asyncio.Future[Any]) -> None:
    """Wake a task's caller, whose error it is; if that has left, the next request asks the row what happened."""
    _going_on.discard(task)
    if not task.cancelled():
        task.exception()  # else asyncio would log it as never retrieved
    wake(left)


class ThreadSteps(Steps):
    """Runs the flows of synchronous code in threads.

    Transactions begin in threads of their own. If all of those wait for one request's row, that request still has
    threads for its handler and its COMMIT.
    """

    async def begin(self, flow: Coroutine[Any, Any, T]) -> T:
        """See `Steps.begin`."""
        return await in_thread(drive, flow, limiter=_limits().beginning)

    async def go_on(self, flow: Coroutine[Any, Any, T]) -> T:
        """See `Steps.go_on`."""
        return await in_thread(drive, flow, limiter=_limits().ending)

    finish = go_on


class ThreadLimits(NamedTuple):
    """How many threads may begin transactions at once in an event loop, and how many may end them."""

    beginning: CapacityLimiter
    ending: CapacityLimiter


async def in_thread(call: Callable[..., T], *args: Any, limiter: CapacityLimiter | None = None) -> T:
    """Call a function in a thread. A cancelled caller waits for its end, because a thread cannot be stopped."""
    task = asyncio.ensure_future(to_thread.run_sync(call, *args, limiter=limiter))
    await _until_done(task)
    return task.result()


async def handle_in_thread(handler: Callable[..., T], *args: Any) -> T:
    """Call a handler in a thread. A cancelled caller keeps it from starting, or waits for its end."""
    calls = CallsInThreads()
    try:
        return await to_thread.run_sync(calls.run, handler, *args)
    except BaseException:
        await calls_ended(calls)
        raise


async def calls_ended(calls: CallsInThreads) -> None:
    """Let no further call begin, and wait for the end of the others, because a thread cannot be stopped."""
    for end in calls.close():
        await _until_done(asyncio.wrap_future(end))


async def _until_done(future: asyncio.Future[Any]) -> None:
    with CancelScope(shield=True):  # a cancelled scope of anyio would cancel each turn of the wait
        await until_done(future)


def _limits() -> ThreadLimits:
    loop = asyncio.get_running_loop()
    found = _limits_of.get(loop)
    if found is None:
        found = _limits_of[loop] = ThreadLimits(CapacityLimiter(THREADS), CapacityLimiter(THREADS))
    return found


THREADS: Final = 40
"""The threads of each kind in an event loop; anyio gives as many to handlers."""
_limits_of: WeakKeyDictionary[asyncio.AbstractEventLoop, ThreadLimits] = WeakKeyDictionary()
_going_on: set[asyncio.Future[Any]] = set()
"""The tasks that end transactions: without a reference the loop would forget them."""
AWAITED = AwaitedSteps()
IN_THREADS = ThreadSteps()
