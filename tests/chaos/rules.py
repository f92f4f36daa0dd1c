"""The promises, as rules: each looks at the events of one key and yields what no order of effects explains."""

from __future__ import annotations

from collections.abc import Iterator

from .facts import Found, Key, Rule
from .history import TAKING, UNSURE, Event
from .ownership import Success, Tenure, writers_of

TWO_OWNERS = "two live owners"
FENCE_FELL = "a fence that fell"
ATTEMPT_FELL = "an attempt that fell"
FORGOTTEN = "a forgotten success"
FORGOTTEN_TOKEN = "a forgotten token"
TOKEN_TWICE = "a token used twice"
SETTLED_TWICE = "settled twice"
ALTERED = "an altered result"
STALE = "a stale owner's act accepted"
PHANTOM = "a duplicate of nothing"


def two_owners(key: Key) -> Iterator[Found]:
    """Nobody else acquires a key, from asking to answer, while an owner surely has it."""
    for tenure in key.tenures:
        since, until = tenure.since, tenure.until - key.margin
        for claim in key.taken:
            if claim.start > since and claim.over < until and claim.owner != tenure.owner:
                yield TWO_OWNERS, tenure.first, claim


def stale_acts(key: Key) -> Iterator[Found]:
    """Whoever renews, settles or releases has not been overtaken, and has acquired the key at all."""
    for tenure in key.tenures:
        accepted = [act for act in tenure.acts if act.outcome == "ok"]
        for act in accepted:
            for claim in key.taken:
                other = (claim.owner, claim.fence) != (tenure.owner, tenure.first.fence)
                if (
                    other
                    and not _done_before(act, claim, tenure)
                    and tenure.since < claim.start
                    and claim.over < act.start
                ):
                    yield STALE, claim, act, _granted_locally(key, act)


def _done_before(act: Event, claim: Event, tenure: Tenure) -> bool:
    """A release that is asked again may have been done at the first time of asking, before the other's claim."""
    return act.verb == "release" and any(
        it.verb == "release" and it.outcome in UNSURE and it.start < claim.over for it in tenure.acts
    )


def fences(key: Key) -> Iterator[Found]:
    """A later owner has a higher fence, and no two owners have the same.

    Where the server's clock fell and the record is gone, only a process that had seen a later time can know.
    """
    for a, b in _later_pairs(key):
        fell = b.fence < a.fence or (b.fence == a.fence and b.owner != a.owner)
        if fell and key.facts.could_know(b.worker, a, b):
            yield FENCE_FELL, a, b, _granted_locally(key, b)


def _granted_locally(key: Key, event: Event) -> tuple[Event, ...]:
    """Return the policy's grants of this very claim: brought into the store since, they may displace a twin's."""
    same = (it for it in key.taken if it.degraded and (it.owner, it.fence) == (event.owner, event.fence))
    return tuple(same)


def attempts(key: Key) -> Iterator[Found]:
    """While the record stands, a later owner has a higher attempt. Settling is left out: it has a ttl of its own."""
    if any(event.verb in ("complete", "fail", "consume") or event.degraded for event in key.events):
        return
    # Each owner gives the record a new time to live, so only the first to end is sure.
    until = min((event.start + event.lease + event.ttl for event in key.events if event.ttl), default=0)
    for a, b in _later_pairs(key):
        if b.fence != a.fence and 0 < b.attempt <= a.attempt and b.over < until - key.margin:
            yield ATTEMPT_FELL, a, b


def _later_pairs(key: Key) -> Iterator[tuple[Event, Event]]:
    claims = [claim for claim in key.taken if claim.fence]  # consuming tells no fence
    for i, b in enumerate(claims):
        yield from ((a, b) for a in claims[:i] if a.over < b.start)


def forgotten(key: Key) -> Iterator[Found]:
    """While a result is on record nobody acquires the key, nobody is told another result."""
    for success in key.successes:
        until = success.until - key.margin
        for event in key.events:
            if event.verb not in TAKING or event.start <= success.known or event.over >= until:
                continue
            if event.acquired:
                yield TOKEN_TWICE if key.is_token else FORGOTTEN, success.source, event, (success.act,)
            elif event.outcome in ("succeeded", "failed") and _tells_other(event, success):
                yield ALTERED, success.source, event, (success.act, *_writer(event, key))


def _writer(answer: Event, key: Key) -> list[Event]:
    """Return who surely wrote the result that is told, a hint at most: one that may be anybody's is nobody's."""
    writers = writers_of(answer, key.events)
    return writers[:1] if all(writer.degraded for writer in writers) else []


def _tells_other(event: Event, success: Success) -> bool:
    if event.verb == "consume":
        return event.outcome != success.state
    return (event.outcome, event.result) != (success.state, success.value)


def settled_twice(key: Key) -> Iterator[Found]:
    """One record is settled once: of two results within a ttl, no order explains both."""
    for i, a in enumerate(key.successes):
        for b in key.successes[i + 1 :]:
            same = a.act is b.act or (a.act.owner, a.act.fence) == (b.act.owner, b.act.fence)
            margin = key.margin
            if not same and b.known < a.until - margin and a.known < b.until - margin:
                earlier, later = sorted((a.source, b.source), key=lambda event: event.over)
                yield TOKEN_TWICE if key.is_token else SETTLED_TWICE, earlier, later, (a.act, b.act)


def made_up(key: Key) -> Iterator[Found]:
    """A result that is told was written by somebody, and who is in the way has asked for the key."""
    for event in key.events:
        if event.verb not in TAKING or event.end is None:
            continue
        if event.outcome in ("succeeded", "failed"):
            if not writers_of(event, key.events):
                yield ALTERED, None, event
        elif event.outcome == "in_progress" and not any(
            other is not event and other.start <= event.end and _may_hold(other) for other in key.events
        ):
            yield PHANTOM, None, event


def _may_hold(event: Event) -> bool:
    return event.verb in TAKING and (event.acquired or event.outcome in UNSURE)


def forgotten_tokens(key: Key) -> Iterator[Found]:
    """A token that was issued is known until its time is over. Whoever uses it gives it a new one."""
    for issue in key.events:
        if issue.verb == "issue" and issue.outcome == "ok":
            until = min(event.start + event.ttl for event in key.events if event.ttl) - key.margin
            for event in key.events:
                if event.outcome == "unknown" and event.start > issue.over and event.over < until:
                    yield FORGOTTEN_TOKEN, issue, event


RULES: tuple[Rule, ...] = (
    two_owners,
    stale_acts,
    fences,
    attempts,
    forgotten,
    settled_twice,
    made_up,
    forgotten_tokens,
)
