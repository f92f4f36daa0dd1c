"""What a first program gets wrong is told where it is made; seconds and timedelta mean the same."""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import Any

import flask
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette

from fastdedup import ConfigError, Dedup, InProgressError, Outcome, Reject, __version__, business_key
from fastdedup import sync as blocking
from fastdedup.integrations import asgi, wsgi
from fastdedup.integrations.fastapi import Idempotency
from fastdedup.integrations.flask import FastDedup
from fastdedup.sql import Inbox
from fastdedup.sync.sql import Inbox as SyncInbox

from ..programs import ended
from ..stores import Backend

# What a first program gets wrong: each mistake is told where it is made, with what to do.


ASYNC = Dedup("memory://", namespace="first")
SYNC = blocking.Dedup("memory://", namespace="first")
INBOX: dict[str, Any] = {"keep": 60.0, "begin": lambda: None}


@pytest.mark.parametrize("missing", ["click", "rich", ""])
def test_the_version_needs_no_extra(missing: str) -> None:
    script = (
        f"import sys; sys.modules[{missing!r}] = None; sys.argv = ['fastdedup', '--version']\n"
        "from fastdedup.__main__ import main; main()"
    )
    done = ended("-c", script, check=True)
    assert done.stdout.startswith(f"fastdedup {__version__}, ")
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Idempotency(ASYNC, FastAPI()), r"Idempotency\(app, dedup\) must be .*, got fastapi"),
        (lambda: asgi.IdempotencyMiddleware(ASYNC, Starlette(), principal=asgi.everyone), r"\(app, dedup\)"),
        (lambda: wsgi.IdempotencyMiddleware(SYNC, print, principal=wsgi.everyone), r"\(app, dedup\)"),
        (
            lambda: FastDedup(SYNC, flask.Flask("a")),
            r"FastDedup\(app, dedup\) must be a flask.Flask, got fastd",
        ),
        (lambda: FastDedup(SYNC), r"FastDedup\(app, dedup\) must be a flask.Flask"),
    ],
)
def test_swapped_arguments_are_told(make: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


def test_no_password_is_in_the_error() -> None:
    wrong: Any = "redis://:hunter2@localhost"
    for make in (
        lambda: Idempotency(FastAPI(), wrong),
        lambda: asgi.IdempotencyMiddleware(Starlette(), wrong, principal=asgi.everyone),
        lambda: wsgi.IdempotencyMiddleware(print, wrong, principal=wsgi.everyone),  # type: ignore[arg-type]
        lambda: FastDedup(flask.Flask("a"), wrong),
    ):
        with pytest.raises(ConfigError) as caught:
            make()
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("name", ["acquired", "fence", "owner", "renew"])
def test_a_lock_that_is_not_entered_says_how(name: str) -> None:
    with pytest.raises(AttributeError, match=r"write `with dedup.lock\(key\) as lock:`"):
        getattr(SYNC.lock("k"), name)
    lock = ASYNC.lock("k")
    lock.call.close()
    with pytest.raises(AttributeError, match=rf"'{name}': write `async with dedup.lock\(key\) as lock:`"):
        getattr(lock, name)


FITTING: list[tuple[Any, Any]] = [
    (lambda order: "k", lambda number: None),  # called by position
    (lambda *given, **named: "k", lambda a, *, b: None),
    (lambda *, b, **rest: "k", lambda a, b: None),
    (lambda a, b=1: "k", lambda a: None),
    (lambda a: "k", lambda a, b=1: None),
    (lambda a: "k", lambda *given: None),
    (lambda a, /, *, b: "k", lambda x, /, **named: None),
    (str, lambda a: None),
    (lambda: "k", lambda a=1: None),
    (lambda a: "k", lambda a, b: None),  # called with what it names
    (lambda *, user: "k", lambda user, /: None),
    (lambda a, /: "k", lambda *, a: None),
]
UNFIT: list[tuple[Any, Any]] = [
    (lambda: "k", lambda a: None),
    (lambda a, b: "k", lambda a: None),
    (lambda c: "k", lambda a, b: None),
    (lambda user: "k", lambda *, order: None),
]


def decorators(**rules: Any) -> list[tuple[Any, bool]]:
    """Return each `once`, and whether it decorates async functions."""
    return [
        (ASYNC.once(**rules), True),
        (SYNC.once(**rules), False),
        (Inbox("first", **INBOX).once(**rules), True),
        (SyncInbox("first", **INBOX).once(**rules), False),
    ]


def coloured(function: Any, is_async: bool) -> Any:
    """Return a function with these parameters, async if it shall be."""
    if not is_async:
        return function

    async def work() -> None: ...

    work.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return work


@pytest.mark.parametrize(("key", "function"), FITTING)
def test_a_key_that_fits_some_call_is_taken(key: Any, function: Any) -> None:
    for once, is_async in decorators(key=key, fingerprint=key):
        once(coloured(function, is_async))


@pytest.mark.parametrize(("key", "function"), UNFIT)
def test_a_key_that_fits_no_call_is_told(key: Any, function: Any) -> None:
    for rules, name in (({"key": key}, "key"), ({"key": str, "fingerprint": key}, "fingerprint")):
        for once, is_async in decorators(**rules):
            with pytest.raises(ConfigError, match=rf"^{name}= takes \(.*no call of .* fits"):
                once(coloured(function, is_async))


@pytest.mark.parametrize("kind", ["memory", "redis"])
async def test_a_lease_may_be_longer_than_ttl(kind: str, redis_url: str) -> None:
    url = "memory://" if kind == "memory" else redis_url
    async with Dedup(url, namespace="first", lease=60.0, ttl=0.001) as dedup:
        async with dedup.claim("k") as claim:
            await claim.renew()
            for _ in range(5):  # each waits for longer than ttl
                assert (await dedup.claim("k", wait=0.002)).outcome is Outcome.IN_PROGRESS
        token = await dedup.tokens.issue(ttl=60.0)
        first = await dedup.tokens.redeem(token)
        assert (await dedup.tokens.redeem(token, wait=0.01)).outcome is Outcome.IN_PROGRESS
        await first.release()


# Seconds and timedelta mean the same, wherever a length of time is taken.


MINUTE = timedelta(minutes=1)


async def test_every_time_of_a_gate_may_be_a_timedelta(backend: Backend) -> None:
    times = dict.fromkeys(("lease", "ttl", "failure_ttl", "token_ttl"), MINUTE)
    async with backend.make(**times, known_duplicates=timedelta(seconds=1)) as dedup:
        assert dedup.settings.lease == 60.0
        claim = await dedup.claim("a")
        record = await dedup.get("a")
        assert record is not None
        assert record.lease is not None
        assert 0 < record.lease <= 60.0 < record.ttl <= 120.0
        await claim.fail("sold out")
        record = await dedup.get("a")
        assert record is not None
        assert record.ttl <= 60.0
        token = await dedup.tokens.issue("user:7", ttl=MINUTE)
        assert (await dedup.tokens.redeem(token, "user:7", lease=MINUTE, ttl=MINUTE)).acquired
        scope = dedup.scoped("x", lease=timedelta(seconds=2), ttl=MINUTE)
        assert (await scope.claim("a")).lease == pytest.approx(2.0, abs=0.5)


async def test_every_time_of_a_call_may_be_a_timedelta(backend: Backend) -> None:
    async with backend.make() as dedup:
        claim = await dedup.claim("a", lease=timedelta(seconds=5), ttl=MINUTE, wait=timedelta(seconds=1))
        await claim.renew(timedelta(seconds=9))
        assert (await dedup.claim("a", wait=timedelta(milliseconds=1))).outcome is Outcome.IN_PROGRESS
        await claim.complete("done", ttl=MINUTE)
        assert (await dedup.claim("a", wait=timedelta(0))).result == "done"
        async with dedup.lock("l", lease=MINUTE, wait=timedelta(0)):
            with pytest.raises(InProgressError):
                await dedup.lock("l", lease=MINUTE, wait=timedelta(milliseconds=1)).__aenter__()
        orders = dedup.machine("o", initial="a", transitions={"a": ("b",), "b": ()}, ttl=timedelta(days=1))
        assert (await orders.transition("1", to="b")).changed


def test_settings_without_a_gate_take_one_too() -> None:
    Reject(retry_after=MINUTE)
    assert business_key("a", window=MINUTE, at=61) == business_key("a", window=60.0, at=61)
    Dedup("memory://", timeout=timedelta(milliseconds=250))


@pytest.mark.parametrize("bad", [timedelta(0), timedelta(seconds=-1), timedelta.max])
def test_a_timedelta_is_held_to_the_same_bounds(bad: timedelta) -> None:
    with pytest.raises(ConfigError, match=r"lease must be between .* got timedelta"):
        Dedup("memory://", lease=bad)
