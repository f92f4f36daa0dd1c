"""Forks, threads, closing under load, ending without closing."""

from __future__ import annotations

import asyncio
import gc
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import orjson
import pytest
import uvloop

from fastdedup import ClaimLostError, Dedup, UnavailableError, UsageError

from ..idle import IdleTime
from ..programs import started, text_ended
from ..servers import RedisServer
from ..waiting import wait_until

Work = Callable[[], Coroutine[Any, Any, Any]]

TIMEOUT = 10.0
"""Seconds: generous, so that only what a test does is an outage."""
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def gate(url: str, **options: Any) -> Dedup:
    """Asks the store each time: what this process knows would hide what the store says."""
    return Dedup(url, **{"timeout": TIMEOUT, "known_duplicates": 0.0, **options})


def in_thread(work: Work, loop: str = "asyncio") -> Any:
    """Run work in a loop of its own, in a thread of its own; return or raise what it does."""
    answers: list[Any] = []

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
                answers.append(runner.run(work()))
        except BaseException as error:  # noqa: BLE001 -- raised again, in the thread that waits
            answers.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(answers[0], BaseException):
        raise answers[0]
    return answers[0]


async def settled(url: str, keys: list[str]) -> None:
    """Complete each key with its own name: an answer that belongs to another key shows."""
    async with gate(url) as dedup:
        for claim in await dedup.claim_many(keys):
            await claim.complete(claim.key)


# Forks: each scenario in a process of its own, so that no child ever runs what belongs to pytest,
# and none can break pytest's own loop.

PRELUDE = """
import asyncio, json, multiprocessing, os, sys, uvloop, warnings
from fastdedup import Dedup

warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads

URL, LOOP = sys.argv[1:]

def gate():
    return Dedup(URL, timeout=10.0, known_duplicates=0.0)

def run(main):
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if LOOP == "uvloop" else None) as runner:
        return runner.run(main())

async def error_of(work):
    try:
        return f"answered: {await work}"
    except Exception as error:
        return type(error).__name__

def tell(send, answer):
    os.write(send, json.dumps(answer).encode())
    os._exit(0)

async def hear(receive, child):
    def read():
        with os.fdopen(receive, "rb") as pipe:
            told = pipe.read()
        os.waitpid(child, 0)
        return json.loads(told or "null")
    return await asyncio.to_thread(read)
"""


def in_process(scenario: str, url: str, loop: str) -> Any:
    """Run `scenario`, which prints JSON, in a process of its own."""
    done = text_ended(PRELUDE + scenario, url, loop)
    assert (done.returncode, done.stderr) == (0, "")
    return orjson.loads(done.stdout)


WORKERS = """
async def work(name):
    async with gate() as dedup:
        claims = await asyncio.gather(*(dedup.claim(f"key-{n}") for n in range(300)))
        won = [claim for claim in claims if claim.acquired]
        await asyncio.gather(*(claim.complete(claim.key) for claim in won))
        results = [(await dedup.claim(f"key-{n}", wait=10.0)).result for n in range(300)]
        return {"won": [[c.key, c.owner, c.fence] for c in won], "owners": [c.owner for c in claims],
                "results": results}

def start(name):
    return run(lambda: work(name))

# Before the fork: owners are drawn, a loop has run, a connection was open.
async def before():
    async with gate() as dedup:
        return [(await dedup.claim(f"before-{n}")).owner for n in range(10)]

drawn = run(before)
with multiprocessing.get_context("fork").Pool(4) as pool:
    children = pool.map(start, range(4))
print(json.dumps({"drawn": drawn, "children": children, "parent": start("parent")}))
"""


@pytest.mark.parametrize("loop", LOOPS)
def test_processes_forked_after_import_share_nothing_but_the_keys(redis_url: str, loop: str) -> None:
    """Guarantee 1 across processes: one winner a key among all of them, and no owner in two processes."""
    told = in_process(WORKERS, redis_url, loop)
    everyone = [*told["children"], told["parent"]]
    won = Counter(key for process in everyone for key, _, _ in process["won"])
    assert won == {f"key-{n}": 1 for n in range(300)}
    owners = told["drawn"] + [owner for process in everyone for owner in process["owners"]]
    assert len(set(owners)) == len(owners)
    for process in everyone:
        assert process["results"] == [f"key-{n}" for n in range(300)]


OPENED = """
async def in_child(dedup, held):
    orders = dedup.machine("order", initial="new", transitions={"new": ("paid",), "paid": ()})
    refused = {
        "claim": dedup.claim("child"), "named": dedup.claim("child", owner="me"),
        "waiting": dedup.claim("child", wait=1), "claim_many": dedup.claim_many(["child"]),
        "complete": held.complete("child"), "release": held.release(), "renew": held.renew(), "touch": held.touch(),
        "get": dedup.get("child"), "forget": dedup.forget("held"),
        "issue": dedup.tokens.issue(), "consume": dedup.tokens.consume("x"),
        "transition": orders.transition("child", to="paid"),
    }
    answers = {name: await error_of(call) for name, call in refused.items()}
    async with gate() as own:
        answers["own"] = [(await own.claim(f"key-{n}")).result for n in range(100)]
        answers["own claim"] = await error_of(own.claim("free"))
    return answers

async def main():
    async with gate() as dedup:
        held = await dedup.claim("held")
        keys = [f"key-{n}" for n in range(1000)]
        tasks = [asyncio.create_task(dedup.claim(key)) for key in keys * BUSY]
        for _ in range(TURNS):
            await asyncio.sleep(0)
        receive, send = os.pipe()
        child = os.fork()
        if not child:
            tell(send, run(lambda: in_child(dedup, held)))
        os.close(send)
        meanwhile = [(await dedup.claim(key)).result for key in keys[:100]]
        under_way = [claim.result for claim in await asyncio.gather(*tasks)]
        told = await hear(receive, child)
        afterwards = [claim.result for claim in await dedup.claim_many(keys)]
        await held.complete("parent")
        print(json.dumps({
            "child": told, "meanwhile": meanwhile, "under way": under_way, "afterwards": afterwards,
            "free": str(await dedup.claim("free")), "held": (await dedup.claim("held")).result,
            "absent": await dedup.get("child") is None,
        }))

run(main)
"""


@pytest.mark.parametrize(("busy", "turns"), [(0, 0), (1, 1), (1, 2)])
@pytest.mark.parametrize("loop", LOOPS)
async def test_a_child_cannot_use_what_its_parent_opened_and_works_with_its_own(
    redis_url: str, loop: str, busy: int, turns: int
) -> None:
    """Forked while idle, and while claims of the parent are about to go out, or have."""
    keys = [f"key-{n}" for n in range(1000)]
    await settled(redis_url, keys)
    scenario = OPENED.replace("BUSY", str(busy)).replace("TURNS", str(turns))
    told = await asyncio.to_thread(in_process, scenario, redis_url, loop)
    child = told["child"]
    assert child.pop("own") == keys[:100]
    assert child.pop("own claim").startswith("answered: <Claim 'free' acquired")
    assert told["meanwhile"] == keys[:100]
    assert told["under way"] == keys * busy
    assert told["afterwards"] == keys
    assert told["held"] == "parent", "the child did not touch it"
    assert told["absent"]
    assert "in_progress" in told["free"], "the child's own claim is another owner's"
    assert set(child.values()) == {"UsageError"}, child


CLOSED = """
async def main():
    async with gate() as dedup:
        await dedup.claim("before")
        with_listener = await dedup.claim("before", wait=0.001)
        tasks = [asyncio.create_task(dedup.claim(f"key-{n}")) for n in range(100 * BUSY)]
        await asyncio.sleep(0)
        receive, send = os.pipe()
        child = os.fork()
        if not child:
            tell(send, run(lambda: error_of(dedup.aclose())))
        os.close(send)
        told = await hear(receive, child)
        under_way = [claim.acquired for claim in await asyncio.gather(*tasks)]
        after = [(await dedup.claim(f"after-{n}")).acquired for n in range(3)]
        print(json.dumps({"child": told, "under way": under_way, "after": after}))

run(main)
"""


@pytest.mark.parametrize("busy", [0, 1])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_child_that_closes_what_its_parent_opened_does_not_disturb_the_parent(
    redis_url: str, loop: str, busy: int
) -> None:
    """They share the sockets, and with them what the parent's loop watches."""
    told = in_process(CLOSED.replace("BUSY", str(busy)), redis_url, loop)
    assert told["under way"] == [True] * 100 * busy
    assert told["after"] == [True] * 3
    assert told["child"] in {"UsageError", "answered: None"}


STAYING = """
async def main():
    async with gate() as dedup:
        keys = [f"key-{n}" for n in range(1000)]
        tasks = [asyncio.create_task(dedup.claim(key)) for key in keys]
        for _ in range(TURNS):
            await asyncio.sleep(0)
        receive, send = os.pipe()
        child = os.fork()
        if not child:
            for _ in range(5):
                await asyncio.sleep(0)  # what is due in the loop would go out now
            tell(send, await error_of(dedup.claim("child")))
        os.close(send)
        told = await hear(receive, child)
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        results = [str(a) if isinstance(a, Exception) else a.result for a in answers]
        calls = await dedup.get("child") is None
        print(json.dumps({"child": told, "results": results, "absent": calls}))

run(main)
"""


@pytest.mark.parametrize("turns", [1, 2])
@pytest.mark.parametrize("loop", LOOPS)
async def test_a_child_that_goes_on_in_its_parents_loop_sends_nothing(
    own_redis: RedisServer, loop: str, turns: int
) -> None:
    """It inherits what is about to be sent, and the socket."""
    keys = [f"key-{n}" for n in range(1000)]
    await settled(own_redis.url, keys)
    with own_redis.client() as raw:
        raw.config_resetstat()
        told = await asyncio.to_thread(in_process, STAYING.replace("TURNS", str(turns)), own_redis.url, loop)
        stats = raw.info("commandstats")
    assert told["results"] == keys
    assert told["absent"]
    assert told["child"] == "UsageError"
    # 1000 claims in batches of up to 256 and one look at a key: twice as many, had the child sent its copy.
    assert stats["cmdstat_evalsha"]["calls"] <= 6
    assert stats["cmdstat_getrange"]["calls"] == 1001


# Threads


async def test_loops_in_threads_have_one_winner_a_key_and_no_crossed_replies(redis_url: str) -> None:
    keys = [f"key-{n}" for n in range(300)]
    together = threading.Barrier(4)

    async def race(name: str) -> tuple[list[str], list[Any]]:
        async with gate(redis_url) as dedup:
            together.wait(20)
            won = []

            async def work(key: str) -> Any:
                async with dedup.claim(key, wait=20) as claim:
                    if claim.acquired:
                        won.append(key)
                        await claim.complete([key, name])
                        return [key, name]
                    return claim.result

            order = random.Random(name).sample(keys, len(keys))
            results = dict(zip(order, await asyncio.gather(*map(work, order)), strict=True))
            return won, [results[key] for key in keys]

    def thread(name: str, loop: str) -> tuple[list[str], list[Any]]:
        return in_thread(lambda: race(name), loop)  # type: ignore[no-any-return]

    threads = [asyncio.to_thread(thread, f"{loop}-{n}", loop) for loop in LOOPS for n in range(2)]
    raced = await asyncio.gather(*threads)
    winners = Counter(key for won, _ in raced for key in won)
    assert winners == dict.fromkeys(keys, 1)
    first = raced[0][1]
    assert [key for key, _ in first] == keys, "each result belongs to its key"
    assert all(results == first for _, results in raced), "everyone gets the first result"


def uses(dedup: Dedup, held: Any) -> dict[str, Work]:
    """Every way to use a gate or a claim of it."""
    orders = dedup.machine("order", initial="new", transitions={"new": ("paid",), "paid": ()})

    async def enter(context: Any) -> None:
        async with context:
            pass

    async def call_once() -> None:
        @dedup.once(key=lambda: "key")
        async def work() -> None: ...

        await work()

    async def claim(**options: Any) -> Any:
        return await dedup.claim("key", **options)

    return {
        "claim": claim,
        "claim by name": lambda: claim(owner="me"),
        "claim and wait": lambda: claim(wait=1.0),
        "claim and renew": lambda: claim(renew=True),
        "claim many": lambda: dedup.claim_many(["key"]),
        "async with": lambda: enter(dedup.claim("key")),
        "lock": lambda: enter(dedup.lock("key")),
        "once": call_once,
        "complete": lambda: held.complete(),
        "fail": lambda: held.fail(),
        "release": lambda: held.release(),
        "renew": lambda: held.renew(),
        "touch": lambda: held.touch(),
        "get": lambda: dedup.get("key"),
        "forget": lambda: dedup.forget("held"),
        "issue": lambda: dedup.tokens.issue(),
        "consume": lambda: dedup.tokens.consume("token"),
        "redeem": lambda: dedup.tokens.redeem("token"),
        "scope": lambda: dedup.scoped("sms").claim("key"),
        "transition": lambda: orders.transition("42", to="paid"),
        "state": lambda: orders.get("42"),
        "open": lambda: dedup.open(),
    }


@pytest.mark.parametrize("busy", [0, 1000])
@pytest.mark.parametrize("loop", LOOPS)
async def test_a_gate_used_from_another_threads_loop_says_so_and_is_not_harmed(
    redis_url: str, loop: str, busy: int
) -> None:
    """Also while its own loop has claims to send."""
    async with gate(redis_url) as dedup:
        held = await dedup.claim("held")
        tasks = [asyncio.create_task(dedup.claim(f"key-{n}")) for n in range(busy)]
        await asyncio.sleep(0)

        async def use_all() -> dict[str, str]:
            said = {}
            for name, use in uses(dedup, held).items():
                try:
                    said[name] = f"answered {await asyncio.wait_for(use(), 5)!r}"
                except UsageError as error:
                    said[name] = str(error)
            return said

        # The first with its own loop in mid-turn, the second while it runs.
        said = in_thread(use_all, loop)
        said_again = await asyncio.to_thread(in_thread, use_all, loop)
        assert {claim.acquired for claim in await asyncio.gather(*tasks)} <= {True}
        assert said == said_again
        assert "is open already; open it once" in said.pop("open")
        for name, error in said.items():
            settles = name in ("complete", "fail", "release", "renew", "touch")
            told = "settle a claim in the loop that made it" if settles else "open one Dedup in each loop"
            assert told in error, name
        await held.complete("done")
        assert (await dedup.claim("held")).result == "done"
        assert await dedup.get("key") is None
        assert dedup.gate.connection.engine is not None
        assert dedup.gate.connection.engine.pending == 0


CLOSED_ELSEWHERE = """
async def close(dedup):
    return await error_of(asyncio.wait_for(dedup.aclose(), 5))

async def main():
    dedup = await gate().open()
    tasks = [asyncio.create_task(dedup.claim(f"key-{n}")) for n in range(1000)]
    await asyncio.sleep(0)
    told = await asyncio.to_thread(run, lambda: close(dedup))
    under_way = [claim.acquired for claim in await asyncio.gather(*tasks)]
    after = (await dedup.claim("after")).acquired
    await dedup.aclose()
    print(json.dumps({"thread": told, "under way": under_way, "after": after}))

run(main)
"""


@pytest.mark.parametrize("loop", LOOPS)
def test_a_gate_closed_from_another_threads_loop_says_so_and_stays_open(redis_url: str, loop: str) -> None:
    """Its connection is not for another thread to touch."""
    told = in_process(CLOSED_ELSEWHERE, redis_url, loop)
    assert told == {"thread": "UsageError", "under way": [True] * 1000, "after": True}


# Closing and ending


@pytest.mark.parametrize("fault", ["none", "frozen", "killed"])
async def test_closing_in_the_middle_of_all_kinds_of_work_ends_in_time(
    own_redis: RedisServer, fault: str
) -> None:
    """Every caller gets an answer or a clear error, also where the server is gone by then."""
    complaints: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    dedup = await gate(own_redis.url, timeout=0.5).open()
    done: list[str] = []

    async def work(n: int) -> None:
        """Goes on for ever: nobody waits for anything but the gate."""
        while True:
            async with dedup.claim(f"key-{n % 300}", lease=2.0, wait=0.5 * (n % 2)) as claim:
                if claim.acquired:
                    await claim.release()
            done.append(claim.key)
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(work(n)) for n in range(1000)]
    await wait_until(lambda: len(done) > 1000, description="it is busy")
    if fault == "frozen":
        own_redis.freeze()
    elif fault == "killed":
        own_redis.kill()
    with IdleTime() as idle:
        await dedup.aclose()
    assert idle.seconds < 4.0, "what must be finished, the queue, the goodbye: a deadline each"
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    kinds = {type(answer) for answer in answers}
    assert kinds <= {UsageError, UnavailableError, ClaimLostError}, kinds
    if fault == "none":
        assert kinds == {UsageError}
    tasks.clear()
    answers.clear()
    gc.collect()
    await asyncio.sleep(0)
    assert not complaints, complaints[:3]


NEVER_CLOSED = """
import asyncio, sys, uvloop
from fastdedup import Dedup

async def main(url):
    dedup = await Dedup(url, timeout=1.0).open()
    held = await dedup.claim("held", renew=True, lease=60)

    async def body():
        async with dedup.claim("body", renew=True):
            await asyncio.Event().wait()

    tasks = [asyncio.create_task(dedup.claim("held", wait=60)) for _ in range(10)]
    tasks.append(asyncio.create_task(body()))
    while not dedup.gate.connection.wakeups.waiting or await dedup.get("body") is None:
        await asyncio.sleep(0)
    print("ready", flush=True)
    sys.stdin.readline()
    tasks += [asyncio.create_task(dedup.claim(f"key-{n}")) for n in range(1000)]
    await asyncio.sleep(0)
    main.keeps = dedup, held, tasks

with asyncio.Runner(loop_factory=uvloop.new_event_loop if sys.argv[2] == "uvloop" else None) as runner:
    runner.run(main(sys.argv[1]))
"""


@pytest.mark.parametrize(
    ("loop", "fault"),
    [("asyncio", "none"), ("asyncio", "frozen"), ("uvloop", "none"), ("uvloop", "killed")],
)
def test_a_program_that_never_closes_its_gate_just_ends(
    own_redis: RedisServer, loop: str, fault: str
) -> None:
    """With waiters, bodies, renewals and claims under way: no hang, no traceback."""
    command = [sys.executable, "-c", NEVER_CLOSED, own_redis.url, loop]
    with started(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        if fault == "frozen":
            own_redis.freeze()
        elif fault == "killed":
            own_redis.kill()
        # A body that is cancelled frees its key first, for a deadline at the most.
        _, errors = program.communicate("go\n", timeout=15)
    assert program.returncode == 0
    # Ending takes a deadline there, in which it connects anew; asyncio complains of what it cuts short.
    assert fault == "frozen" or not [
        line for line in errors.splitlines() if not line.startswith("gate 'fastdedup': ")
    ]
