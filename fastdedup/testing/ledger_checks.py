"""The checks of guarantees 16 to 20: ledgers, and claims whose success a ledger remembers."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Final

from ..kernel.codes import Code
from ..kernel.operations import Op, Reply
from ..kernel.owners import owner_field
from ..ledger.client import Ledger, MakesOp
from ..ledger.ids import MAX_PATIENCE, TICK_MS, nonce_of
from ..ledger.operations import FirstOp, ForgetIdOp
from ..model import Outcome
from .trial import KEEP, LEASE, WINDOW, Checks, Trial, expect

CHECKS: Final = Checks()


@CHECKS.of(16)
async def _one_call_for_an_id_is_the_first(trial: Trial) -> None:
    ledger = trial.ledger(KEEP)
    answers = await asyncio.gather(*(ledger.first("id") for _ in range(50)))
    expect(sum(answers) == 1, f"of {len(answers)} concurrent calls {sum(answers)} were the first")
    await ledger.forget("id")


@CHECKS.of(17)
async def _the_same_call_gets_the_same_answer(trial: Trial) -> None:
    ledger = trial.ledger(KEEP)
    answers = [await ledger.first("id", owner=owner) for owner in ("me", "me", "you", "me")]
    expect(answers == [True, True, False, True], f"me, me, you, me were answered {answers}")

    async def asked(patience: int) -> Reply:
        return await trial.dedup.gate.run(
            _id_op(FirstOp, ledger, "id", nonce_of(owner_field("you"), patience))
        )

    for patience, due in ((0, Code.ALREADY), (MAX_PATIENCE, Code.PENDING)):
        found = await asked(patience)
        expect(found is due, f"another call, with a patience of {patience} ticks, was answered {found!r}")

    async def impatient() -> bool:
        return await asked(1) is Code.ALREADY

    await trial.until(impatient, f"another call, with a patience of {TICK_MS} ms, still had to wait")
    await ledger.forget("id")


def _id_op(make: MakesOp, ledger: Ledger, id: str, nonce: bytes) -> Op:
    """Return an operation on a ledger's id, by the call that has this nonce."""
    view = ledger.view
    assert view is not None, "the ledger was not used yet"
    return make(*view.addresses.entry(ledger.bytes_of(id), nonce), view.terms, b"")


@CHECKS.of(18)
async def _an_id_is_remembered_for_the_window(trial: Trial) -> None:
    ledger = trial.ledger()
    began = monotonic()
    expect(await ledger.first("id"), "a new id was not the first")
    remembered = asked = monotonic()
    while not await ledger.first("id"):
        # The answer is younger than the question, and the id is older than the first answer.
        expect(asked <= remembered + WINDOW * 1.01, f"an id was still known after {asked - remembered:.3f} s")
        await asyncio.sleep(LEASE / 20)
        asked = monotonic()
    after = monotonic() - began
    expect(after >= WINDOW, f"an id was new again after {after:.2f} of {WINDOW:g} s")


@CHECKS.of(19)
async def _forget_removes_an_id_for_all_calls(trial: Trial) -> None:
    ledger = trial.ledger(KEEP)
    await ledger.first("id", owner="me")

    async def undone_by(owner: str) -> Reply:
        return await trial.dedup.gate.run(_id_op(ForgetIdOp, ledger, "id", nonce_of(owner_field(owner))))

    expect(await undone_by("you") is Code.ABSENT, "a call undid what another call had remembered")
    expect(await ledger.seen("id"), "a call undid what another call had remembered")
    expect(await undone_by("me") is Code.OK, "a call could not undo what it had remembered")
    expect(not await ledger.seen("id"), "an id was remembered after its call had undone it")
    await ledger.first("id", owner="me")
    expect(await ledger.forget("id"), "forget() did not find the id")
    expect(await ledger.first("id", owner="you"), "after forget() the id was not new")
    await ledger.forget("id")


@CHECKS.of(20)
async def _a_ledger_remembers_a_claims_success(trial: Trial) -> None:
    ledger = trial.ledger(KEEP)
    key = trial.beside(ledger)
    claim = await trial.dedup.claim(key, remember=ledger)
    expect(claim.acquired, f"a new key got {claim.outcome.value}")
    expect(not await ledger.seen(key), "the ledger knew a key that was not done")
    await claim.complete(1)
    expect(await ledger.seen(key), "after the completion the ledger did not know the key")
    again = await trial.dedup.claim(key, remember=ledger)
    expect(again.outcome is Outcome.SUCCEEDED, f"a key that was done got {again.outcome.value}")
    released = trial.beside(ledger)
    await (await trial.dedup.claim(released, remember=ledger)).release()
    await ledger.first(released)
    found = (await trial.dedup.claim(released, remember=ledger)).outcome
    expect(found is Outcome.SUCCEEDED, f"a released key that the ledger knows got {found.value}")
    brief = trial.beside(ledger)
    await _the_ledger_alone_knows_it(trial, ledger, brief)
    for each in (key, released, brief):
        await ledger.forget(each)


async def _the_ledger_alone_knows_it(trial: Trial, ledger: Ledger, key: str) -> None:
    """Complete a claim whose record ends at once, not after a while, and claim the key again."""
    claim = await trial.dedup.claim(key, remember=ledger)
    completion = claim.settlement.op.completion(claim.fence, int(LEASE * 1000), b"1")
    expect(await trial.dedup.gate.run(completion) is Code.OK, "a claim could not be completed")

    async def gone() -> bool:
        return await ledger.record_of(key) is None

    await trial.until(gone, "the record of a success was still there")
    found = (await trial.dedup.claim(key, remember=ledger)).outcome
    expect(found is Outcome.SUCCEEDED, f"a key that only the ledger knows got {found.value}")
