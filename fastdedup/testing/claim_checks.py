"""The checks of guarantees 1 to 15: claims, tokens, machines, batches, and records that are made elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import Final

from ..claim import Claim
from ..errors import ClaimLostError, ForeignRecordError
from ..kernel.codes import Code
from ..kernel.operations import (
    AdoptOp,
    ClaimOp,
    IssueOp,
    ReleaseOp,
    Reply,
    SettleOp,
    Verdict,
)
from ..kernel.owners import owner_field
from ..kernel.records import Stored
from ..kernel.replies import Adopted
from ..kernel.verbs import Verb
from ..model import Outcome, State, TransitionOutcome
from ..stores.base import Store
from .probe import probe
from .trial import KEEP, LEASE, PATIENCE, BrokenError, Checks, Trial, expect

CHECKS: Final = Checks()
_OF_OWNERS: Final = ("fail", *(verb.row.users or verb.value for verb in Verb if verb.row.of_owner))
"""What only an owner may do: methods of `Claim`."""


@CHECKS.of(1)
async def _one_claim_is_acquired(trial: Trial) -> None:
    for _ in range(5):
        key = trial.key()
        claims = await asyncio.gather(*(gate.claim(key) for gate in trial.gates for _ in range(25)))
        outcomes = [claim.outcome for claim in claims]
        acquired = outcomes.count(Outcome.ACQUIRED)
        expect(acquired == 1, f"of {len(claims)} concurrent claims {acquired} were acquired")
    if trial.store is not None:
        await _one_operation_is_acquired(trial, trial.store)


async def _one_operation_is_acquired(trial: Trial, store: Store) -> None:
    """Send the claims past the gate, which asks the store only once for many claims of one key."""
    key = trial.key()
    claim = await trial.dedup.claim(key)
    model: ClaimOp = claim.settlement.op
    await trial.dedup.forget(key)
    ops = [ClaimOp(model.wire, model.terms, owner_field(f"racer-{n}"), None) for n in range(25)]
    replies = await asyncio.gather(*(store.execute(Verb.CLAIM, [op]) for op in ops))
    verdicts = [reply[0] for reply in replies]
    acquired = sum(isinstance(each, Verdict) and each.outcome is Outcome.ACQUIRED for each in verdicts)
    expect(acquired == 1, f"of {len(ops)} concurrent claims {acquired} were acquired")


@CHECKS.of(2)
async def _an_owner_gets_its_claim_back(trial: Trial) -> None:
    key = trial.key()
    first = await trial.dedup.claim(key, owner="worker")
    again = await trial.dedup.claim(key, owner="worker")
    expect(again.acquired, f"the same owner got {again.outcome.value}")
    expect(again.fence == first.fence, f"the fence was {first.fence}, then {again.fence}")
    expect(again.attempt == first.attempt, f"the attempt was {first.attempt}, then {again.attempt}")


@CHECKS.of(3)
async def _another_owner_finds_in_progress(trial: Trial) -> None:
    key = trial.key()
    await trial.dedup.claim(key, lease=30.0)
    other = await trial.dedup.claim(key)
    expect(other.outcome is Outcome.IN_PROGRESS, f"another owner got {other.outcome.value}")
    left = other.retry_after
    expect(left is not None and 20 < left <= 30, f"of a lease of 30 s, {left} s were left at once")


@CHECKS.of(4)
async def _an_ended_lease_is_taken_over(trial: Trial) -> None:
    key = trial.key()
    claims = [await trial.dedup.claim(key, lease=LEASE)]
    claims += [await trial.taken_over(key, LEASE) for _ in range(2)]
    _rises(claims)


def _rises(claims: Sequence[Claim]) -> None:
    """Expect that each acquisition of a key has the next attempt and a higher fence."""
    attempts, fences = [claim.attempt for claim in claims], [claim.fence for claim in claims]
    expect(attempts == [*range(1, len(claims) + 1)], f"the attempts were {attempts}")
    expect(fences == sorted(set(fences)), f"the fences were {fences}")


@CHECKS.of(5)
async def _a_stale_owner_changes_nothing(trial: Trial) -> None:
    for verb in _OF_OWNERS:
        key = trial.key()
        stale = await trial.dedup.claim(key, lease=LEASE)
        present = await trial.taken_over(key)
        try:
            await getattr(stale, verb)()
        except ClaimLostError:
            pass
        else:
            raise BrokenError(f"{verb}() of a stale owner was accepted")
        await present.complete("present")
        result = (await trial.dedup.claim(key)).result
        expect(result == "present", f"after a stale {verb}() the result of the present owner was {result!r}")


@CHECKS.of(6)
async def _settling_again_gets_the_same_answer(trial: Trial) -> None:
    run = trial.dedup.gate.run
    done, freed = [(await trial.dedup.claim(trial.key())) for _ in range(2)]
    wire, owner = done.settlement.held_key
    settle = SettleOp(wire, owner, done.fence, succeeded=True, keep_ms=int(KEEP * 1000), payload=b"1")
    release = ReleaseOp(*freed.settlement.held_key, freed.fence)
    for name, op in (("complete", settle), ("release", release)):
        answers = [await run(op), await run(op)]
        expect(answers == [Code.OK] * 2, f"{name} was answered {answers[0]!r}, then {answers[1]!r}")
    other = SettleOp(wire, owner, done.fence, succeeded=False, keep_ms=1000, payload=b"1")
    expect(await run(other) is Code.LOST, "a success was changed to a failure")
    with suppress(NotImplementedError):  # a store without tokens has nothing to issue
        await _issuing_again_gets_the_same_answer(trial)


async def _issuing_again_gets_the_same_answer(trial: Trial) -> None:
    wire = trial.token_wire()
    answers = [await _issued(trial, wire, issuer) for issuer in ("me", "me", "you")]
    expect(
        answers == [Code.OK, Code.OK, Code.FOREIGN],
        f"me, me, you, who issued one token, were answered {answers}",
    )


async def _issued(trial: Trial, wire: bytes, issuer: str) -> Reply:
    """Issue a token, and return the store's answer: FOREIGN if another issuer's record stands there."""
    try:
        return await trial.dedup.gate.run(IssueOp(wire, owner_field(issuer), None, int(KEEP * 1000)))
    except ForeignRecordError:
        return Code.FOREIGN


@CHECKS.of(7)
async def _a_success_answers_each_claimant(trial: Trial) -> None:
    for result in (None, 0, "", [1, {"a": None}], "x" * 10_000):
        key = trial.key()
        await (await trial.dedup.claim(key)).complete(result)
        for _ in range(2):
            again = await trial.dedup.claim(key)
            expect(again.outcome is Outcome.SUCCEEDED, f"after a success a claim got {again.outcome.value}")
            expect(again.result == result, f"the result was {str(result)[:40]!r}, another came back")


@CHECKS.of(8)
async def _a_released_key_is_free(trial: Trial) -> None:
    key = trial.key()
    claims = []
    for request in ("a", "b", "c"):
        claim = await trial.dedup.claim(key, fingerprint=request)
        expect(claim.acquired, f"after a release a claim got {claim.outcome.value}")
        claims.append(claim)
        await claim.release()
    _rises(claims)


@CHECKS.of(9)
async def _other_fingerprints_are_a_mismatch(trial: Trial) -> None:
    for state in ("in progress", "ended", "succeeded", "failed"):
        key = trial.key()
        claim = await trial.dedup.claim(key, fingerprint="a", lease=LEASE if state == "ended" else None)
        await trial.end(claim, key, state)
        other = (await trial.dedup.claim(key, fingerprint="b")).outcome
        expect(other is Outcome.MISMATCH, f"{state}: a claim with another fingerprint got {other.value}")


@CHECKS.of(10)
async def _a_token_is_acquired_once(trial: Trial) -> None:
    tokens, token = trial.dedup.tokens, await trial.token("user")
    for asked, subject, due in (
        ("never-issued", "user", Outcome.UNKNOWN),
        (token, "another", Outcome.MISMATCH),
        (token, "user", Outcome.ACQUIRED),
        (token, "user", Outcome.SUCCEEDED),
        (token, "another", Outcome.MISMATCH),
    ):
        found = await tokens.consume(asked, subject)
        expect(found is due, f"{found.value} instead of {due.value}")
    for state, redeems, consumes, another in _USES:
        for owner, mode, outcome in (
            ("desk", "redeem", redeems),
            ("desk", "consume", consumes),
            ("another", "redeem", another),
            ("another", "consume", another),
        ):
            await _a_use_is_answered(trial, state, owner, mode, outcome)


_GOT: Final = Outcome.ACQUIRED
_DONE: Final = Outcome.SUCCEEDED
_USES: Final = (
    ("processing", _GOT, _GOT, Outcome.IN_PROGRESS),
    ("succeeded without a result", _DONE, _GOT, _DONE),
    ("succeeded with a result", _DONE, _DONE, _DONE),
    ("failed", Outcome.FAILED, Outcome.FAILED, Outcome.FAILED),
    ("released", _GOT, _GOT, _GOT),
    ("ended", _GOT, _GOT, _GOT),
)
"""The table of guarantee 10: what the record says, and the answers to its owner, who redeems or consumes the token,
and to another owner."""


async def _a_use_is_answered(trial: Trial, state: str, owner: str, mode: str, due: Outcome) -> None:
    """Use a token whose record by the owner "desk" is in a state, and compare the answer with what is due."""
    token, tokens = await trial.token("user"), trial.dedup.tokens
    claim = await tokens.redeem(token, "user", owner="desk", lease=LEASE if state == "ended" else None)
    if state == "succeeded without a result":
        await tokens.consume(token, "user", owner="desk")
    await trial.end(claim, token, state.removesuffix(" with a result"), 1, "token")
    if mode == "redeem":
        found = (await tokens.redeem(token, "user", owner=owner, lease=KEEP)).outcome
    else:
        found = await tokens.consume(token, "user", owner=owner)
    said = f"{state}: the {mode} of {'the owner' if owner == 'desk' else 'another owner'}"
    expect(found is due, f"{said} got {found.value} instead of {due.value}")
    record = await trial.dedup.get(token, "token")
    if record is None or found is not Outcome.ACQUIRED:
        return
    anew = state in ("released", "ended")
    expect(record.attempt == 1 + anew, f"{said} has the attempt {record.attempt}")
    expect((record.fence > claim.fence) is anew, f"{said} has the fence {record.fence} after {claim.fence}")
    if mode == "consume":
        expect(record.state is State.SUCCEEDED, f"{said} left the record {record.state.value}")
    else:
        expect((record.lease or 0) > KEEP / 2, f"{said} has no new lease: {record.lease} s are left")


@CHECKS.of(11)
async def _a_transition_follows_its_definition(trial: Trial) -> None:
    machine = trial.dedup.machine(
        "order", initial="new", transitions={"new": ("paid", "void"), "paid": (), "void": ()}, ttl=KEEP
    )
    order = trial.key("machine")
    trial.made[-1] = (f"order/{order}", "machine")  # the record's key has the machine's name
    moves = await asyncio.gather(*(machine.transition(order, to=to) for to in ("paid", "void") * 10))
    changed = sum(move.changed for move in moves)
    expect(changed == 1, f"of {len(moves)} concurrent transitions {changed} changed the state")
    other = "void" if moves[0].state == "paid" else "paid"
    move = await machine.transition(order, to=other)
    expect(move.outcome is TransitionOutcome.ILLEGAL, f"a forbidden transition was {move.outcome.value}")


@CHECKS.of(12)
async def _a_record_expires(trial: Trial) -> None:
    key = trial.key()
    claim = await trial.dedup.claim(key, ttl=LEASE)
    await claim.complete("r")
    new = await trial.taken_over(key)
    expect(new.attempt == 1, f"an expired record still counted: attempt {new.attempt}")


@CHECKS.of(13)
async def _operations_of_a_batch_are_independent(trial: Trial) -> None:
    held, done, *free = [trial.key() for _ in range(22)]
    await trial.dedup.claim(held, fingerprint="a")
    await (await trial.dedup.claim(done)).complete("done")
    keys = [*free[:10], held, done, *free[10:]]
    claims = await trial.dedup.claim_many(keys, fingerprints=["b"] * len(keys))
    due = {held: Outcome.MISMATCH, done: Outcome.SUCCEEDED}
    for key, claim in zip(keys, claims, strict=True):
        wanted = due.get(key, Outcome.ACQUIRED)
        expect(claim.outcome is wanted, f"a key got {claim.outcome.value} instead of {wanted.value}")
    owners = [claim.owner for claim in claims if claim.acquired]
    expect(len(set(owners)) == len(owners), "two keys of a batch got one owner")
    with suppress(NotImplementedError):  # a store without tokens has no operation that a record refuses
        await _a_bad_key_fails_alone(trial)


async def _a_bad_key_fails_alone(trial: Trial) -> None:
    """Issue tokens together; another issuer's record stands at one of their keys."""
    wires = [trial.token_wire() for _ in range(9)]
    await _issued(trial, wires[4], "another")
    answers = await asyncio.gather(*(_issued(trial, wire, "me") for wire in wires))
    due = [Code.OK] * 4 + [Code.FOREIGN] + [Code.OK] * 4
    expect(answers == due, f"a batch with one key that is taken was answered {answers}")


@CHECKS.of(14)
async def _a_freed_key_is_reported(trial: Trial) -> None:
    holder, waiter = trial.gates[0], trial.gates[-1]
    key = trial.key()
    claim = await holder.claim(key, lease=30.0)
    waiting = asyncio.create_task(waiter.claim(key, wait=PATIENCE))

    async def waits() -> bool:
        return probe(waiter).waiting > 0

    await trial.until(waits, "a claim with `wait=` did not wait for the owner")
    freed = monotonic()
    await claim.release()
    found, late = (await waiting).outcome, monotonic() - freed
    expect(found is Outcome.ACQUIRED, f"after the release a waiter got {found.value}")
    expect(late < PATIENCE / 2, f"a waiter learned of the release only after {late:.1f} s")


@CHECKS.of(15)
async def _a_record_made_elsewhere_is_adopted(trial: Trial) -> None:
    key = trial.key()
    claim = await trial.dedup.claim(key)
    wire, _ = claim.settlement.held_key
    await trial.dedup.forget(key)
    ours = _elsewhere("ours", claim.fence + 1, b'"ours"')
    adopted = await trial.dedup.gate.run(AdoptOp(wire, ours, None))
    expect(isinstance(adopted, Adopted) and adopted.code is Code.OK, "a free key adopted no record")
    found = await trial.dedup.claim(key)
    expect(found.outcome is Outcome.SUCCEEDED and found.result == "ours", "the adopted result was not found")
    await _a_record_that_outranks_stays(trial)


async def _a_record_that_outranks_stays(trial: Trial) -> None:
    """A success outranks all but another success; a record that is free to claim gives way to any other."""
    for theirs, ours, due in (
        ("succeeded", "S", Code.THEIRS_STANDS),
        ("in progress", "P", Code.THEIRS_STANDS),
        ("in progress", "S", Code.OURS_STANDS),
        ("failed", "S", Code.OURS_STANDS),
        ("released", "P", Code.OK),
        ("ended", "S", Code.OK),
    ):
        key = trial.key()
        claim = await trial.dedup.claim(key, owner="theirs", lease=LEASE if theirs == "ended" else None)
        await trial.end(claim, key, theirs, "theirs")
        wire, _ = claim.settlement.held_key
        record = _elsewhere("ours", claim.fence + 1, b'"ours"' if ours == "S" else b"", ours)
        reply = await trial.dedup.gate.run(AdoptOp(wire, record, None))
        said = f"a record {ours!r} from elsewhere, for a key that is {theirs},"
        expect(isinstance(reply, Adopted) and reply.code is due, f"{said} was not answered {due.name}")
        assert isinstance(reply, Adopted)
        named = (reply.owner, reply.fence) == (owner_field("theirs"), claim.fence)
        expect(named, f"the reply to {said} does not name the record that it met")
        found = await trial.dedup.get(key)
        owner = "theirs" if due is Code.THEIRS_STANDS else "ours"
        expect(found is not None and found.owner == owner, f"after {said} the key is not that of {owner}")


def _elsewhere(owner: str, fence: int, payload: bytes, state: str = "S") -> Stored:
    """Return a record that was made during an outage: "S", of a success, or "P", of work that goes on."""
    left = int(KEEP * 1000)
    return Stored(
        state,
        owner=owner_field(owner),
        fence=fence,
        attempt=1,
        left_ms=left,
        ttl_ms=left,
        fingerprint=None,
        payload=payload,
    )
