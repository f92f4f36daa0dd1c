"""The record of the claims in a test: how often, by which owner, and how they ended; and the assertions on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

from ..admin.inspection import wire_of
from ..checks import named, shown
from ..core.gate import Gate
from ..errors import ConfigError, UsageError
from ..gateway import Dedup
from ..kernel.codes import Code
from ..kernel.keyspace import names_of
from ..kernel.operations import ClaimOp, Op, ReleaseOp, Reply, SettleOp, Verdict
from ..kernel.owners import is_drawn, owner_text
from ..kernel.terms import Mode
from ..model import Outcome
from ..sync.gateway import Dedup as SyncDedup
from ..web.inspection import Caller, place_of_request
from ..web.record_keys import SCOPE

End = Literal["at work", "completed", "failed", "released", "taken over", "consumed"]
ClaimKind = Literal["claim", "lock", "token"]
"""The kinds that have an owner. A machine has none: any caller moves it."""
_SHOWN = 10
"""The most keys, and acquisitions of a key, that a message shows."""
_OTHERS: Final[tuple[ClaimKind, ...]] = ("lock", "token")
"""The kinds that a message names if there was no claim."""


@dataclass(slots=True)
class Acquisition:
    """One acquisition of a key. Its times are seconds since 1970, by the store's clock."""

    owner: str
    attempt: int
    fence: int
    at: float
    end: End = "at work"

    def __str__(self) -> str:
        return f"attempt {self.attempt} by owner {self.owner}: {self.end}"


@dataclass(slots=True)
class ClaimsOfKey:
    """The store's answers about one key, and in an outage the answers of a policy such as `LocalLRU`.

    Attributes:
        key: the key of the claims.
        acquisitions: each acquisition, in order. If its owner claims it again with the same `owner=`, it gets its own
            claim back: that is one acquisition.
        duplicates: how many claims found each other outcome. Claims that a gate gets in one turn of the event loop
            reach the store as one, so their duplicates are not counted here.
        refused: how often the settlement of a stale owner was refused.
    """

    key: str
    acquisitions: list[Acquisition] = field(default_factory=list)
    duplicates: Counter[Outcome] = field(default_factory=Counter)
    refused: int = 0

    @property
    def times(self) -> int:
        """How often the key was acquired."""
        return len(self.acquisitions)

    def __str__(self) -> str:
        lines = [f"  {number}. {each}" for number, each in enumerate(self.acquisitions[:_SHOWN], 1)]
        if self.times > _SHOWN:
            lines.append(f"  and {self.times - _SHOWN} more")
        found = ", ".join(f"{count} {outcome}" for outcome, count in self.duplicates.items())
        lines.append(f"  duplicates that the store answered: {found or 'not one'}")
        if self.refused:
            lines.append(f"  {self.refused} times a stale owner was refused when it settled")
        return "\n".join(lines)


class ClaimLog:
    """Notes the answers of a store to claims and settlements."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._keys: dict[bytes, ClaimsOfKey] = {}

    def note(self, op: Op, reply: Reply) -> None:
        """Note one operation."""
        if isinstance(op, ClaimOp):
            if isinstance(reply, Verdict):
                self._claimed(op, reply)
        elif isinstance(op, SettleOp | ReleaseOp):
            self._settled(op, reply)

    def of(self, wire: bytes, key: str) -> ClaimsOfKey:
        """Return the record of a key."""
        return self._keys.get(wire) or ClaimsOfKey(key)

    def keys(self, gate: Gate) -> list[str]:
        """Return the keys of a namespace that were acquired by claims."""
        return [seen.key for wire, seen in self._keys.items() if seen.times and gate.claims.has(wire)]

    def _claimed(self, op: ClaimOp, verdict: Verdict) -> None:
        wire = _wire_of(op)
        seen = self._keys.get(wire)
        if seen is None:
            seen = self._keys[wire] = ClaimsOfKey(getattr(op, "key", "") or names_of(wire)[1])
        if verdict.outcome is not Outcome.ACQUIRED:
            seen.duplicates[verdict.outcome] += 1
        elif verdict.fresh:
            end: End = "consumed" if op.terms.mode is Mode.CONSUME else "at work"
            owner = owner_text(op.owner)
            if is_drawn(op.owner) and any(each.owner == owner for each in seen.acquisitions):
                return  # the policy has answered this claim, and a frozen store executes it later
            if verdict.attempt > 1 and seen.times and seen.acquisitions[-1].end == "at work":
                seen.acquisitions[-1].end = "taken over"
            seen.acquisitions.append(Acquisition(owner, verdict.attempt, verdict.fence, self._clock(), end))

    def _settled(self, op: SettleOp | ReleaseOp, reply: Reply) -> None:
        seen = self._keys.get(_wire_of(op))
        if seen is None:
            return
        if reply is not Code.OK:
            seen.refused += reply is Code.LOST
            return
        owner = owner_text(op.owner)
        for each in reversed(seen.acquisitions):
            if each.owner == owner:
                each.end = _end_of(op)
                return


def _end_of(op: SettleOp | ReleaseOp) -> End:
    if isinstance(op, ReleaseOp):
        return "released"
    return "completed" if op.succeeded else "failed"


def _wire_of(op: Op) -> bytes:
    """Return the store key of a claim; if a ledger remembers its success, the key of the same claim without one."""
    namespace, key = names_of(op.wire)
    head = f"{namespace}:".encode()
    if op.wire[len(head) : len(head) + 1] != b"~":
        return op.wire
    digested = op.wire[-17:-16] == b"#"
    return head + (op.wire[-17:] if digested else b"=" + key.encode())


def claims_of(
    dedup: Dedup | SyncDedup,
    key: str,
    *,
    kind: ClaimKind = "claim",
    http: tuple[str, str] | None = None,
    principal: Caller = None,
    tenant: Caller = None,
) -> ClaimsOfKey:
    """Return the record of a key's claims, in this gate's namespace.

    Arguments: see `assert_claimed_once`.

    Raises:
        ConfigError: `kind` cannot be claimed; `dedup` is not a gate, or `http` is not a pair.
        UsageError: the gate is not on a `FakeStore`; `principal` or `tenant` is given without `http`, or `kind` with
            it.
    """
    _check_gate(dedup)
    _check_kind(kind)
    _check_http(http)
    if http is None:
        if principal is not None or tenant is not None:
            given = "tenant" if principal is None else "principal"
            raise UsageError(f'{given}= belongs to a web request: give http=("POST", "/orders") with it')
        gate, log = _gate_and_log(dedup)
        return log.of(wire_of(gate, key, kind), key)
    if kind != "claim":
        raise UsageError(f"http= names a web request, whose record is a claim: leave out kind={kind!r}")
    place = place_of_request(*http, principal, key, tenant)
    gate, log = _gate_and_log(dedup.scoped(place.scope_in(dedup.settings.namespace)))
    return log.of(gate.claims.wire(place.key), place.key)


def assert_claimed_once(
    dedup: Dedup | SyncDedup,
    key: str,
    *,
    kind: ClaimKind = "claim",
    http: tuple[str, str] | None = None,
    principal: Caller = None,
    tenant: Caller = None,
    end: End | None = None,
) -> ClaimsOfKey:
    """Assert that a key was acquired once, for any number of claims; return the record of its claims.

    Answers of `LocalLRU` in an outage count like those of the store.

    A second claim by the same `owner=` gets the same claim back, and counts as one with it: if a worker has a fixed
    name and works again after a restart, count your own effect.

    It awaits nothing, so any thread may call it, with an event loop or without.

    Args:
        dedup: a gate on a `FakeStore`, or one that is swapped; a scope has its own keys.
        key: the key of the claim; with `http` the request's Idempotency-Key; for a token its text.
        kind: "claim", "lock", or "token" for one that was redeemed or consumed.
        http: the method and the path of a web request's route, such as `("POST", "/orders/{id}")`, with the prefixes
            of its routers and the mount.
        principal: with `http`, the result of the principal function for the caller; None if the route is open to
            all callers.
        tenant: with `http`, the result of the function given as `tenant=`; None if the route has no such function.
        end: the expected end of the acquisition: "completed", "failed", "released", "consumed"; or "at work".

    Raises:
        AssertionError: the message shows the owners that acquired it, and how each acquisition ended.
        ConfigError: `kind` is not one of these. For a machine read its state.
        UsageError: the gate is not on a `FakeStore`.
    """
    __tracebackhide__ = True  # pytest then shows the test's own line
    seen = claims_of(dedup, key, kind=kind, http=http, principal=principal, tenant=tenant)
    if seen.times == 1:
        if end is None or seen.acquisitions[0].end == end:
            return seen
        raise AssertionError(
            f"{key!r} was claimed once, and is {seen.acquisitions[0].end}, not {end}:\n{seen}"
        )
    if seen.times:
        raise AssertionError(f"{key!r} was claimed {seen.times} times, not once:\n{seen}")
    raise AssertionError(f"{key!r} was never claimed{_near(dedup, key)}")


def assert_not_claimed(
    dedup: Dedup | SyncDedup,
    key: str,
    *,
    kind: ClaimKind = "claim",
    http: tuple[str, str] | None = None,
    principal: Caller = None,
    tenant: Caller = None,
) -> None:
    """Assert that a key was never acquired. Arguments and errors: see `assert_claimed_once`."""
    __tracebackhide__ = True
    seen = claims_of(dedup, key, kind=kind, http=http, principal=principal, tenant=tenant)
    if seen.times:
        raise AssertionError(f"{key!r} was claimed {seen.times} times, not never:\n{seen}")


def _check_gate(dedup: Any) -> None:
    if not isinstance(dedup, Dedup | SyncDedup):
        raise ConfigError(
            f"the gate must be a Dedup or a fastdedup.sync.Dedup, got {named(dedup)}: give the object, such as "
            "shop.dedup, then the key"
        )


def _check_http(http: Any) -> None:
    is_pair = isinstance(http, tuple | list) and len(http) == 2
    if http is not None and not (is_pair and all(isinstance(each, str) for each in http)):
        raise ConfigError(f'http must be a method and a path such as ("POST", "/orders"), got {shown(http)}')


def _check_kind(kind: Any) -> None:
    if kind == "machine":
        raise ConfigError(
            'a machine is moved, not claimed, so no owner is recorded; instead of kind="machine" compare '
            'its state: dedup.get("order/42", kind="machine").result'
        )
    if not isinstance(kind, str) or kind not in get_args(ClaimKind):
        raise ConfigError(f"kind must be one of {', '.join(get_args(ClaimKind))}, got {shown(kind)}")


def _near(dedup: Dedup | SyncDedup, key: str) -> str:
    """Return the other acquired keys, for a message."""
    for kind in _OTHERS:
        if claims_of(dedup, key, kind=kind).times:
            return f', but a {kind} of this name was: give kind="{kind}"'
    gate, log = _gate_and_log(dedup)
    near = _shown_keys(log, gate) or f"; no key of the namespace {gate.settings.namespace!r} was"
    web = "" if gate.settings.namespace.endswith(f":{SCOPE}") else _shown_web_keys(dedup)
    hint = '. A web request is named by http=("POST", "/orders"), principal= and its key' if web else ""
    return near + web + hint


def _shown_web_keys(dedup: Dedup | SyncDedup) -> str:
    gate, log = _gate_and_log(dedup.scoped(SCOPE))
    return _shown_keys(log, gate)


def _shown_keys(log: ClaimLog, gate: Gate) -> str:
    """Return the keys of a namespace that were claimed, for a message; "" if there is none."""
    keys, name = log.keys(gate), gate.settings.namespace
    more = f", and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    shown = ", ".join(map(repr, keys[:_SHOWN]))
    return f"; of the namespace {name!r} these keys were: {shown}{more}" if keys else ""


def _gate_and_log(dedup: Dedup | SyncDedup) -> tuple[Gate, ClaimLog]:
    inner = dedup.bound.get()[1] if isinstance(dedup, SyncDedup) else dedup
    log = getattr(inner.gate.connection.store, "seen", None)
    if not isinstance(log, ClaimLog):
        raise UsageError(
            "only a gate on a FakeStore knows what was claimed: use the fixture `dedup`, FakeStore, "
            "or swapped(...) around the test"
        )
    return inner.gate, log
