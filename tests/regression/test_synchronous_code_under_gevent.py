"""`fastdedup.sync` hung for ever under gevent: its background thread was a greenlet, which stopped all others.

The same application runs in each of gunicorn's worker classes that serve several requests at once, and in those that
fork: one worker process answers all requests of a test.
"""

from __future__ import annotations

import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import httpx
import pytest

from fastdedup.errors import UsageError
from fastdedup.sync import Dedup
from fastdedup.sync.loop import new_loop
from fastdedup.sync.native import start_thread

from ..integrations.server_process import gunicorn
from ..programs import ended

APP = "tests.integrations.gunicorn_app:app"
WORKERS = {
    "gevent": ("-k", "gevent"),
    "threads": ("-k", "gthread", "--threads", "8"),
    "threads, preloaded and used before the fork": ("-k", "gthread", "--threads", "8", "--preload"),
    "gevent, preloaded and used before the fork": ("-k", "gevent", "--preload"),
}


@pytest.mark.parametrize("kind", WORKERS)
def test_a_worker_serves_others_while_a_duplicate_waits(redis_url: str, kind: str) -> None:
    """The first request of a key ends only when another has opened the door; its duplicate waits beside it."""
    used = str(int("used" in kind))
    served = gunicorn(APP, *WORKERS[kind], FASTDEDUP_URL=redis_url, USE_BEFORE_FORK=used)
    with served as client, ThreadPoolExecutor(20) as pool:

        def post(path: str, key: str) -> httpx.Response:
            return client.post(path, headers={"idempotency-key": key})

        held = [pool.submit(post, "/held", "h") for _ in range(2)]
        orders = list(pool.map(lambda n: post("/orders", f"key-{n % 8}"), range(16)))
        locked = list(pool.map(lambda n: post("/locked", f"key-{n}"), range(4)))
        assert not any(answer.done() for answer in held)
        post("/open", "o")
        answers = [answer.result() for answer in held]
    assert [answer.status_code for answer in (*orders, *locked, *answers)] == [200] * 22
    assert answers[0].content == answers[1].content
    assert len({answer.text for answer in orders}) == 8
    assert sum("idempotency-replayed" in answer.headers for answer in (*orders, *answers)) == 9


GREENLETS = """
    from gevent import monkey; monkey.patch_all()
    import gevent, sys
    from gevent.event import Event
    from fastdedup.sync import Dedup

    dedup = Dedup(sys.argv[1], namespace="greenlets", timeout=5.0)
    held = dedup.claim("held")
    waiting = Event()

    def wait():
        waiting.set()
        return dedup.claim("held", wait=20.0)

    killed = gevent.spawn(wait)
    waiting.wait()
    gevent.sleep(0.05)  # its claim is on its way; also without it, nothing may be left behind
    killed.kill()
    assert isinstance(killed.value, gevent.GreenletExit)
    try:
        with gevent.Timeout(0.05):
            dedup.claim("held", wait=20.0)
        raise AssertionError("it was not interrupted")
    except gevent.Timeout:
        pass
    held.release()
    again = dedup.claim("held", wait=5.0)
    assert again.acquired, "nobody waits for it any more"
    again.release()

    ticks = []
    ticker = gevent.spawn(lambda: [ticks.append(gevent.sleep(0.001)) for _ in range(100_000)])
    first = dedup.claim("first")
    gevent.spawn_later(0.1, first.complete, "done")
    assert dedup.claim("first", wait=5.0).result == "done"
    assert len(ticks) > 5, "other greenlets run while one waits"
    ticker.kill()

    claims = [gevent.spawn(dedup.claim, f"key {n % 20}") for n in range(100)]
    gevent.joinall(claims)
    assert sum(claim.value.acquired for claim in claims) == 20
    in_a_thread = gevent.get_hub().threadpool.apply(lambda: dedup.claim("from a thread").acquired)
    assert in_a_thread
    dedup.close()
    print("done")
"""


def test_greenlets_wait_are_killed_and_time_out(redis_url: str) -> None:
    ran = ended("-c", textwrap.dedent(GREENLETS), redis_url)
    assert (ran.stdout, ran.stderr) == ("done\n", "")


def test_eventlet_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    patcher = SimpleNamespace(is_monkey_patched=lambda name: name == "thread")
    monkeypatch.setitem(sys.modules, "eventlet.patcher", patcher)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="does not work under eventlet"):
        start_thread(lambda: None, "never")


@pytest.mark.parametrize("module", ["threading", "select"])
def test_gevent_without_uvloop_is_refused_at_once(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    """Python's own loop waits by gevent's `select` there, in a hub that does not survive a fork."""
    patched = SimpleNamespace(is_module_patched=lambda name: name == module)
    monkeypatch.setitem(sys.modules, "gevent.monkey", patched)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "uvloop", None)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="needs uvloop under gevent"):
        new_loop()


def test_gevent_that_has_replaced_nothing_changes_nothing(redis_url: str) -> None:
    import gevent.monkey

    assert not gevent.monkey.is_module_patched("threading")
    with Dedup(redis_url, namespace="plain", timeout=5.0) as dedup:
        assert dedup.claim("key").acquired
