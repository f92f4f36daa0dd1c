"""What a first program gets wrong: each mistake is told where it is made, with what to do."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import flask
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette

from fastdedup import ConfigError, Dedup, Outcome, __version__
from fastdedup import sync as blocking
from fastdedup.integrations import asgi, wsgi
from fastdedup.integrations.fastapi import Idempotency
from fastdedup.integrations.flask import FastDedup
from fastdedup.sql import Inbox
from fastdedup.sync.sql import Inbox as SyncInbox

ASYNC = Dedup("memory://", namespace="first")
SYNC = blocking.Dedup("memory://", namespace="first")
INBOX: dict[str, Any] = {"keep": 60.0, "begin": lambda: None}


@pytest.mark.parametrize("missing", ["click", "rich", ""])
def test_the_version_needs_no_extra(missing: str) -> None:
    script = (
        f"import sys; sys.modules[{missing!r}] = None; sys.argv = ['fastdedup', '--version']\n"
        "from fastdedup.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
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
]
UNFIT: list[tuple[Any, Any]] = [
    (lambda: "k", lambda a: None),
    (lambda a, b: "k", lambda a: None),
    (lambda a: "k", lambda a, b: None),
    (lambda user: "k", lambda *, order: None),
    (lambda *, user: "k", lambda user, /: None),
    (lambda a, /: "k", lambda *, a: None),
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
            with pytest.raises(ConfigError, match=rf"once\({name}=…\) takes \(.*no call of .* fits"):
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
