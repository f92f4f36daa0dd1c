"""`fastdedup.sync`: the background thread's life and death, forks, interrupts, and what may not block."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from inspect import signature
from typing import Any

import pytest

from fastdedup import (
    ConfigError,
    InProgressError,
    InvalidKeyError,
    Outcome,
    UnavailableError,
    UsageError,
)
from fastdedup.core.options import ClaimOptions
from fastdedup.core.together import AT_ONCE
from fastdedup.stores.memory import MemoryStore
from fastdedup.sync import Dedup
from fastdedup.sync import loop as background
from fastdedup.sync.tokens import Tokens

from ..fixtures import fixture_of
from ..programs import ended, forked, until
from ..servers import RedisServer

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*multi-threaded, use of fork:DeprecationWarning"
)  # Python 3.12+


dedup = fixture_of(Dedup, "memory://", lease=60)


def test_mistakes_are_told_where_they_are_made() -> None:
    with pytest.raises(ConfigError):
        Dedup("nonsense://")
    with pytest.raises(ConfigError):
        Dedup("memory://", lease=-1)
    dedup = Dedup("memory://")
    with pytest.raises(ConfigError):
        dedup.scoped("no spaces")
    with pytest.raises(ConfigError):
        dedup.machine("order", initial="nowhere", transitions={})
    with pytest.raises(InvalidKeyError):
        dedup.claim("")
    with pytest.raises(ConfigError):
        dedup.claim("key", wait="long")  # type: ignore[arg-type]
    dedup.close()


def test_options_have_the_order_of_their_fields() -> None:
    """They are passed on by position."""
    for method in (Dedup.claim, Dedup.claim_many, Tokens.redeem):
        given = [
            name for name, kind in signature(method).parameters.items() if kind.kind is kind.KEYWORD_ONLY
        ]
        options = [name for name in given if not name.startswith("fingerprint")]
        assert options == [*ClaimOptions._fields[: len(options)]]


def test_opening_twice_and_closing_twice_are_fine() -> None:
    dedup = Dedup("memory://")
    with dedup as entered:
        assert entered is dedup
        dedup.open()
    dedup.close()
    with pytest.raises(UsageError, match="closed"):
        dedup.claim("key")
    with pytest.raises(UsageError, match="closed"):
        dedup.scoped("sms").claim("key")
    never_used = Dedup("memory://")
    never_used.close()
    with pytest.raises(UsageError, match="closed"):
        never_used.claim("key")


def test_after_closing_it_can_be_opened_again(redis_url: str) -> None:
    for url, remembered in ((redis_url, True), ("memory://", False)):
        dedup = Dedup(url, namespace="t")
        sms = dedup.scoped("sms")
        for n in range(3):
            with sms:  # a scoped gate opens and closes all that share the connection
                assert dedup.claim("key").acquired == (not remembered or n == 0)
            with dedup.open().claim(f"key-{n}") as claim:
                assert claim.acquired
            dedup.close()


def test_a_gate_that_is_collected_closes_its_connections(redis_server: RedisServer, redis_url: str) -> None:
    """Also those of its waiters; not before the last claim and the last scope of it are gone."""
    with redis_server.client() as raw:
        before = len(raw.client_list())

        def connections() -> int:
            gc.collect()
            return len(raw.client_list()) - before

        dedup = Dedup(redis_url)
        sms = dedup.scoped("sms")
        claim, duplicate = dedup.claim("key"), dedup.claim("key", wait=0.01)
        assert not duplicate.acquired
        assert connections() == 2  # one listens for the waiter
        del dedup, duplicate
        assert sms.claim("key").acquired
        del sms
        claim.complete(7)
        assert connections() == 2
        del claim
        until(lambda: not connections(), "its connections are closed")
        with Dedup(redis_url) as another:
            assert another.claim("key").result == 7


def test_many_threads_share_one_thread_and_one_winner(dedup: Dedup) -> None:
    other = Dedup("memory://")
    barrier = threading.Barrier(16)

    def click(n: int) -> int:
        barrier.wait()
        return sum(dedup.claim(f"key-{step}").acquired for step in range(50))

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(click, range(16))) == 50
    other.claim("key")
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("fastdedup-sync") == 1
    other.close()


def test_many_threads_may_be_the_first_to_use_it() -> None:
    dedup = Dedup("memory://")
    barrier = threading.Barrier(16)

    def click(n: int) -> bool:
        barrier.wait()
        return dedup.claim("key").acquired

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(click, range(16))) == 1
    dedup.close()


def test_a_child_forked_before_use_has_its_own() -> None:
    dedup = Dedup("memory://")
    forked(lambda: dedup.claim("key").complete("child"))
    assert dedup.claim("key").acquired, "memory:// is each process's own"
    dedup.close()


def test_a_child_forked_after_use_has_its_own(dedup: Dedup) -> None:
    scope, machine = dedup.scoped("sms"), dedup.machine("m", initial="a", transitions={"a": ("b",), "b": ()})
    held = dedup.claim("held")
    scope.claim("held")
    machine.transition("1", to="b")

    def child() -> None:
        for gate in (dedup, scope):
            with gate.claim("held") as claim:
                assert claim.acquired
        assert machine.get("1") == ("a", 0)
        gc.collect()
        with pytest.raises(UsageError, match="another process"):
            held.complete()
        forked(lambda: dedup.claim("grandchild").complete())

    forked(child)
    held.complete("parent's")
    assert dedup.claim("held").result == "parent's"


def test_a_child_leaves_a_body_that_is_its_parents(dedup: Dedup) -> None:
    with dedup.claim("key") as claim:
        # Runs on to the end of the block in the child, too, as a fork in the middle of it would.
        forked(lambda: claim.__exit__(None, None, None))
        claim.complete("by the parent")
    assert dedup.claim("key").result == "by the parent"


def test_a_lock_entered_twice_is_an_error_and_stays_held(dedup: Dedup) -> None:
    """The second `with` forgot the held lock, and the next caller's body ran at the same time as the first one."""
    lock = dedup.lock("key")
    with lock:
        with pytest.raises(UsageError, match=r"entered before; call lock\(\) for another one"):
            lock.__enter__()
        with pytest.raises(InProgressError):
            dedup.lock("key").__enter__()
    with dedup.lock("key"), pytest.raises(UsageError):
        lock.__enter__()


def test_the_block_of_a_claim_runs_once(dedup: Dedup) -> None:
    """An asyncio claim is made anew by each `async with`; here one object can be entered again."""
    with dedup.claim("key") as claim:
        claim.complete("done")
    with pytest.raises(UsageError, match="was entered before, so its block does not run again: claim anew"):
        claim.__enter__()
    with dedup.claim("another") as other, pytest.raises(UsageError, match="was entered before"):
        other.__enter__()


def test_a_fork_while_other_threads_are_at_work_does_not_hang_the_child(dedup: Dedup) -> None:
    stopping = threading.Event()

    def work(n: int) -> None:
        step = 0
        while not stopping.is_set():
            dedup.claim(f"{n}-{step}")
            step += 1

    with ThreadPoolExecutor(4) as pool:
        working = [pool.submit(work, n) for n in range(4)]
        for _ in range(10):
            forked(lambda: dedup.claim("key").complete())
        stopping.set()
        for each in working:
            each.result()


def test_a_store_object_lives_in_one_process() -> None:
    dedup = Dedup(MemoryStore())
    dedup.claim("key")

    def child() -> None:
        with pytest.raises(UsageError, match="URL"):
            dedup.claim("key")

    forked(child)
    assert dedup.claim("key").outcome is Outcome.IN_PROGRESS
    dedup.close()


def kill_thread() -> None:
    thread = background.current()
    thread.tell(thread.loop.stop)
    thread._thread.join(10)


def test_a_dead_thread_is_noticed_and_replaced(dedup: Dedup) -> None:
    claim = dedup.claim("key")
    kill_thread()
    with pytest.raises(UsageError, match="died"):
        claim.complete()
    assert dedup.claim("another").acquired


def test_a_block_that_cannot_be_recorded_is_an_error(dedup: Dedup) -> None:
    """It ended like one that was recorded; the next caller did the work again when the lease was over."""
    unsettled, settled, lock = dedup.claim("key"), dedup.claim("another"), dedup.lock("key")
    for held in (unsettled, settled, lock):
        held.__enter__()
    settled.complete()
    kill_thread()
    for unrecorded in (unsettled, lock):
        with pytest.raises(UsageError, match="died"):
            unrecorded.__exit__(None, None, None)
    settled.__exit__(None, None, None)
    fault = ValueError("the body's own")
    unsettled.__exit__(ValueError, fault, None)


def test_who_waits_when_the_thread_dies_is_told(dedup: Dedup) -> None:
    dedup.claim("key")
    thread = background.current()

    def kill() -> None:
        thread.tell(thread.loop.stop)

    threading.Timer(0.05, kill).start()
    with pytest.raises(UnavailableError, match="background thread"):
        dedup.claim("key", wait=60)


def test_a_stuck_thread_hangs_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "GRACE", 0.1)
    free = threading.Event()

    class Stuck:
        def dumps(self, value: Any) -> bytes:
            free.wait(30)
            return b"1"

        def loads(self, data: bytes) -> Any:
            return 1

    with Dedup("memory://", codec=Stuck(), timeout=0.02, lease=0.1) as dedup:
        claim = dedup.claim("key")
        with pytest.raises(UnavailableError, match="is something blocking it"):
            claim.complete("x")
        free.set()


@pytest.mark.parametrize("owner", [None, "me"])
def test_a_long_list_has_the_time_of_all_its_parts(
    owner: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """500,000 keys ended after 7 s, as if the thread were stuck, although each part was answered in time."""
    longest: list[float] = []
    run = background.LoopThread.run

    def noted(thread: background.LoopThread, make: Any, seconds: float, *rest: Any, **options: Any) -> Any:
        longest.append(seconds)
        return run(thread, make, seconds, *rest, **options)

    with Dedup("memory://", timeout=5.0) as dedup:
        ledger = dedup.ledger("seen", capacity=10_000, window=60.0).open()
        monkeypatch.setattr(background.LoopThread, "run", noted)
        for count in (0, AT_ONCE, AT_ONCE + 1):
            keys = [f"{count}-{number}" for number in range(count)]
            assert len(dedup.claim_many(keys, owner=owner)) == count
            assert ledger.first_many(keys, owner=owner) == [True] * count
    assert longest[:6] == [40.0, 40.0, 40.0, 40.0, 80.0, 80.0]


def test_calling_it_from_its_own_callbacks_is_an_error_not_a_deadlock() -> None:
    caught: list[BaseException] = []

    class Nosy:
        def dumps(self, value: Any) -> bytes:
            try:
                dedup.claim("inner")
            except UsageError as error:
                caught.append(error)
            return b"1"

        def loads(self, data: bytes) -> Any:
            return 1

    with Dedup("memory://", codec=Nosy()) as dedup, dedup.claim("key") as claim:
        claim.complete(1)
    assert "wait for itself" in str(caught[0])


@pytest.fixture
def interrupts() -> Iterator[None]:
    """SIGINT interrupts, also where the tests run in the background, which has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupted_claim_is_taken_back(dedup: Dedup, interrupts: None) -> None:
    """Ctrl-C, or a worker's soft time limit, while it waits."""
    holder = dedup.claim("key")

    threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        dedup.claim("key", wait=60)
    holder.release()
    assert dedup.claim("key", wait=5).acquired, "nobody waits for it in the background"


EXITS = """
import os, threading
from fastdedup import LocalLRU
from fastdedup.sync import Dedup

def idle(dedup): dedup.claim('key')
def never_used(dedup): pass
def in_a_body(dedup): dedup.claim('key', renew=True).__enter__()
def in_atexit(dedup):
    import atexit
    atexit.register(lambda: dedup.claim('late'))
    dedup.claim('key')
def forked(dedup):
    dedup.claim('key')
    pid = os.fork()
    dedup.claim('k')
    pid and os.waitpid(pid, 0)
def unavailable(dedup): Dedup('unix:///nowhere.sock', on_unavailable=LocalLRU()).claim('key')
def a_thread_waits(dedup):
    dedup.claim('key', lease=60)
    def waits():
        try: dedup.claim('key', wait=60)
        except Exception: pass  # told that the gate is closed, or not told any more
    threading.Thread(target=waits, daemon=True).start()

children = {}
for case in (idle, never_used, in_a_body, in_atexit, forked, unavailable, a_thread_waits):
    pid = os.fork()
    if pid == 0:
        case(Dedup('memory://'))
        break
    children[pid] = case
else:
    for pid, case in children.items():
        assert os.waitpid(pid, 0)[1] == 0, case
"""


def test_the_interpreter_ends_in_time_whatever_is_open() -> None:
    """Each case is a fork of a program, and ends as an interpreter does."""
    done = ended("-c", EXITS)
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stderr


class Unrun:
    async def __call__(self, order: str) -> str:
        return order


def generator(order: str) -> Iterator[str]:
    yield order


async def asynchronous(order: str) -> str:
    return order


@pytest.mark.parametrize("function", [generator, asynchronous, Unrun()])
def test_once_refuses_what_does_no_work_when_it_is_called(function: Any, dedup: Dedup) -> None:
    with pytest.raises(ConfigError, match=r"generator|async"):
        dedup.once(key=lambda order: order)(function)


@pytest.mark.parametrize("function", [generator, asynchronous])
def test_once_records_no_work_that_nobody_has_run(function: Any, dedup: Dedup) -> None:
    """It was recorded as a failure, so that no retry did the work."""
    once = dedup.once(key=lambda order: order)(lambda order: function(order))
    for _ in range(2):
        with pytest.raises(UsageError, match="was never run"):
            once("order:42")
    assert dedup.claim("order:42").attempt == 3
