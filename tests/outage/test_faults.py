"""One idea of unavailable: each fault on a real server, for each verb, under each policy; and what is no outage."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import re
import time
import traceback
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis

from fastdedup import (
    ConfigError,
    Dedup,
    ForeignRecordError,
    LocalLRU,
    Outcome,
    Reject,
    ResultError,
    UnavailableError,
)
from fastdedup.events import Degraded, Event
from fastdedup.kernel.verbs import Verb
from fastdedup.stores.redis.scripts import LoadedScript
from fastdedup.stores.redis.verbs import FACES, load_scripts

from ..fixtures import fixture_of
from ..servers import RedisServer
from ..waiting import wait_until
from .faults import FAULTS, PASSWORD, Fault

Run = Callable[[], Awaitable[Any]]

SLACK = 2.0
"""Seconds beyond the deadline: the tests share their cores. The true slack is for a benchmark to measure."""
LEASE = 0.3
"""Seconds: settling is tried again until the lease ends."""
WAIT = 0.2
"""Seconds of patience of a claim that waits."""


# Each verb: what must be done while Redis is well, and then the operation that meets the fault.


async def claim(gate: Dedup) -> Run:
    return lambda: gate.claim("fresh")


async def claim_waiting(gate: Dedup) -> Run:
    return lambda: gate.claim("fresh", wait=WAIT)


async def complete(gate: Dedup) -> Run:
    held = await gate.claim("key", lease=LEASE)
    return lambda: held.complete("done")


async def fail(gate: Dedup) -> Run:
    held = await gate.claim("key", lease=LEASE)
    return lambda: held.fail("no")


async def release(gate: Dedup) -> Run:
    held = await gate.claim("key", lease=LEASE)
    return lambda: held.release()


async def renew(gate: Dedup) -> Run:
    held = await gate.claim("key", lease=LEASE)
    return lambda: held.renew()


async def issue(gate: Dedup) -> Run:
    return lambda: gate.tokens.issue("user")


async def consume(gate: Dedup) -> Run:
    token = await gate.tokens.issue("user")
    return lambda: gate.tokens.consume(token, "user")


async def transition(gate: Dedup) -> Run:
    orders = gate.machine("order", initial="pending", transitions={"pending": ("paid",), "paid": ()})
    return lambda: orders.transition("42", to="paid")


async def get(gate: Dedup) -> Run:
    await gate.claim("key")
    return lambda: gate.get("key")


async def forget(gate: Dedup) -> Run:
    await gate.claim("key")
    return lambda: gate.forget("key")


VERBS: dict[str, Callable[[Dedup], Awaitable[Run]]] = {
    "claim": claim,
    "claim_waiting": claim_waiting,
    "complete": complete,
    "fail": fail,
    "release": release,
    "renew": renew,
    "issue": issue,
    "consume": consume,
    "transition": transition,
    "get": get,
    "forget": forget,
}
OWN_TIME = {"complete": LEASE, "fail": LEASE, "release": LEASE, "claim_waiting": WAIT}
"""Seconds that a verb may take on top of the deadline."""
WITHOUT_LEASE = ("consume",)
"""Verbs whose error waits for what they have left to be taken back: for one further timeout."""


@pytest.mark.parametrize("fault", FAULTS, ids=str)
async def test_a_fault_is_an_outage_for_each_verb_under_each_policy_and_at_opening(fault: Fault) -> None:
    """A gate for each verb: so each meets the fault itself, not a breaker that another verb opened."""
    async with fault.site() as site, AsyncExitStack() as stack:

        def gate(name: str, **options: Any) -> Dedup:
            return Dedup(site.url, namespace=name, timeout=fault.timeout, **options)

        gates = {verb: await stack.enter_async_context(gate(verb)) for verb in VERBS}
        local = await stack.enter_async_context(gate("local", on_unavailable=LocalLRU()))
        assert not (await local.claim("before")).degraded
        runs = {verb: await prepare(gates[verb]) for verb, prepare in VERBS.items()}
        await fault.strike(site)
        late = gate("late")
        stack.push_async_callback(late.aclose)
        *answers, _, _ = await asyncio.gather(
            *(timed(run) for run in runs.values()), answers_locally(local, fault), opens(late, fault)
        )
        wrong = [
            f"{verb}: {answer!r} after {seconds:.2f} s"
            for verb, (answer, seconds) in zip(runs, answers, strict=True)
            if not is_honest(answer, seconds, fault, verb)
        ]
        assert wrong == []
        await fault.heal(site)
        for name, each in {**gates, "local": local, **({} if fault.mistake else {"late": late})}.items():
            await wait_until(lambda each=each: serves(each), description=f"{name}'s gate is served again")


async def answers_locally(dedup: Dedup, fault: Fault) -> None:
    """Under LocalLRU a fresh key is acquired degraded, in time, and answered from there."""
    fresh, seconds = await timed(lambda: dedup.claim("fresh"))
    assert (fresh.outcome, fresh.degraded) == (Outcome.ACQUIRED, True)
    assert seconds < fault.timeout + SLACK
    second = await dedup.claim("fresh")
    assert (second.outcome, second.degraded) == (Outcome.IN_PROGRESS, True)
    await fresh.complete("done")


async def opens(dedup: Dedup, fault: Fault) -> None:
    """Opening during a fault is no error, unless the URL itself is refused."""
    if not fault.mistake:
        await dedup.open()
        return
    with pytest.raises(ConfigError, match=fault.cause) as caught:
        await dedup.open()
    assert not shows_password(caught.value)


async def timed(run: Run) -> tuple[Any, float]:
    """What came of it, an answer or an error, and after how many seconds."""
    started = time.monotonic()
    try:
        answer = await run()
    except Exception as error:  # noqa: BLE001 -- the test judges it
        answer = error
    return answer, time.monotonic() - started


def is_honest(answer: object, seconds: float, fault: Fault, verb: str) -> bool:
    """An outage with its cause, in time, that shows no password; or, where Redis serves this verb, its answer."""
    if verb in fault.served:
        return not isinstance(answer, Exception) and bool(answer)
    return (
        isinstance(answer, UnavailableError)
        and re.search(fault.cause, str(answer)) is not None
        and not shows_password(answer)
        and seconds < fault.timeout * (1 + (verb in WITHOUT_LEASE)) + SLACK + OWN_TIME.get(verb, 0.0)
    )


def shows_password(error: Exception) -> bool:
    """True where the message, or that of an error behind it, holds the password."""
    text = "".join(traceback.format_exception(error)) + repr(error)
    return any(password in text for password in (PASSWORD, quote(PASSWORD, safe="")))


_fresh = itertools.count()


async def serves(gate: Dedup) -> bool:
    """True once Redis itself answers a claim for a key that nobody has claimed."""
    try:
        claim = await gate.claim(f"after-{next(_fresh)}")
    except UnavailableError:
        return False
    return claim.acquired and not claim.degraded


# The other direction: what is no outage is raised as what it is, and never answered by a policy.

each_policy = pytest.mark.parametrize("policy", [Reject, LocalLRU])
Policy = type[Reject] | type[LocalLRU]


server = fixture_of(RedisServer, password=PASSWORD)


class Watched:
    """A gate, and the events that say that its policy was asked."""

    def __init__(self, url: str, policy: Policy, **options: Any) -> None:
        self.degraded: list[Degraded] = []
        self.gate = Dedup(url, on_unavailable=policy(), timeout=3.0, on_event=self._note, **options)

    def _note(self, event: Event) -> None:
        if isinstance(event, Degraded):
            self.degraded.append(event)

    async def __aenter__(self) -> Dedup:
        return await self.gate.open()

    async def __aexit__(self, *error: object) -> None:
        await self.gate.aclose()


@each_policy
@pytest.mark.parametrize(
    ("url", "cause"),
    [
        ("unix://:wrong@{socket}?db=0", "user or password"),
        ("unix://{socket}?db=0", "wants a password"),
        ("{url}9", "database number"),
    ],
    ids=["wrong password", "no password", "no such database"],
)
async def test_a_url_that_the_server_refuses_is_an_error_at_opening(
    server: RedisServer, policy: Policy, url: str, cause: str
) -> None:
    """`{url}9` makes it database 9, which a server with four has not."""
    restarted(server, "--databases", "4")
    dedup = Dedup(url.format(socket=server.socket, url=server.url), timeout=3.0, on_unavailable=policy())
    with pytest.raises(ConfigError, match=cause) as caught:
        await dedup.open()
    assert not shows_password(caught.value)
    await dedup.aclose()


@each_policy
async def test_a_certificate_file_that_does_not_exist_is_a_mistake(tmp_path: Path, policy: Policy) -> None:
    with pytest.raises(ConfigError, match="missing"):
        async with Dedup(
            f"rediss://localhost:1/0?ssl_ca_certs={tmp_path}/missing.pem", on_unavailable=policy()
        ):
            pass


@each_policy
async def test_a_database_that_a_restart_removed_is_no_outage(server: RedisServer, policy: Policy) -> None:
    watched = Watched(server.url.replace("db=0", "db=9"), policy)
    async with watched as dedup:
        await dedup.claim("before")
        restarted(server, "--databases", "4")
        for _ in range(5):
            with pytest.raises(ConfigError, match="database number"):
                await dedup.claim("key")
    assert watched.degraded == []


@each_policy
async def test_a_mistake_that_shows_when_an_outage_ends_is_no_longer_an_outage(
    server: RedisServer, policy: Policy
) -> None:
    """The breaker is open, and its probes meet the mistake: those who ask must hear of it."""
    async with Watched(server.url.replace("db=0", "db=9"), policy) as dedup:
        await dedup.claim("before")
        server.kill()
        for n in range(5):
            with contextlib.suppress(UnavailableError):
                await dedup.claim(f"during-{n}")
        server.options += ("--databases", "4")
        server.start()

        async def is_told() -> bool:
            answer, _ = await timed(lambda: dedup.claim(f"after-{next(_fresh)}"))
            return isinstance(answer, ConfigError)

        await wait_until(is_told, description="claims are told of the database that does not exist")


def restarted(server: RedisServer, *options: str) -> None:
    server.kill()
    server.options += options
    server.start()


def write_text(raw: redis.Redis, name: bytes) -> None:
    raw.set(name, "somebody else's", px=60_000)


def write_newer(raw: redis.Redis, name: bytes) -> None:
    raw.set(name, b"\x02" + bytes(60), px=60_000)


def write_list(raw: redis.Redis, name: bytes) -> None:
    raw.rpush(name, "a", "b")


def write_hash(raw: redis.Redis, name: bytes) -> None:
    raw.hset(name, "a", "b")


@each_policy
@pytest.mark.parametrize("write", [write_text, write_newer, write_list, write_hash])
async def test_a_value_that_is_not_ours_is_no_outage(
    redis_url: str,
    redis_server: RedisServer,
    policy: Policy,
    write: Callable[[redis.Redis, bytes], None],
) -> None:
    watched = Watched(redis_url, policy)
    async with watched as dedup:
        for verb in ("claim", "complete", "fail", "release", "renew", "transition", "get", "forget"):
            with redis_server.client() as raw:
                raw.flushdb()
                run = await VERBS[verb](dedup)
                if verb in ("claim", "transition"):
                    await run()
                    run = await VERBS[verb](dedup)
                (name,) = raw.keys()
                raw.delete(name)
                write(raw, name)
                with pytest.raises(ForeignRecordError):
                    await run()
                raw.flushdb()
    assert watched.degraded == []


class BadCodec:
    """Raises what it was made with, on the way out or on the way in."""

    def __init__(self, error: Exception, *, when: str) -> None:
        self._error = error
        self._when = when

    def dumps(self, value: Any) -> bytes:
        if self._when == "dumps":
            raise self._error
        return b"encoded"

    def loads(self, data: bytes) -> Any:
        raise self._error


@each_policy
@pytest.mark.parametrize(
    "error", [RuntimeError("bug"), ConnectionResetError("bug"), TimeoutError("bug")], ids=repr
)
async def test_a_codec_that_raises_is_no_outage(redis_url: str, policy: Policy, error: Exception) -> None:
    """Not even where it raises what a broken connection would."""
    writing = Watched(redis_url, policy, codec=BadCodec(error, when="dumps"))
    async with writing as dedup:
        claim = await dedup.claim("written")
        with pytest.raises(ResultError, match="bug"):
            await claim.complete({})
    reading = Watched(redis_url, policy, codec=BadCodec(error, when="loads"))
    async with reading as dedup:
        await (await dedup.claim("read")).complete({})
        duplicate = await dedup.claim("read")
        assert duplicate.outcome is Outcome.SUCCEEDED
        with pytest.raises(ResultError):
            _ = duplicate.result
        with pytest.raises(ResultError, match=f"under 'read': .* raised {type(error).__name__}"):
            await dedup.get("read")
    assert writing.degraded + reading.degraded == []


@each_policy
@pytest.mark.parametrize(
    ("body", "error", "said"),
    [
        ("this is not Lua", ConfigError, "not an outage"),
        ("error('a bug')", ConfigError, "Redis refused: .*not an outage"),
        ("local x = nil; return x.y", ConfigError, "not an outage"),
        ("return redis.call('NOSUCHCOMMAND')", ConfigError, "does not know a command"),
        ("return redis.call('LPUSH', KEYS[1], 1) and redis.call('GET', KEYS[1])", ConfigError, "WRONGTYPE"),
        ("return redis.error_reply('OUR own')", ConfigError, "not an outage"),
        ("return 7", ConfigError, "not an outage"),
        ("return {}", IndexError, "list index"),
    ],
)
async def test_a_broken_script_is_no_outage(
    server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    policy: Policy,
    body: str,
    error: type[Exception],
    said: str,
) -> None:
    monkeypatch.setitem(load_scripts(), Verb.CLAIM, broken(body))
    watched = Watched(server.url, policy)
    async with watched as dedup:
        for _ in range(5):
            with pytest.raises(error, match=said):
                await dedup.claim("key")
        assert await dedup.get("another") is None
    assert watched.degraded == []
    with server.client() as raw:
        raw.flushdb()


def broken(body: str) -> LoadedScript:
    """The claim's script with another text."""
    script = LoadedScript(Verb.CLAIM, FACES[Verb.CLAIM])
    script.text = body
    script.sha = hashlib.sha1(body.encode(), usedforsecurity=False).hexdigest()
    return script


@each_policy
async def test_a_read_that_the_server_refuses_inside_a_script_is_no_foreign_record(
    server: RedisServer, policy: Policy
) -> None:
    """The value is ours; it is the user's rights that changed, and that is an outage for all who must read it."""
    async with AsyncExitStack() as stack:
        runs = {}
        for verb in ("complete", "release", "renew", "consume", "get", "forget"):
            gate = Dedup(server.url, namespace=verb, timeout=1.0, on_unavailable=policy())
            runs[verb] = await VERBS[verb](await stack.enter_async_context(gate))
        with server.client() as raw:
            raw.execute_command("ACL", "SETUSER", "default", "-getrange")
            answers = await asyncio.gather(*map(timed, runs.values()))
            raw.execute_command(
                "ACL", "SETUSER", "default", "+getrange"
            )  # or closing tries for its whole time
    wrong = {
        verb: answer for verb, (answer, _) in zip(runs, answers, strict=True) if not fits(answer, policy)
    }
    assert wrong == {}


def fits(answer: object, policy: Policy) -> bool:
    """An outage; or what the policy makes of one."""
    if policy is Reject:
        return isinstance(answer, UnavailableError) and "may not do this" in str(answer)
    return not isinstance(answer, ForeignRecordError)
