"""Claims whose success a ledger remembers, in `LocalLRU`: a record comes into the store after its id is settled."""

from __future__ import annotations

import pytest

from fastdedup import Outcome, UnavailableError
from fastdedup.events import Conflict, Unreplayed
from fastdedup.kernel.codes import Code
from fastdedup.kernel.operations import AdoptOp, ClaimOp, ReleaseOp, SettleOp, Verdict
from fastdedup.kernel.owners import owner_field
from fastdedup.kernel.replies import Adopted, StoredForm
from fastdedup.kernel.terms import Mode, terms
from fastdedup.ledger.ids import record_wire
from fastdedup.ledger.operations import (
    FirstOp,
    ForgetIdOp,
    LedgerOp,
    LedgerPlace,
    SeenOp,
)

from .test_local_ids import DOWN, THEIRS, WIRE, Policy

TERMS = terms(Mode.CLAIM, 1000, 5000, False, True)


def claiming(policy: Policy, owner: str = "me") -> ClaimOp:
    place = LedgerPlace(*policy.ledger.addresses.find(b"k"), policy.ledger.terms, b"k")
    op = ClaimOp(record_wire(place.bucket, b"shop:=k", "shop"), TERMS, owner_field(owner), None, place)
    op.key = "k"
    return op


def claimed(policy: Policy, owner: str = "me") -> tuple[ClaimOp, Verdict]:
    op = claiming(policy, owner)
    reply = policy.answer(op, DOWN)
    assert isinstance(reply, Verdict)
    return op, reply


def completing(op: ClaimOp, verdict: Verdict, payload: bytes = b"1") -> SettleOp:
    return op.completion(verdict.fence, 60_000, payload)


def reads_the_form(policy: Policy) -> None:
    ops = policy.next_operations(100)
    assert [type(op) for op in ops] == [LedgerOp]
    policy.adopted(ops[0], StoredForm(policy.form.text(), 0))


async def test_the_ledger_is_asked_before_the_record_is_sent() -> None:
    policy = Policy()
    _, won = claimed(policy)
    assert (won.outcome, won.degraded) == (Outcome.ACQUIRED, True)
    reads_the_form(policy)
    (look,) = policy.next_operations(100)
    assert isinstance(look, SeenOp)
    assert policy.next_operations(100) == []
    assert policy.put_back(look, asked=True) is None
    (look,) = policy.next_operations(100)
    assert policy.adopted(look, Code.ABSENT) is None
    (record,) = policy.next_operations(100)
    assert isinstance(record, AdoptOp)
    policy.adopted(record, Adopted(Code.OK, b"", 0))
    assert policy.lines == policy.records.reserved == 0


async def test_what_is_completed_while_the_ledger_is_asked_is_remembered() -> None:
    policy = Policy()
    op, won = claimed(policy)
    reads_the_form(policy)
    (look,) = policy.next_operations(100)
    assert policy.answer(completing(op, won), DOWN) is Code.OK
    assert policy.adopted(look, Code.ABSENT) is None
    (first,) = policy.next_operations(100)
    assert isinstance(first, FirstOp)
    assert policy.adopted(first, Code.OK) is None
    (record,) = policy.next_operations(100)
    assert isinstance(record, AdoptOp)
    assert (record.record.state, record.record.ttl_ms) == ("S", 60_000)
    policy.adopted(record, Adopted(Code.OK, b"", 0))
    assert policy.lines == policy.records.reserved == 0
    policy.now += 61
    assert policy.records.holds(op.wire) is False


@pytest.mark.parametrize("sent", [True, False], ids=["its reply was lost", "never sent"])
async def test_an_id_that_the_store_knows_is_a_conflict_unless_it_is_ours(sent: bool) -> None:
    policy = Policy()
    op, won = claimed(policy)
    settling = completing(op, won)
    if sent:
        settling.at = 1.0
    assert policy.answer(settling, DOWN) is Code.OK
    policy.now += 80  # the echo is over
    assert claimed(policy, "you")[1].outcome is Outcome.SUCCEEDED
    reads_the_form(policy)
    (first,) = policy.next_operations(100)
    event = policy.adopted(first, Code.ALREADY)
    if sent:
        assert event is None
        assert [type(each) for each in policy.next_operations(100)] == [AdoptOp]
    else:
        assert event == Conflict("shop", "k", "me", "", "theirs")
        assert policy.lines == policy.records.reserved == 0


async def test_an_id_that_is_forgotten_here_is_new_when_the_echo_ends() -> None:
    policy = Policy()
    op, won = claimed(policy)
    assert policy.answer(completing(op, won), DOWN) is Code.OK
    forget = ForgetIdOp(*policy.ledger.addresses.find(b"k"), policy.ledger.terms, b"k")
    assert policy.answer(forget, DOWN) is Code.OK
    assert claimed(policy, "you")[1].outcome is Outcome.SUCCEEDED
    policy.now += 61
    assert not policy.holds(op.wire)
    _, again = claimed(policy, "you")
    assert (again.outcome, again.attempt) == (Outcome.ACQUIRED, 1)


async def test_an_id_that_a_call_takes_back_is_still_asked_for() -> None:
    """The call's own id is not remembered any more, and the record waits for the ledger's answer all the same."""
    policy = Policy()
    claimed(policy)
    first = policy.first(b"k", THEIRS)
    assert policy.answer(first, DOWN) is Code.OK
    policy.took_back(first)
    reads_the_form(policy)
    assert [type(op) for op in policy.next_operations(100)] == [SeenOp]


async def test_an_owner_that_gets_its_claim_back_makes_no_id_new() -> None:
    """The store did not look whether the id is known: a call of this process was told that it is the first."""
    policy = Policy()
    op = claiming(policy)
    policy.saw(op, Verdict(Outcome.ACQUIRED, fence=1, attempt=1, left_ms=1000))
    policy.told(b"k", Code.OK)
    policy.saw(op, Verdict(Outcome.ACQUIRED, fence=1, attempt=1, left_ms=1000, fresh=False))
    assert policy.answer(policy.first(b"k", THEIRS), DOWN) is Code.ALREADY


async def test_what_is_free_here_and_known_is_done_without_a_line() -> None:
    """Also in a policy that has no room for one."""
    policy = Policy(maxsize=2)
    op, won = claimed(policy)
    assert policy.answer(ReleaseOp(op.wire, op.owner, won.fence), DOWN) is Code.OK
    assert policy.answer(policy.first(b"k"), DOWN) is Code.OK
    lines = policy.lines
    _, again = claimed(policy, "you")
    assert (again.outcome, again.attempt, again.degraded) == (Outcome.SUCCEEDED, 0, True)
    assert policy.lines == lines


async def test_a_record_that_ends_leaves_nothing_behind() -> None:
    policy = Policy()
    op, won = claimed(policy)
    assert policy.answer(ReleaseOp(op.wire, op.owner, won.fence), DOWN) is Code.OK
    policy.now += 10
    assert policy.next_operations(100) == []
    assert policy.lines == policy.records.reserved == 0


async def test_a_full_policy_refuses_and_keeps_nothing() -> None:
    policy = Policy(maxsize=1)
    assert policy.answer(policy.first(b"other"), DOWN) is Code.OK
    with pytest.raises(UnavailableError, match="full"):
        claimed(policy)
    assert policy.lines == 1
    assert not policy.holds(claiming(policy).wire)


async def test_a_ledger_that_cannot_be_read_frees_its_records() -> None:
    policy = Policy()
    op, won = claimed(policy)
    assert policy.answer(completing(op, won), DOWN) is Code.OK
    (form,) = policy.next_operations(100)
    lost = policy.adopted(form, Code.FOREIGN)
    assert isinstance(lost, Unreplayed)
    assert lost.key == "orders"
    assert [type(each) for each in policy.next_operations(100)] == [AdoptOp]


async def test_an_unknown_form_or_id_is_asked_for_again() -> None:
    policy = Policy()
    op = claiming(policy)
    place = op.unless
    assert isinstance(place, LedgerPlace)
    bucket, digest = policy.ledger.addresses.find(b"another")
    op.unless = place._replace(bucket=bucket, digest=digest)
    assert policy.answer(op, DOWN) is Code.STALE
    op.unless = place._replace(id=b"")
    with pytest.raises(UnavailableError, match="down"):
        policy.answer(op, DOWN)
    assert WIRE in policy.ids.ledgers


async def test_a_completion_goes_to_the_store_even_if_a_policy_has_its_id() -> None:
    """The policy's answer would be in this process's memory alone, although the store is back."""
    policy = Policy()
    op, won = claimed(policy)
    assert isinstance(op.of_id(), SeenOp)
    assert completing(op, won).of_id() is None
