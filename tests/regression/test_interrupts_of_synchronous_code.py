"""An interrupt of synchronous code (a signal's error, `gevent.Timeout`) undoes nothing, and harms no other call.

A worker's time limit raises an error wherever its thread is just at work. Within `complete` it freed the key after
the work, within the draw of an owner it ended every later claim of the process, and between two steps of a call it
made every later call wait in vain.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from fastdedup import Outcome, Resolution, State, Takeover
from fastdedup.downstream import claimed_work, present_work
from fastdedup.kernel import owners
from fastdedup.sync import Claim, Dedup, loop

from ..fixtures import fixture_with
from ..integrations.shops import until
from ..waiting import cancel


class TimeLimit(Exception):
    """What a signal's handler raises, as Celery's soft time limit does."""


class SlowCodec:
    """Takes its time for one result, and the background thread with it, until it is let go."""

    def __init__(self) -> None:
        self.busy = threading.Event()
        self.go_on = threading.Event()

    def dumps(self, value: Any) -> bytes:
        if value == "slow":
            self.busy.set()
            assert self.go_on.wait(10.0)
        return json.dumps(value).encode()

    def loads(self, data: bytes) -> Any:
        return json.loads(data)


@pytest.fixture
def codec() -> SlowCodec:
    return SlowCodec()


gate = fixture_with(
    lambda codec, redis_url: Dedup(redis_url, namespace=f"n{uuid.uuid4().hex}", lease=60.0, codec=codec)
)


@pytest.fixture
def interrupts() -> Iterator[None]:
    """SIGALRM raises TimeLimit."""

    def interrupt(*_: object) -> None:
        raise TimeLimit

    former = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.signal(signal.SIGALRM, former)


def interrupted(codec: SlowCodec, gate: Dedup, call: Callable[[], object]) -> None:
    """Interrupt a call while the background thread is at another one's, so that it has not begun."""
    another = gate.claim("another")
    slow = threading.Thread(target=another.complete, args=("slow",))
    slow.start()
    assert codec.busy.wait(10.0)
    later = threading.Timer(0.2, codec.go_on.set)
    later.start()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(TimeLimit):
            call()
    finally:
        later.join()
        slow.join()


def comes_to(gate: Dedup, state: State, kind: Any = "claim") -> None:
    def is_there() -> bool:
        record = gate.get("order:42", kind)
        return record is not None and record.state is state

    until(is_there, description=f"the record is {state}")


@pytest.mark.usefixtures("interrupts")
@pytest.mark.parametrize("how", ["complete", "fail", "release"])
def test_what_is_said_within_a_block_stays_said(how: str, codec: SlowCodec, gate: Dedup) -> None:
    claim = gate.claim("order:42")

    def in_a_block() -> None:
        with claim:
            getattr(claim, how)()

    interrupted(codec, gate, in_a_block)
    comes_to(gate, {"complete": State.SUCCEEDED, "fail": State.FAILED, "release": State.RELEASED}[how])


@pytest.mark.usefixtures("interrupts")
@pytest.mark.parametrize(("kind", "state"), [("claim", State.SUCCEEDED), ("lock", State.RELEASED)])
def test_leaving_a_block_settles(kind: str, state: State, codec: SlowCodec, gate: Dedup) -> None:
    held = getattr(gate, kind)("order:42")
    held.__enter__()
    interrupted(codec, gate, lambda: held.__exit__(None, None, None))
    comes_to(gate, state, kind)


@pytest.mark.usefixtures("interrupts")
@pytest.mark.parametrize(
    ("answer", "state"), [(Resolution.done("paid"), State.SUCCEEDED), (Resolution.not_done(), State.RELEASED)]
)
def test_what_a_check_has_found_is_settled(
    answer: Resolution, state: State, codec: SlowCodec, gate: Dedup, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate.claim("order:42").release()  # a second attempt
    settled = Claim.settled_by

    def check(takeover: Takeover) -> Resolution:
        return answer

    def settled_late(claim: Claim, settle: Any) -> Any:
        with suppress(TimeLimit):
            interrupted(codec, gate, lambda: settled(claim, settle))
        raise TimeLimit

    monkeypatch.setattr(Claim, "settled_by", settled_late)
    with pytest.raises(TimeLimit):
        gate.claim("order:42", resolve=check)
    comes_to(gate, state)


@pytest.mark.parametrize("how", ["complete", "fail"])
def test_what_was_said_before_it_could_be_sent_is_said_by_leaving(
    how: str, gate: Dedup, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Claim._run

    def once(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(Claim, "_run", run)
        raise TimeLimit

    def in_a_block() -> None:
        with gate.claim("order:42") as claim:
            monkeypatch.setattr(Claim, "_run", once)
            getattr(claim, how)("result")

    with pytest.raises(TimeLimit):
        in_a_block()
    comes_to(gate, State.SUCCEEDED if how == "complete" else State.FAILED)


def test_an_interrupted_call_stops_no_later_one(gate: Dedup, monkeypatch: pytest.MonkeyPatch) -> None:
    """It came after the call had taken it upon itself to tell the loop, and before it did."""
    tell = loop.LoopThread.tell

    def once(*arguments: Any) -> None:
        monkeypatch.setattr(loop.LoopThread, "tell", tell)
        raise TimeLimit

    gate.claim("order:41").release()
    monkeypatch.setattr(loop.LoopThread, "tell", once)
    with pytest.raises(TimeLimit):
        gate.claim("order:42")
    assert gate.claim("order:43").acquired


def test_a_loop_that_nobody_has_told_is_told_by_who_waits(gate: Dedup) -> None:
    """A second interrupt may end what the first one's call does about it."""
    gate.claim("order:41").release()
    loop.current()._told = True
    assert gate.claim("order:42").acquired


def test_an_interrupted_draw_ends_no_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: int) -> bytes:
        raise TimeLimit

    def draw_many() -> None:
        for _ in range(2 * owners.AT_ONCE):
            owners.draw_owner()

    with monkeypatch.context() as patched:
        patched.setattr(os, "urandom", interrupt)
        with pytest.raises(TimeLimit):
            draw_many()
    assert owners.draw_owner() != owners.draw_owner()


def test_a_thread_whose_start_is_interrupted_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the next call starts another one: where none had been started, every later call failed."""
    started: list[Any] = []
    start = loop.start_thread

    def interrupt(*arguments: Any) -> Any:
        loop.start_thread = start
        started.append(start(*arguments))
        raise TimeLimit

    monkeypatch.setattr(loop, "_current", None)
    for begin in (interrupt, None):
        with monkeypatch.context() as patched:
            if begin is None:
                patched.setattr(loop.LoopThread, "start", raise_time_limit)
            else:
                patched.setattr(loop, "start_thread", begin)
            with pytest.raises(TimeLimit):
                loop.current()
        assert loop._current is None
    thread = loop.current()
    assert thread.alive
    thread.end()
    started[0].join(10.0)


def raise_time_limit(*arguments: Any, **options: Any) -> Any:
    raise TimeLimit


@pytest.mark.parametrize(
    "place",
    [
        "fastdedup.sync.claim.Claim._run",
        "fastdedup.sync.background.BackgroundDedup.run",
        "fastdedup.sync.loop.LoopThread.run",
        "fastdedup.sync.loop.LoopThread._check_caller",
        "fastdedup.sync.work.Work.__init__",
    ],
)
@pytest.mark.parametrize("how", ["complete", "leave", "lock"])
def test_wherever_it_comes_on_the_way_to_the_loop(
    how: str, place: str, gate: Dedup, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, claim = gate.lock("order:42"), gate.claim("order:41")
    lock.__enter__()
    if how == "leave":
        claim.__enter__()
    calls: dict[str, Callable[[], object]] = {
        "complete": lambda: claim.complete("done"),
        "leave": lambda: claim.__exit__(None, None, None),
        "lock": lambda: lock.__exit__(None, None, None),
    }
    module, name, method = place.rsplit(".", 2)
    owner = getattr(sys.modules[module], name)
    original = getattr(owner, method)

    def once(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(owner, method, original)
        raise TimeLimit

    monkeypatch.setattr(owner, method, once)
    with pytest.raises(TimeLimit):
        calls[how]()
    if how == "lock":
        comes_to(gate, State.RELEASED, "lock")
    else:
        until(lambda: gate.claim("order:41").outcome is Outcome.SUCCEEDED, description="it is recorded")


def test_a_gate_whose_closing_is_interrupted_opens_again(
    gate: Dedup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was open for ever after, and each claim a UsageError."""
    gate.claim("order:42").complete("done")
    with monkeypatch.context() as patched:
        patched.setattr("fastdedup.sync.background.BackgroundDedup.close", raise_time_limit)
        with pytest.raises(TimeLimit):
            gate.close()
    gate.open()
    assert gate.claim("order:42").outcome is Outcome.SUCCEEDED


def test_a_thread_that_python_takes_for_dead_is_used(gate: Dedup, monkeypatch: pytest.MonkeyPatch) -> None:
    """`Thread.is_alive` that a signal interrupts marks a living thread as ended (Python's bpo-45274)."""
    thread = loop.current()
    monkeypatch.setattr(threading.Thread, "is_alive", lambda self: False)
    assert gate.claim("order:42").acquired
    assert loop.current() is thread


@pytest.mark.usefixtures("interrupts")
def test_a_token_whose_use_nobody_heard_of_is_unused(gate: Dedup, monkeypatch: pytest.MonkeyPatch) -> None:
    token, blocked_thread = gate.tokens.issue(), loop.blocked_thread

    def interrupted() -> Any:
        monkeypatch.setattr(loop, "blocked_thread", blocked_thread)
        return blocked_thread()[0], lambda: os.kill(os.getpid(), signal.SIGALRM)  # as the answer comes

    monkeypatch.setattr(loop, "blocked_thread", interrupted)
    with pytest.raises(TimeLimit):
        gate.tokens.consume(token)
    until(lambda: gate.tokens.consume(token) is Outcome.ACQUIRED, description="it is taken back")


def test_a_lock_that_nobody_got_to_hold_is_free(gate: Dedup, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: object) -> Any:
        raise TimeLimit

    monkeypatch.setattr("fastdedup.sync.lock.Lock", interrupt)
    with pytest.raises(TimeLimit):
        gate.lock("order:42").__enter__()
    comes_to(gate, State.RELEASED, "lock")


class Interrupts:
    """Raises TimeLimit once, before the `place`-th instruction that the library runs in this thread."""

    def __init__(self, place: int) -> None:
        self.left = place

    def trace(self, frame: Any, event: str, argument: object) -> Any:
        code = frame.f_code
        if f"{os.sep}fastdedup{os.sep}" not in code.co_filename or code.co_name == "__del__":
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.left -= 1
            if self.left == 0:
                raise TimeLimit
        return self.trace

    def within(self, call: Callable[[], object]) -> bool:
        """Run a call; return whether it was interrupted."""
        former = sys.gettrace()
        sys.settrace(self.trace)
        try:
            call()
        except TimeLimit:
            return True
        finally:
            sys.settrace(former)
        return False


@pytest.mark.parametrize("how", ["with", "task"])
def test_an_interrupted_block_leaves_no_keys_to_the_next_work(how: str, gate: Dedup) -> None:
    """A request of the thread's next work had the key of the block's first one; a retry of that got its answer."""
    claims: list[Claim] = []

    def block() -> None:
        with claims.pop():
            pass

    def block_of_a_task() -> None:
        claim = claims.pop()
        with claimed_work(b"shop:=order:42", claim):
            claim.release()

    places = 0
    while True:
        claims.append(gate.claim(f"order:{places}"))
        if not Interrupts(places + 1).within(block if how == "with" else block_of_a_task):
            break
        places += 1
        assert present_work() is None
    assert places > 100


def test_a_signal_handler_that_claims_as_the_thread_starts(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its gate and thread were lost, and all later calls were told that the gate is open in another event loop."""
    monkeypatch.setattr(loop, "_current", None)
    start, gate = loop.start_thread, Dedup(redis_url, namespace=f"n{uuid.uuid4().hex}")
    threads: list[Any] = []

    def handled(*arguments: Any) -> Any:
        monkeypatch.setattr(loop, "start_thread", start)
        threads.append(start(*arguments))
        assert gate.claim("of the handler").acquired
        return threads[0]

    monkeypatch.setattr(loop, "start_thread", handled)
    assert gate.claim("order:42").acquired
    assert not gate.claim("of the handler").acquired
    threads[0].join(10.0)  # the one that nobody uses has ended
    gate.close()
    loop.current().end()


def test_a_gate_that_is_being_closed_opens_again(gate: Dedup, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted `close` goes on, and `open` was a UsageError until it had ended."""
    gate.claim("order:42").complete("done")
    kind = type(gate.per_process.present.gate.connection.store)
    closing, go_on, close = threading.Event(), threading.Event(), kind.aclose

    async def close_late(store: Any) -> None:
        closing.set()
        await asyncio.to_thread(go_on.wait, 10.0)
        await close(store)

    monkeypatch.setattr(kind, "aclose", close_late)
    monkeypatch.setattr(loop.LoopThread, "_wait", lambda *_: closing.wait(10.0) and raise_time_limit())
    with pytest.raises(TimeLimit):
        gate.close()
    monkeypatch.undo()
    threading.Timer(0.05, go_on.set).start()
    gate.open()
    assert gate.claim("order:42").outcome is Outcome.SUCCEEDED


async def test_what_settles_begins_though_its_caller_is_cancelled_first() -> None:
    """As Django's asynchronous views settle."""
    begun, busy, go_on = threading.Event(), threading.Event(), threading.Event()
    thread = loop.current()

    def block() -> None:
        busy.set()
        go_on.wait(10.0)

    async def settle() -> None:
        begun.set()

    thread.tell(block)
    assert await asyncio.to_thread(busy.wait, 10.0)
    settling = asyncio.create_task(thread.arun(settle, 10.0, settles=True))
    await asyncio.wait([settling], timeout=0.02)
    await cancel(settling)
    go_on.set()
    assert await asyncio.to_thread(begun.wait, 10.0)
