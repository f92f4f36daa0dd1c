"""A request and its response, between an ASGI server and an application: the response settles the claim."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final

from ...claim import Claim
from ...downstream import enter, leave
from ...errors import ClaimLostError
from ...web.recorder import Marks, Recorder
from ...web.request import RequestTooLarge
from ...web.response import Response
from ...web.rules import Rule
from .lifespan import ASGIApp, Message, Receive, Scope, Send
from .settling import settle
from .threads import runs_in_thread

CLAIM: Final = "fastdedup.claim"
RECORDER: Final = "fastdedup.recorder"
WORK: Final = "fastdedup.committed_work"
"""The keys of a scope under which a claim is, what becomes of its response, and the work that commits with it."""
REASON: Final = "fastdedup.reason"
STREAM: Final = "fastdedup.stream"
"""The keys of a response's start in a framework without ASGI: its own reason phrase; True if it is passed on."""
_GRACE: Final = 0.1
"""Seconds in which an application may stop by itself after the news of the end, before it is cancelled; and until a
handler that could not be stopped is tried again, because a dependency of it ran in a thread."""
_GONE: Final[Message] = {"type": "http.disconnect"}
CLIENT_GONE: Final = Response(499, (), b"")
"""The answer to a client that left, with nginx's status for it. Outer middleware (Starlette's BaseHTTPMiddleware)
requires some response."""
_UNSUPPORTED: Final = frozenset(
    ("http.response.pathsend", "http.response.zerocopysend", "http.response.trailers")
)
"""Extensions of ASGI that would send a response past the capture."""


class ClientLeft(Exception):
    """The client left before it had sent the whole request, so nothing has happened."""


class NotSent(Exception):
    """Ends an application whose response was replaced, because its work was not committed.

    Otherwise its background tasks would run, and dependencies of FastAPI with `yield` would commit.
    """


class AsgiExchange:
    """Takes the server's place for the application, which gets its `receive` and `send`.

    It keeps the request's body, up to a limit, so that the body can be digested before or after the application reads
    it. From `hold` on a `Recorder` decides when the response is sent.

    Args:
        limit: how many bytes of the request's body it keeps.
    """

    def __init__(self, receive: Receive, send: Send, limit: int) -> None:
        self._receive = receive
        self._send = send
        self._limit = limit
        # Mutable, of the request: its chunks, how many the application has, their size, and what came after.
        self._chunks: list[Any] = []
        self._delivered = 0
        self._size = 0
        self._ended = False
        self._gone = False
        # Of the claim, once there is one: its response. Of claim or transaction: the rule; until the application has
        # ended the scope of its request, the application and its coroutine; who cancels the handler when the client
        # leaves.
        self.recorder: Recorder | None = None
        self._rule: Rule | None = None
        self._scope: Scope | None = None
        self._app: ASGIApp | None = None
        self._running: Any = None
        self._task: asyncio.Task[Any] | None = None
        self._watcher: asyncio.Task[None] | None = None
        # What ends the work that clients of HTTP ask for, while the application runs; has it run.
        self._work: Any = None
        self._has_run = False
        # What the response passes before it comes here, until it is whole: see `ResponseStage`; whether a transaction
        # decides on the response.
        self.stage: Any = None
        self._commits = False
        # Of stopping the handler: how many listen for the end; whether it is being stopped; how often it was
        # cancelled, and its task before; the timer after which it is cancelled; the news of the end, and whether
        # the listeners may know it.
        self._listening = 0
        self._stopping = False
        self._cancelled = 0
        self._cancelled_before = 0
        self._timer: asyncio.TimerHandle | None = None
        self._news: asyncio.Event | None = None  # made if a handler listens: few do
        self._told = False
        # Of the response: its start; whether the handler heard before its end that the client is gone; whether it
        # broke off because of that; whether it is over.
        self._start: Message | None = None
        self._heard = False
        self._torn = False
        self._over = False

    # The request

    async def body(self, limit: int | None = None) -> bytes:
        """Return the whole body. `limit`: how many bytes it may have, if they are fewer than the exchange keeps.

        Raises:
            ClientLeft: the client left before it came.
            RequestTooLarge: the body exceeds the limit.
        """
        while not (self._ended or self._gone) and self._size <= self._limit:
            self._take(await self._receive())
        if self._size > (self._limit if limit is None else limit):
            raise RequestTooLarge
        if not self._ended:
            raise ClientLeft
        chunks = self._chunks
        return bytes(chunks[0]) if len(chunks) == 1 else b"".join(chunks)

    def _take(self, message: Message) -> None:
        if message["type"] == "http.disconnect":
            self._gone = True
            return
        chunk = message.get("body", b"")
        self._size += len(chunk)
        self._ended = not message.get("more_body", False)
        if chunk or self._ended:  # there may be any number of empty pieces
            self._chunks.append(chunk)

    async def receive(self) -> Message:
        """Give the application the body, and later the end of the connection, once it may know of that."""
        while self._delivered == len(self._chunks) and not (self._ended or self._gone):
            self._take(await self._receive())
        if self._delivered < len(self._chunks):
            return self._next_chunk()
        if self.recorder is not None or self._commits:
            await self._news_of_the_end()
        if not (self._gone or self._stopping):
            if self._watcher is None:
                return await self._receive()
            await asyncio.wait([self._watcher])
        self._heard = not self._over
        return _GONE

    async def _news_of_the_end(self) -> None:
        """Wait until the application may know that the client left: a handler that finishes in any case may not."""
        self._listening += 1
        if self.recorder is not None:
            self._watch_for_listener(self.recorder)
        try:
            if not self._told:
                if self._news is None:
                    self._news = asyncio.Event()
                await self._news.wait()
        finally:
            self._listening -= 1

    def _tell(self) -> None:
        self._told = True
        if self._news is not None:
            self._news.set()

    def _watch_for_listener(self, recorder: Recorder) -> None:
        """Tell a stream that its client left, because it may be endless, and no retry gets the rest of it."""
        if recorder.passing and self._listening and self._watcher is None:
            self._watcher = asyncio.ensure_future(self._watch(recorder.rule))

    def _next_chunk(self) -> Message:
        chunk = self._chunks[self._delivered]
        if self._size > self._limit:
            self._chunks[self._delivered] = b""  # beyond the limit
        self._delivered += 1
        more = not self._ended or self._delivered < len(self._chunks)
        self._watch_if_read()
        return {"type": "http.request", "body": chunk, "more_body": more}

    # The application

    async def answer(self, response: Response) -> None:
        """Send a response in the application's place; the client may be gone."""
        with suppress(OSError):
            await send_response(self._send, response)

    def hold(self, scope: Scope, claim: Claim, rule: Rule, docs: str | None, mark: bytes = b"") -> Recorder:
        """Settle a claim by the response; return what decides. If the lease is lost, `cancel` stops the handler."""
        recorder = self.recorder = Recorder(claim, rule, docs, scope["path"], mark)
        scope[CLAIM], scope[RECORDER] = claim, recorder
        claim.settlement.guard(self)  # the task that it cancels and uncancels
        task = asyncio.current_task() if self._has_run and claim.settlement.renewal is not None else None
        if task is not None:
            # Middleware has answered, and left the handler alone in a task of its own: the renewal ends with that.
            claim.settlement.renew_no_more()
            claim.settlement.keep_renewed(weakref.ref(task))
            task.add_done_callback(lambda _: claim.settlement.unguard())
        self.work_under(claim.settlement.store_key)
        self._obey(scope, rule)
        return recorder

    def commit_with(self, stage: Any, scope: Scope, rule: Rule) -> None:
        """Hold the response back in a `ResponseStage`; until `committed`, obey the rule for a client that leaves.

        Otherwise a response in parts would end when its client leaves, and its transaction would be rolled back.
        """
        self.stage = stage
        self._commits = True
        self._obey(scope, rule)

    def committed(self) -> None:
        """Note that the response has left its stage, because its transaction has ended."""
        self._commits = False
        if self.recorder is None:
            self._tell()

    def _obey(self, scope: Scope, rule: Rule) -> None:
        self._scope, self._rule = scope, rule
        self._watch_if_read()

    def _watch_if_read(self) -> None:
        """Cancel the handler when its client leaves, if the rule says so, and the whole body has come."""
        rule = self._rule
        if rule is not None and rule.on_disconnect == "cancel" and self._ended and self._watcher is None:
            self._watcher = asyncio.ensure_future(self._watch(rule))

    def work_under(self, store_key: bytes) -> None:
        """Make the application's work that of a claim, for the HTTP clients that it uses: see `enter`."""
        self._work = enter(store_key)

    async def _watch(self, rule: Rule) -> None:
        """When the client leaves, cancel the handler; if it finishes in any case, only tell it."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        if rule.on_disconnect == "finish":
            self._tell()
        elif not self._is_over():
            self.cancel()

    def _is_over(self) -> bool:
        """True if the claim is settled; without a claim, if the transaction has ended."""
        return not self._commits if self.recorder is None else self.recorder.settled

    def cancel(self) -> bool:
        """Stop the handler: if it listens for the connection's end, tell it; else cancel it.

        A cancelled Django leaves its view running, but it cancels the view when it hears that the client is gone.
        Starlette, which alone has a transaction here, would run the background tasks of a response that it tells.
        Return False for a handler in a thread: it would go on beside a retry, so its end is awaited, and its response
        kept unless another request has taken over. If only a dependency is in a thread, the handler is stopped later.
        """
        in_thread = self._scope is not None and runs_in_thread(self._scope, self._app, self._running)
        if in_thread and not (self.recorder is not None and self.recorder.passing):
            self._timer = asyncio.get_running_loop().call_later(_GRACE, self._cancel_again)
            return False
        self._stopping = True
        self._tell()
        if self._listening and not self._commits:
            self._timer = asyncio.get_running_loop().call_later(_GRACE, self._cancel)
        else:
            self._cancel()
        return True

    def _cancel_again(self) -> None:
        recorder = self.recorder
        if self._is_over() or not self.cancel():
            return
        if recorder is not None and recorder.claim.lost:
            recorder.claim.settlement.stopped_body = True

    def _cancel(self) -> None:
        if self._task is not None and not self._is_over() and self._task.cancel():
            self._cancelled += 1

    def uncancel(self) -> int:
        """Take back the cancellations by `cancel`; return how many others there are since `run` began."""
        task = self._task
        if task is None:
            return 0
        while self._cancelled:
            task.uncancel()
            self._cancelled -= 1
        return task.cancelling() - self._cancelled_before

    def cancelling(self) -> int:
        """Return 0: `uncancel` counts from there."""
        return 0

    async def run(self, app: ASGIApp, scope: Scope) -> None:
        """Run the application; release the claim unless a response settles it.

        Raises:
            BaseException: the application's exception, and its cancellation unless that was for the claim.
        """
        # By the claim's loop if it is known: Python 3.11 asks the system for each look at the running one.
        loop = None if self.recorder is None else self.recorder.claim.settlement.gate.connection.loop
        self._task = task = asyncio.current_task(loop)
        self._cancelled_before = 0 if task is None else task.cancelling()
        self._app = app
        failure: BaseException | None = None
        try:
            running = self._running = app(scope, self.receive, self.send)
            await running
        except BaseException as error:  # noqa: BLE001 -- raised again below: a compiled module may not await here
            failure = None if isinstance(error, NotSent) else error
        if self._timer is not None:
            self._timer.cancel()
        if self._watcher is not None:  # now: it would cancel this task while it settles
            self._watcher.cancel()
        try:
            if self.stage is not None:
                failure = await self._closed(self.stage, failure)
            if failure is None:
                await self._ran()
            elif not await self._broke_off(failure):
                raise failure
        finally:
            failure = None  # its traceback refers to this frame
            self._has_run = True
            self._scope = self._app = self._running = None  # they refer to this exchange
            leave(self._work)
            if self._timer is not None:
                self._timer.cancel()  # the lease may have been lost meanwhile
            if self._cancelled > 0:  # the handler has caught it, or something else has cancelled its task too
                self.uncancel()
            if self.recorder is not None:
                self.recorder.claim.settlement.unguard()

    async def _closed(self, stage: Any, failure: BaseException | None) -> BaseException | None:
        """Close a stage; return the failure. A cancellation is one too: the claim must be released all the same."""
        try:
            await stage.close()
        except BaseException as error:  # noqa: BLE001 -- the caller raises it
            return failure or error
        return failure

    async def _ran(self) -> None:
        recorder = self.recorder
        if recorder is None:
            return
        if recorder.counts_in_part and not self._stopping:
            await settle(recorder)
        if recorder.settled:
            return
        if await _left(recorder.claim, None):
            if self._gone and self._stopping:
                await self._answer_nobody()
        else:  # the application has swallowed its cancellation, and has not answered
            await self._refuse(recorder)

    async def _answer_nobody(self) -> None:
        if self.recorder is None or not self.recorder.passing:
            await self.answer(CLIENT_GONE)

    async def _broke_off(self, error: BaseException) -> bool:
        """Release the claim. Return whether the error was fastdedup's own, and is dealt with."""
        recorder = self.recorder
        if recorder is not None:
            cut = self._torn and not self._stopping and isinstance(error, Exception)
            if cut and recorder.counts_in_part:
                await settle(recorder)
                return False
            if self._goes_on(recorder, error):
                recorder.claim.settlement.abandon()
            elif not await _left(recorder.claim, error):
                await self._refuse(recorder)
                return True
        if not (isinstance(error, ClientLeft) or (self._cancelled > 0 and self.uncancel() == 0)):
            return False
        await self._answer_nobody()
        return True

    def _goes_on(self, recorder: Recorder, error: BaseException) -> bool:
        """True if something else has cancelled a request, such as a server that stops, and its thread works on.

        Then the key is held until its lease ends, as if the process had died: at once a retry would run beside it.
        """
        if self._commits or recorder.settled:  # a transaction ends with its request
            return False
        if self._cancelled > 0 or not isinstance(error, asyncio.CancelledError):
            return False
        return self._scope is not None and runs_in_thread(self._scope, self._app, self._running)

    # The response

    async def send(self, message: Message, from_stage: bool = False) -> None:
        """Take a message from the application, or from the stage that it has passed."""
        if self.stage is not None and not from_stage:
            await self.stage.send(message)
            return
        recorder = self.recorder
        if recorder is None or self._over:
            await self._send(message)
            return
        kind = message["type"]
        if kind == "http.response.start":
            self._start = message
            headers = message["headers"] = list(message.get("headers", ()))
            reason, stream = message.get(REASON, ""), message.get(STREAM)
            if recorder.start(message["status"], headers, reason, stream=stream):
                await self._pass_on(recorder)
        elif kind == "http.response.body" and self._start is not None:
            if recorder.passing:
                await self._send_piece(recorder, message)
            elif recorder.body(message.get("body", b"")):
                await self._pass_on(recorder)
                await self._send_piece(recorder, {**message, "body": recorder.taken()})
            elif not message.get("more_body", False):
                marks = await self._settle(recorder)
                self._end()
                if marks is None:
                    await self._refuse(recorder)
                else:
                    await self._send_whole(recorder, marks)
        else:
            await self._send(message)

    async def _send_piece(self, recorder: Recorder, message: Message) -> None:
        if recorder.passes(len(message.get("body", b""))) or not message.get("more_body", False):
            await self._settle(recorder)
            self._end()
        await self._send_on(recorder, message)

    def _settle(self, recorder: Recorder) -> Coroutine[Any, Any, Marks | None]:
        """Settle by a response that has ended. If it may be cut because its client left, its key is free.

        Starlette's BaseHTTPMiddleware ends a response that was cut as if it were whole, by an empty piece.
        """
        if self._heard and not (recorder.is_whole or recorder.counts_in_part):
            recorder.undone = True
        return settle(recorder)

    async def _pass_on(self, recorder: Recorder) -> None:
        self._watch_for_listener(recorder)
        await self._send_on(recorder, self._marked_start(recorder.marks(stored=False)))

    async def _send_whole(self, recorder: Recorder, marks: Marks) -> None:
        """Send a response that was held back; if the client is gone, its handler goes on."""
        if self._gone:
            return
        try:
            await self._send(self._marked_start(marks))
            await self._send({"type": "http.response.body", "body": recorder.taken()})
        except OSError:
            self._gone = True

    def _marked_start(self, marks: Marks) -> Message:
        start = self._start
        assert start is not None
        return {**start, "headers": [*start["headers"], *marks]} if marks else start

    async def _send_on(self, recorder: Recorder, message: Message) -> None:
        """Send a message. If the client is gone, a handler goes on, but a stream must end: it may be endless."""
        if self._gone and not recorder.passing:
            return
        try:
            await self._send(message)
        except OSError:
            self._gone = True
            if recorder.passing and not recorder.settled:
                self._torn = True
                raise

    def _end(self) -> None:
        self._over = True
        self._tell()

    async def _refuse(self, recorder: Recorder) -> None:
        if not recorder.passing:
            await self.answer(recorder.refusal())


async def send_response(send: Send, response: Response) -> None:
    """Send a response by ASGI."""
    start = {"type": "http.response.start", "status": response.status, "headers": list(response.headers)}
    if response.reason:
        start[REASON] = response.reason
    await send(start)
    await send({"type": "http.response.body", "body": response.body})


async def _left(claim: Claim, error: BaseException | None) -> bool:
    """Release a claim on the way out. Return False if it was lost."""
    try:
        await claim.settlement.leave(error, release=error is None)
    except ClaimLostError:
        return False
    return True


def supported(scope: Scope) -> Scope:
    """Return the scope for the application, without extensions that would bypass the recorder."""
    extensions = scope.get("extensions")
    scope = {**scope}
    if extensions:
        scope["extensions"] = {name: it for name, it in extensions.items() if name not in _UNSUPPORTED}
    return scope
