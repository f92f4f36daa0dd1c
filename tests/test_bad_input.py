"""Bad input, of every kind: each a specific error that says what to do, and nothing else is harmed."""

import asyncio
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fastdedup import (
    Claim,
    ClaimLostError,
    ConfigError,
    Dedup,
    DedupError,
    ForeignRecordError,
    InvalidKeyError,
    LocalLRU,
    Outcome,
    Reject,
    ResultError,
    ResultTooLargeError,
    UnavailableError,
    UsageError,
)
from fastdedup.client.rules import RetryRules
from fastdedup.codec import JSONCodec
from fastdedup.integrations.opentelemetry import instrument
from fastdedup.kernel.keyspace import Keyspace, Kind
from fastdedup.kernel.operations import Op, Reply
from fastdedup.kernel.verbs import Verb
from fastdedup.messages.rules import MessageRules
from fastdedup.sql import Inbox
from fastdedup.stores.memory import MemoryStore
from fastdedup.sync import Dedup as SyncDedup
from fastdedup.sync.sql import Inbox as SyncInbox
from fastdedup.web.inspection import get_request
from fastdedup.web.request import everyone
from fastdedup.web.rules import Rule

from .fixtures import async_fixture, fixture_of
from .resp import resp_server
from .servers import RedisServer
from .stores import STORES, Backend, on_stores
from .unit.test_fallback import FlakyStore

NO_TIMES = [
    *(0, 0.0, -1, -0.5, 0.0001, math.nan, math.inf, -math.inf, True, "30", [30], 10**9),
    pytest.param(10**400, id="huge"),
]
NO_COUNTS = [0, -1, 1.5, True, "7", None, math.nan]


dedup = async_fixture(lambda: Dedup("memory://"))


# Errors themselves


def test_every_error_has_one_root_that_is_never_raised_itself() -> None:
    """`except DedupError` catches what this library says, and nothing else."""
    import fastdedup.errors as errors

    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and kind.__module__ == errors.__name__
    ]
    assert all(issubclass(kind, DedupError) for kind in kinds)


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (ConfigError, ValueError),
        (InvalidKeyError, ValueError),
        (ResultTooLargeError, ValueError),
        (ResultError, TypeError),
        (UsageError, RuntimeError),
    ],
)
def test_a_mistake_is_also_the_built_in_error_that_python_would_raise(error: type, builtin: type) -> None:
    """Code that knows nothing of this library still treats it as a mistake."""
    assert issubclass(error, builtin)


# Settings


@pytest.mark.parametrize("value", NO_TIMES)
@pytest.mark.parametrize("name", ["lease", "ttl", "failure_ttl", "token_ttl", "timeout"])
def test_a_time_setting_that_is_no_time_is_refused(name: str, value: Any) -> None:
    """When the gate is made, not at the first claim; the message names the setting."""
    with pytest.raises(ConfigError, match=name):
        Dedup("memory://", **{name: value})


@pytest.mark.parametrize("name", ["lease", "ttl", "failure_ttl", "token_ttl"])
def test_a_scopes_settings_are_checked_too(name: str) -> None:
    """A scope is a gate."""
    with pytest.raises(ConfigError, match=name):
        Dedup("memory://").scoped("sms", **{name: -1.0})


@pytest.mark.parametrize("value", NO_COUNTS)
@pytest.mark.parametrize("name", ["max_result", "max_pending"])
def test_a_count_setting_that_is_no_count_is_refused(name: str, value: Any) -> None:
    """The message names the setting and its least value."""
    with pytest.raises(ConfigError, match=f"{name} must be a whole number of at least 1"):
        Dedup("memory://", **{name: value})


@pytest.mark.parametrize("limit", [255 * 1024 * 1024 + 1, sys.maxsize])
def test_a_results_limit_beyond_the_longest_reply_is_refused(limit: int) -> None:
    """Above 256 MiB a result was stored, and no duplicate could read it. Near 2**63 the limit overflows in Redis."""
    with pytest.raises(ConfigError, match="max_result must be at most 267386880, got"):
        Dedup("memory://", max_result=limit)
    with pytest.raises(ConfigError, match="max_result must be at most 267386880, got"):
        Dedup("memory://").scoped("sms", max_result=limit)


@pytest.mark.parametrize("value", NO_COUNTS)
@pytest.mark.parametrize("name", ["maxsize", "max_bytes"])
def test_a_policys_bounds_are_checked(name: str, value: Any) -> None:
    """When it is made."""
    with pytest.raises(ConfigError, match=name):
        LocalLRU(**{name: value})


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, True, "1"])
def test_a_policys_retry_after_is_a_time(value: Any) -> None:
    """It goes out as an HTTP header."""
    with pytest.raises(ConfigError, match="retry_after"):
        Reject(retry_after=value)


@pytest.mark.parametrize("replicas", [1, 2, -1, True, 1.0, "1"])
def test_replicas_that_cannot_be_waited_for_are_refused(replicas: Any) -> None:
    """A promise that memory:// cannot keep, or a store of one's own has to, is not accepted in silence."""
    with pytest.raises(ConfigError, match="replicas"):
        Dedup("memory://", replicas=replicas)
    with pytest.raises(ConfigError, match="replicas"):
        Dedup(MemoryStore(), replicas=replicas)


@pytest.mark.parametrize("choice", ["", "error", None, True, "Raise"])
def test_a_shortfall_is_reported_or_raised(choice: Any) -> None:
    """There is no third way."""
    with pytest.raises(ConfigError, match="on_shortfall must be 'report' or 'raise'"):
        Dedup("memory://", on_shortfall=choice)


@pytest.mark.parametrize("policy", [object(), "reject", True, lambda op, error: None, Reject, LocalLRU])
def test_what_is_no_policy_is_refused(policy: Any) -> None:
    """Also the class where an instance is meant: it would fail in the first outage."""
    with pytest.raises(ConfigError, match=r"such as Reject\(\) or LocalLRU\(\)"):
        Dedup("memory://", on_unavailable=policy)


def test_a_scope_needs_a_name_that_its_namespace_can_hold() -> None:
    """Parent and scope together keep the rule."""
    with pytest.raises(ConfigError, match="a namespace must"):
        Dedup("memory://", namespace="shop").scoped("x" * 60)


# Options of a call


ORDERS: dict[str, Any] = {"initial": "new", "transitions": {"new": ("paid",), "paid": ()}}

CALLS: dict[str, tuple[str, Callable[[Dedup, Any], Any]]] = {
    "claim(lease)": ("lease", lambda dedup, time: dedup.claim("k", lease=time)),
    "claim(ttl)": ("ttl", lambda dedup, time: dedup.claim("k", ttl=time)),
    "claim_many(lease)": ("lease", lambda dedup, time: dedup.claim_many(["k"], lease=time)),
    "claim_many(ttl)": ("ttl", lambda dedup, time: dedup.claim_many(["k"], ttl=time)),
    "lock(lease)": ("lease", lambda dedup, time: dedup.lock("k", lease=time).__aenter__()),
    "tokens.issue(ttl)": ("ttl", lambda dedup, time: dedup.tokens.issue(ttl=time)),
    "tokens.redeem(lease)": ("lease", lambda dedup, time: dedup.tokens.redeem("t", lease=time)),
    "tokens.redeem(ttl)": ("ttl", lambda dedup, time: dedup.tokens.redeem("t", ttl=time)),
    "once(lease)": ("lease", lambda dedup, time: dedup.once(lambda: "k", lease=time)(nothing)()),
    "machine(ttl)": ("ttl", lambda dedup, time: dedup.machine("o", **ORDERS, ttl=time)),
}


async def nothing() -> None:
    """Something to decorate."""


@pytest.mark.parametrize("value", NO_TIMES)
@pytest.mark.parametrize("call", CALLS)
async def test_a_time_option_that_is_no_time_is_refused(dedup: Dedup, call: str, value: Any) -> None:
    """Whichever call takes it; nothing was claimed."""
    name, ask = CALLS[call]
    with pytest.raises(ConfigError, match=name):
        await ask(dedup, value)
    assert await dedup.get("k") is None


WAITS: dict[str, Callable[..., Any]] = {
    "claim": lambda dedup, **given: dedup.claim("k", **given),
    "claim_many": lambda dedup, **given: dedup.claim_many(["k"], **given),
    "lock": lambda dedup, **given: dedup.lock("k", **given).__aenter__(),
    "tokens.redeem": lambda dedup, **given: dedup.tokens.redeem("t", **given),
    "once": lambda dedup, **given: dedup.once(lambda: "k", **given)(nothing)(),
}


@pytest.mark.parametrize("wait", ["", -1, -0.001, math.nan, math.inf, True, "2", 10**9])
@pytest.mark.parametrize("call", WAITS)
async def test_a_wait_that_is_no_time_is_refused(dedup: Dedup, call: str, wait: Any) -> None:
    """Zero is fine, less is not."""
    with pytest.raises(ConfigError, match="wait"):
        await WAITS[call](dedup, wait=wait)
    assert await dedup.get("k") is None


NO_FLAGS = [0, 1, 3, 30.0, "yes", []]


@pytest.mark.parametrize("renew", NO_FLAGS)
@pytest.mark.parametrize("call", WAITS)
async def test_a_renewal_is_wanted_or_not(dedup: Dedup, call: str, renew: Any) -> None:
    """A number would be taken for the seconds between renewals."""
    with pytest.raises(ConfigError, match="renew must be True or False, got"):
        await WAITS[call](dedup, renew=renew)
    assert await dedup.get("k") is None


@pytest.mark.parametrize("value", NO_FLAGS)
async def test_a_flag_is_true_or_false(dedup: Dedup, value: Any) -> None:
    """In each other place, too."""
    places: list[tuple[str, Callable[..., Any]]] = [
        *(
            (name, partial(dedup.ledger, "l", window=60.0, capacity=90))
            for name in ("exact", "dense", "allow_eviction")
        ),
        ("keep_result", partial(MessageRules, "orders", str)),
        ("required", partial(Rule, "/", principal=everyone)),
        ("quoted", RetryRules),
        ("links", partial(instrument, dedup)),
    ]
    for name, take in places:
        with pytest.raises(ConfigError, match=f"{name} must be True or False, got"):
            take(**{name: value})


@pytest.mark.parametrize("value", NO_TIMES)
async def test_a_claim_is_not_settled_for_a_time_that_is_none(dedup: Dedup, value: Any) -> None:
    """complete, fail, renew and touch refuse it, and the claim stays live."""
    claim = await dedup.claim("k")
    with pytest.raises(ConfigError, match="ttl"):
        await claim.complete(1, ttl=value)
    with pytest.raises(ConfigError, match="ttl"):
        await claim.fail(ttl=value)
    with pytest.raises(ConfigError, match="lease"):
        await claim.renew(lease=value)
    with pytest.raises(ConfigError, match="ttl"):
        await claim.touch(ttl=value)
    await claim.complete(1)


@pytest.mark.parametrize("times", [{"ttl": 0}, {"within": -1}], ids=["ttl", "within"])
@pytest.mark.parametrize("how", ["complete", "fail"])
async def test_a_block_that_settles_for_a_time_that_is_none_frees_nothing(
    dedup: Dedup, how: str, times: Any
) -> None:
    """Its work is done. A bad `ttl` ended in an AttributeError, a bad `within` freed the key."""
    (name,) = times
    with pytest.raises(ConfigError, match=name):
        async with dedup.claim("k") as claim:
            await getattr(claim, how)("done", **times)
    assert (await dedup.claim("k")).outcome is Outcome.IN_PROGRESS
    async with dedup.claim("caught") as claim:
        with pytest.raises(ConfigError, match=name):
            await getattr(claim, how)("done", **times)
    assert (await dedup.claim("caught")).outcome is Outcome.SUCCEEDED


@pytest.mark.parametrize("version", [-1, 1.0, True, "1", math.nan])
async def test_a_version_that_is_no_version_is_refused(dedup: Dedup, version: Any) -> None:
    """Versions count changes from 0."""
    with pytest.raises(ConfigError, match="version"):
        await dedup.machine("order", **ORDERS).transition("7", to="paid", version=version)


# Keys, owners, tokens, fingerprints

BAD_KEYS = ["", "k" * 1025, b"k", None, 7, "\ud800"]
KEYED: dict[str, Callable[[Dedup, Any], Any]] = {
    "claim": lambda dedup, key: dedup.claim(key),
    "claim_many": lambda dedup, key: dedup.claim_many(["good", key]),
    "lock": lambda dedup, key: dedup.lock(key).__aenter__(),
    "get": lambda dedup, key: dedup.get(key),
    "forget": lambda dedup, key: dedup.forget(key),
    "once": lambda dedup, key: dedup.once(lambda: key)(nothing)(),
    "transition": lambda dedup, key: dedup.machine("order", **ORDERS).transition(key, to="paid"),
    "machine.get": lambda dedup, key: dedup.machine("order", **ORDERS).get(key),
}


@pytest.mark.parametrize("key", BAD_KEYS)
@pytest.mark.parametrize("call", KEYED)
async def test_a_key_that_is_none_is_refused_wherever_one_is_taken(dedup: Dedup, call: str, key: Any) -> None:
    """InvalidKeyError before anything is sent: the good key beside it stays free."""
    with pytest.raises(InvalidKeyError, match="key"):
        await KEYED[call](dedup, key)
    assert await dedup.get("good") is None


@pytest.mark.parametrize("owner", ["", "o" * 64, b"worker", 7, "\ud800"])
async def test_an_owner_that_is_none_is_refused(dedup: Dedup, owner: Any) -> None:
    """InvalidKeyError, before anything is sent."""
    with pytest.raises(InvalidKeyError, match="owner"):
        await dedup.claim("k", owner=owner)
    assert await dedup.get("k") is None


@pytest.mark.parametrize("token", [b"token", None, 7])
async def test_a_token_that_is_no_text_is_a_mistake(dedup: Dedup, token: Any) -> None:
    """InvalidKeyError from consume and redeem."""
    for ask in (dedup.tokens.consume, dedup.tokens.redeem):
        with pytest.raises(InvalidKeyError, match="a token must be text"):
            await ask(token)


@pytest.mark.parametrize("value", [object(), {1: 2}, math.nan, {"a": math.inf}, "\ud800"])
async def test_a_fingerprint_of_what_json_cannot_hold_is_refused(dedup: Dedup, value: Any) -> None:
    """As fingerprint() itself does; for a token's subject too."""
    with pytest.raises(ConfigError, match="fingerprint"):
        await dedup.claim("k", fingerprint=value)
    with pytest.raises(ConfigError, match="fingerprint"):
        await dedup.tokens.issue(subject=value)


@pytest.mark.parametrize("fingerprints", [[], ["a"], ["a", "b", "c"]])
async def test_claim_many_wants_one_fingerprint_for_each_key(dedup: Dedup, fingerprints: list[str]) -> None:
    """The message counts both; nothing was claimed."""
    with pytest.raises(ConfigError, match=f"{len(fingerprints)} fingerprints for 2 keys"):
        await dedup.claim_many(["a", "b"], fingerprints=fingerprints)
    assert await dedup.get("a") is None


# Results


@pytest.mark.parametrize("keys", [None, 7, iter(["a"])])
async def test_claim_many_wants_a_list_of_keys(dedup: Dedup, keys: Any) -> None:
    with pytest.raises(ConfigError, match=r"claim_many\(\) takes a list of keys, got"):
        await dedup.claim_many(keys)


@pytest.mark.parametrize("cursor", [5, ["1"], "9" * 10_000, "9" * 5_001, "x"])
async def test_a_cursor_that_no_list_has_returned_is_refused(cursor: Any, backend: Backend) -> None:
    async with backend.make() as dedup:
        with pytest.raises(ConfigError, match="cursor"):
            await dedup.records(cursor=cursor)


async def test_a_store_that_has_part_of_an_ability_is_told_what_it_lacks() -> None:
    """The error said that it had no page(), although it had."""

    class Paging(MemoryStore):
        eviction_policy = None  # type: ignore[assignment]

    async with Dedup(Paging()) as dedup:
        with pytest.raises(ConfigError, match=r"Paging needs page\(\) and eviction_policy\(\)"):
            await dedup.records()


@pytest.mark.parametrize("kind", [Dedup, SyncDedup])
def test_once_takes_a_function_of_the_fingerprint(kind: Any) -> None:
    with pytest.raises(ConfigError, match="fingerprint"):
        kind("memory://").once(key=str, fingerprint=True)


@pytest.mark.parametrize("result", [object(), {1j: object()}, [Dedup], "\ud800", math.nan])
async def test_a_result_that_cannot_be_stored_leaves_the_claim_live(dedup: Dedup, result: Any) -> None:
    """ResultError names the ways out, and the owner can still complete with something else."""
    claim = await dedup.claim("k")
    for settle in (claim.complete, claim.fail):
        with pytest.raises(ResultError, match="codec="):
            await settle(result)
    assert (await dedup.claim("k")).outcome is Outcome.IN_PROGRESS
    await claim.complete("instead")
    assert (await dedup.claim("k")).result == "instead"


@pytest.mark.parametrize("error", [{1, 2}, b"bytes", {1: 2}, 2**64])
async def test_an_error_is_plain_json(dedup: Dedup, error: Any) -> None:
    """A result may be of these types, because its reader names the type."""
    claim = await dedup.claim("k")
    refusal = r"cannot store an error of type \w+: \w.*; give fail\(\) .* errors do not use codec="
    with pytest.raises(ResultError, match=refusal):
        await claim.fail(error)
    await claim.complete(error)
    assert (await dedup.claim("k")).outcome is Outcome.SUCCEEDED


async def test_an_oversized_result_leaves_the_claim_live(backend: Backend) -> None:
    """ResultTooLargeError says both sizes; one of exactly the limit is stored, on every store."""
    async with backend.make(max_result=1000) as dedup:
        claim = await dedup.claim("k")
        with pytest.raises(ResultTooLargeError, match=r"takes 1001 bytes, the limit is 1000.*max_result="):
            await claim.complete("x" * 999)
        assert (await dedup.claim("k")).outcome is Outcome.IN_PROGRESS
        await claim.complete("x" * 998)
        assert (await dedup.claim("k")).result == "x" * 998


# once


def sync() -> None:
    """No coroutine function."""


@pytest.mark.parametrize("function", [sync, len, lambda: nothing()])
def test_once_decorates_async_functions_only(function: Any) -> None:
    """A sync function could not wait for the store; said when it is decorated."""
    with pytest.raises(ConfigError, match="decorates async functions"):
        Dedup("memory://").once(key=lambda: "k")(function)


@pytest.mark.parametrize("key", [None, "k", nothing])
def test_once_takes_a_sync_key_function(key: Any) -> None:
    """Not the key itself, nor a coroutine that would never be awaited."""
    with pytest.raises(ConfigError, match=r"^key= must be a function of the call's arguments, not async"):
        Dedup("memory://").once(key)


@pytest.mark.parametrize("kind", [Dedup, SyncDedup])
@pytest.mark.parametrize("fail_on", [None, [ValueError], "ValueError", ValueError(), (ValueError, "no")])
def test_once_takes_classes_of_exceptions_in_fail_on(kind: Any, fail_on: Any) -> None:
    """The first exception of the function became a TypeError, and its key was freed."""
    with pytest.raises(ConfigError, match="fail_on must be a tuple of exception classes"):
        kind("memory://").once(key=lambda: "k", fail_on=fail_on)


def test_once_without_parentheses_says_so_at_the_first_call() -> None:
    """A plain function is taken for the key's, and the call's argument for the function; its value is not shown."""
    inboxes = [each("orders", keep=60.0, begin=lambda: None) for each in (Inbox, SyncInbox)]
    for face in (Dedup("memory://"), SyncDedup("memory://"), *inboxes):
        decorated: Any = face.once(sync)
        for given, kind in (("order 7", "a str"), (7, "an int"), (None, "a NoneType")):
            message = (
                f"once\\(\\) decorates functions, got {kind}: write @….once\\(key=…\\), with parentheses"
            )
            with pytest.raises(ConfigError, match=message):
                decorated(given)


def test_once_without_parentheses_names_the_function_that_it_got() -> None:
    with pytest.raises(ConfigError, match=r"got the async function nothing\(\): for example key="):
        Dedup("memory://").once(nothing)


# The life of a gate

ASK: dict[str, Callable[[Dedup], Any]] = {
    "claim": lambda dedup: dedup.claim("k"),
    "claim with wait": lambda dedup: dedup.claim("k", wait=1.0),
    "claim with owner": lambda dedup: dedup.claim("k", owner="worker"),
    "claim_many": lambda dedup: dedup.claim_many(["a", "b"]),
    "async with claim": lambda dedup: dedup.claim("k").__aenter__(),
    "once": lambda dedup: dedup.once(lambda: "k")(nothing)(),
    "lock": lambda dedup: dedup.lock("k", wait=1.0).__aenter__(),
    "tokens.issue": lambda dedup: dedup.tokens.issue(),
    "tokens.consume": lambda dedup: dedup.tokens.consume("t"),
    "tokens.redeem": lambda dedup: dedup.tokens.redeem("t"),
    "transition": lambda dedup: dedup.machine("order", **ORDERS).transition("7", to="paid"),
    "get": lambda dedup: dedup.get("k"),
    "forget": lambda dedup: dedup.forget("k"),
    "scoped": lambda dedup: dedup.scoped("sms").claim("k"),
}


class Recorder(MemoryStore):
    """A store that notes whatever reaches it."""

    def __init__(self) -> None:
        super().__init__()
        self.reached: list[str] = []

    async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
        self.reached.append(verb.value)
        return await super().execute(verb, ops)

    async def listen(self, on_freed: Callable[[bytes | None], None]) -> None:
        self.reached.append("listen")
        await super().listen(on_freed)


@pytest.mark.parametrize("ask", ASK)
async def test_a_gate_that_is_not_open_says_how_to_open_it(ask: str) -> None:
    """Nothing reaches the store: no connection is made that nobody would close."""
    store = Recorder()
    with pytest.raises(UsageError, match="is not open: use `async with dedup:`"):
        await ASK[ask](Dedup(store))
    assert store.reached == []


@pytest.mark.parametrize("ask", ASK)
async def test_a_closed_gate_says_to_open_it_again(ask: str) -> None:
    """Nothing reaches the store any more."""
    store = Recorder()
    async with Dedup(store) as dedup:
        pass
    with pytest.raises(UsageError, match=r"is closed; open it again first"):
        await ASK[ask](dedup)
    assert store.reached == []


async def test_closing_twice_or_unopened_is_fine(backend: Backend) -> None:
    """Cleaning up needs no bookkeeping, on any store."""
    dedup = backend.make()
    await dedup.aclose()
    async with backend.make() as dedup:
        await dedup.aclose()
        await dedup.aclose()


# Settling


@pytest.mark.parametrize("second", ["complete", "fail", "release", "renew", "touch"])
@pytest.mark.parametrize("first", ["complete", "fail", "release"])
async def test_a_claim_is_settled_once(dedup: Dedup, first: str, second: str) -> None:
    """Whatever came first counts; the message says what that was."""
    how = {"complete": "completed", "fail": "failed", "release": "released"}[first]
    claim = await dedup.claim("k")
    await getattr(claim, first)()
    with pytest.raises(UsageError, match=f"was {how} already; settle it once"):
        await getattr(claim, second)()


async def test_of_two_settlings_at_once_the_first_counts(dedup: Dedup) -> None:
    """Also where the first has not been answered yet."""
    claim = await dedup.claim("k")
    done, error = await asyncio.gather(claim.complete("done"), claim.release(), return_exceptions=True)
    assert done is None
    assert isinstance(error, UsageError)
    assert (await dedup.claim("k")).result == "done"


async def test_a_lost_claim_does_not_say_that_it_was_settled(dedup: Dedup) -> None:
    """Completing it again is as lost as the first time: it was never completed."""
    claim = await dedup.claim("k")
    await dedup.forget("k")
    for _ in range(2):
        with pytest.raises(ClaimLostError):
            await claim.complete()


@pytest.mark.parametrize("settle", ["complete", "fail", "release", "renew", "touch"])
@pytest.mark.parametrize("outcome", ["in_progress", "succeeded", "failed", "mismatch", "unknown"])
async def test_only_an_acquired_claim_is_settled(dedup: Dedup, outcome: str, settle: str) -> None:
    """The message names the outcome; the record stays as it was."""
    claim = await claim_with(outcome, dedup)
    assert claim.outcome == outcome
    with pytest.raises(UsageError, match=f"this claim is {outcome}, not acquired"):
        await getattr(claim, settle)()


async def claim_with(outcome: str, dedup: Dedup) -> Claim:
    if outcome == "unknown":
        return await dedup.tokens.redeem("forged")
    first = await dedup.claim("k", fingerprint="one")
    if outcome == "succeeded":
        await first.complete()
    if outcome == "failed":
        await first.fail()
    return await dedup.claim("k", fingerprint="other" if outcome == "mismatch" else "one")


async def test_a_claim_outlives_no_closed_gate() -> None:
    """Settling after aclose() is a mistake that says so."""
    async with Dedup("memory://") as dedup:
        claim = await dedup.claim("k")
    with pytest.raises(UsageError, match="closed"):
        await claim.complete()


# A call is used once

AGAIN = r"was awaited before; call claim\(\) for another one"


async def test_a_call_awaited_twice_is_a_mistake(backend: Backend) -> None:
    """As for any coroutine; the claim that the first time got is not harmed."""
    async with backend.make() as dedup:
        call = dedup.claim("k")
        claim = await call
        with pytest.raises(UsageError, match=AGAIN):
            await call
        with pytest.raises(UsageError, match=AGAIN):
            async with call:
                pass
        await claim.complete("first")
        assert (await dedup.claim("k")).result == "first"


async def test_a_call_whose_claim_others_followed_leaves_the_books_in_order(dedup: Dedup) -> None:
    """Nobody is counted twice: closing would wait for ever."""
    call = dedup.claim("k")
    await asyncio.gather(call, dedup.claim("k"))
    with pytest.raises(UsageError, match=AGAIN):
        await call
    assert dedup.gate.connection.engine is not None
    assert dedup.gate.connection.engine.pending == 0


async def test_after_an_outage_a_retry_is_another_call() -> None:
    """The same call is used up; an owner of the caller's own makes the next one the same claimant."""
    store = FlakyStore()
    async with Dedup(store) as dedup:
        call = dedup.claim("k", owner="worker")
        store.down = True
        with pytest.raises(UnavailableError):
            await call
        store.down = False
        with pytest.raises(UsageError, match=AGAIN):
            await call
        assert (await dedup.claim("k", owner="worker")).acquired


async def test_a_call_run_twice_as_a_task_is_a_mistake(dedup: Dedup) -> None:
    """None for an answer would be the worst of all."""
    call = dedup.claim("k")
    assert (await asyncio.create_task(call)).acquired
    with pytest.raises(RuntimeError):
        await asyncio.create_task(call)


async def test_a_call_in_two_tasks_at_once_is_a_mistake(dedup: Dedup) -> None:
    """Both tasks end, with an error at least for the second, and the gate goes on working."""
    call = dedup.claim("k")
    tasks = [asyncio.create_task(call), asyncio.create_task(call)]
    done, pending = await asyncio.wait(tasks, timeout=5)
    assert not pending
    assert all(isinstance(task.exception(), RuntimeError) or task.result().acquired for task in done)
    assert any(task.exception() is not None for task in done)
    assert (await dedup.claim("other")).acquired


# Foreign values


@pytest.fixture
def redis_backend(running_store: Backend) -> Iterator[Backend]:
    yield running_store
    running_store.clear()


redis_stores = on_stores(*[name for name in STORES if name not in {"memory", "local"}])
"""Where another program may write, too."""


FOREIGN: dict[str, tuple[str, tuple[Any, ...]]] = {
    "list": ("rpush", ("a", "b")),
    "hash": ("hset", ("field", "value")),
    "set": ("sadd", ("member",)),
    "empty text": ("set", ("",)),
    "text": ("set", ("somebody else's",)),
    "long text": ("set", ("somebody else's, and longer than any header",)),
    "other version": ("set", (b"\2P" + b"\0" * 40,)),
    "cut off": ("set", (b"\1P\0\0\0",)),
    "\\x01 short": ("set", (b"\1abc",)),
    "\\x01 long": ("set", (b"\1 this begins as a record does and is none at all",)),
    "\\x01 bytes": ("set", (b"\1" + bytes(range(200, 250)),)),
    "owner cut off": ("set", (b"\1P" + b"\0" * 15 + b"\x3f" + b"short",)),
}
CLAIM_KEY = Keyspace("t", Kind.CLAIM).wire("foreign")


def plant(backend: Backend, kind: str, wire: bytes) -> bytes:
    """Write somebody else's value; return it as DUMP shows it."""
    assert backend.raw is not None
    command, values = FOREIGN[kind]
    getattr(backend.raw, command)(wire, *values)
    return backend.raw.dump(wire)  # type: ignore[return-value]


@redis_stores
@pytest.mark.parametrize("kind", FOREIGN)
async def test_a_foreign_value_fails_its_own_key_and_stays_as_it_is(
    kind: str, redis_backend: Backend
) -> None:
    """ForeignRecordError names the key and the remedy; the keys of the same batch are answered."""
    async with redis_backend.make() as dedup:
        before = plant(redis_backend, kind, CLAIM_KEY)
        calls = [dedup.claim(key) for key in ("a", "foreign", "b")]
        first, error, last = await asyncio.gather(*calls, return_exceptions=True)
        with pytest.raises(ForeignRecordError):
            await dedup.claim_many(["b", "foreign"])
        assert redis_backend.raw is not None
        assert redis_backend.raw.dump(CLAIM_KEY) == before
        assert isinstance(error, ForeignRecordError)
        assert "'foreign'" in str(error)
        assert "choose another namespace, or remove that key" in str(error)
        assert isinstance(first, Claim)
        assert isinstance(last, Claim)
        assert first.acquired
        assert last.acquired


@redis_stores
@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("ask", ["get", "forget"])
async def test_a_foreign_value_is_neither_shown_nor_forgotten(
    ask: str, kind: str, redis_backend: Backend
) -> None:
    """Inspection and administration leave other people's values alone."""
    async with redis_backend.make() as dedup:
        before = plant(redis_backend, kind, CLAIM_KEY)
        with pytest.raises(ForeignRecordError):
            await getattr(dedup, ask)("foreign")
        assert redis_backend.raw is not None
        assert redis_backend.raw.dump(CLAIM_KEY) == before


@redis_stores
@pytest.mark.parametrize("settle", ["complete", "fail", "release", "renew", "touch"])
@pytest.mark.parametrize("kind", ["list", "text", "\\x01 long"])
async def test_a_claim_whose_key_was_overwritten_is_not_settled(
    kind: str, settle: str, redis_backend: Backend
) -> None:
    """An error, and the other program's value stays."""
    async with redis_backend.make() as dedup:
        claim = await dedup.claim("foreign")
        assert redis_backend.raw is not None
        redis_backend.raw.delete(CLAIM_KEY)
        before = plant(redis_backend, kind, CLAIM_KEY)
        with pytest.raises((ForeignRecordError, ClaimLostError)):
            await getattr(claim, settle)()
        assert redis_backend.raw.dump(CLAIM_KEY) == before


@redis_stores
@pytest.mark.parametrize("kind", ["list", "text", "\\x01 long"])
async def test_a_machine_leaves_a_foreign_value_alone(kind: str, redis_backend: Backend) -> None:
    """Transition and get say so."""
    async with redis_backend.make() as dedup:
        orders = dedup.machine("order", **ORDERS)
        wire = Keyspace("t", Kind.MACHINE).wire("order/7")
        before = plant(redis_backend, kind, wire)
        with pytest.raises(ForeignRecordError):
            await orders.transition("7", to="paid")
        with pytest.raises(ForeignRecordError):
            await orders.get("7")
        assert redis_backend.raw is not None
        assert redis_backend.raw.dump(wire) == before


# Servers that cannot be used


locked_server = fixture_of(RedisServer, "--requirepass", "s3cret", scope="module")


def with_password(server: RedisServer, password: str) -> str:
    return server.url.replace("unix://", f"unix://:{password}@")


async def test_a_gate_that_failed_to_open_is_not_open(locked_server: RedisServer) -> None:
    """Using it anyway is the usual UsageError."""
    dedup = Dedup(with_password(locked_server, "wr0ng"), timeout=5.0)
    with pytest.raises(ConfigError):
        await dedup.open()
    with pytest.raises(UsageError, match="not open"):
        await dedup.claim("k")
    await dedup.aclose()


@pytest.mark.parametrize("version", ["5.0.14", "6.0.16", "2.8.24", "6.1.242"])
async def test_a_redis_that_is_too_old_is_a_mistake_that_opening_finds(version: str, tmp_path: Path) -> None:
    """ConfigError that names both versions."""
    async with resp_server(tmp_path, version=version) as url:
        dedup = Dedup(url, timeout=5.0)
        with pytest.raises(ConfigError, match=rf"version {version[:3]}; fastdedup needs 6\.2 or later"):
            await dedup.open()
        await dedup.aclose()


@pytest.mark.parametrize("version", ["6.2.0", "7.4.1", "8.0.2", "10.0.0", "unheard-of"])
async def test_a_redis_that_is_young_enough_opens(version: str, tmp_path: Path) -> None:
    """Versions are numbers, not text: 10 is above 6."""
    async with resp_server(tmp_path, version=version) as url, Dedup(url, timeout=5.0) as dedup:
        assert "shop" in repr(dedup.scoped("shop"))


async def test_targets_may_be_any_iterable_and_are_read_once(dedup: Dedup) -> None:
    """An iterator is not eaten by the check."""
    orders = dedup.machine("order", initial="a", transitions={"a": iter(["b"]), "b": iter(())})
    assert (await orders.transition("7", to="b")).changed
    with pytest.raises(ConfigError, match="no state"):
        await orders.transition("7", to=["b"])  # type: ignore[arg-type]


async def test_one_text_is_no_list_of_keys(dedup: Dedup) -> None:
    """Its characters would be claimed."""
    with pytest.raises(InvalidKeyError, match="list of keys"):
        await dedup.claim_many("abc")


@pytest.mark.parametrize(("option", "value"), [("codec", object()), ("codec", JSONCodec), ("on_event", 3)])
def test_a_codec_or_callback_that_is_none_is_refused(option: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=option):
        Dedup("memory://", **{option: value})


async def test_a_known_duplicate_does_not_excuse_bad_arguments(dedup: Dedup) -> None:
    """Nor does it answer under another claimant's name."""
    claim = await dedup.claim("k")
    await claim.complete("r")
    await dedup.claim("k")
    for option in ({"lease": -1}, {"ttl": math.nan}, {"wait": "x"}, {"wait": -1}):
        with pytest.raises(ConfigError):
            await dedup.claim("k", **option)  # type: ignore[arg-type]
    assert (await dedup.claim("k", owner="me")).owner == "me"


@pytest.mark.parametrize("key", [None, 7, b"k-1"])
async def test_the_key_of_a_web_request_is_text(dedup: Dedup, key: Any) -> None:
    with pytest.raises(InvalidKeyError, match="must be the text of an Idempotency-Key"):
        await get_request(dedup, "POST", "/orders", key=key)
