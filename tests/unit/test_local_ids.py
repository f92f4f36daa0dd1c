"""What `LocalLRU` knows of ids: never longer than the store can have them."""

from __future__ import annotations

import asyncio

import pytest

from fastdedup import LocalLRU, UnavailableError
from fastdedup.events import Conflict, Unreplayed
from fastdedup.fallback.journal import NEW
from fastdedup.kernel.codes import Code
from fastdedup.kernel.operations import AdoptOp, ClaimOp, Reply
from fastdedup.kernel.owners import draw_owner
from fastdedup.kernel.replies import StoredForm
from fastdedup.kernel.terms import Mode, terms
from fastdedup.ledger.forms import DENSE_WIDTH, LedgerForm
from fastdedup.ledger.ids import ledger_wire
from fastdedup.ledger.operations import FirstOp, ForgetIdOp, LedgerOp, LedgerPlace, SeenOp
from fastdedup.model import Outcome

WIRE = ledger_wire("shop", "orders")
DOWN = UnavailableError("the store is down")
MINE, THEIRS = b"mine\0", b"thei\0"


class Policy(LocalLRU):
    """A policy with a clock, and a ledger whose window is 100 seconds."""

    def __init__(self, maxsize: int = 1000) -> None:
        self.now = 1_000_000.0
        super().__init__(maxsize, clock=lambda: self.now)
        self.form = LedgerForm.drawn(capacity=100, width=7, window_ms=100_000)
        self.opens()

    def opens(self) -> None:
        text = self.form.text()
        self.saw(LedgerOp(WIRE, text, 1000), StoredForm(text, 0))
        self.ledger = self.ids.ledgers[WIRE]

    def first(self, id: bytes, nonce: bytes = MINE) -> FirstOp:
        bucket, digest = self.ledger.addresses.find(id)
        op = FirstOp(bucket, digest + nonce, self.ledger.terms, id)
        op.future = asyncio.Future()
        return op

    def told(self, id: bytes, reply: Reply) -> None:
        self.saw(self.first(id), reply)

    def seen(self, id: bytes) -> Reply:
        return self.answer(SeenOp(*self.ledger.addresses.find(id), self.ledger.terms, id), DOWN)

    def sends(self, kind: type) -> list[FirstOp]:
        return [op for op in self.next_operations(100) if isinstance(op, kind)]


async def test_what_another_call_could_not_take_back_stays_known() -> None:
    """A sidecar's client takes back its id through it. The store has no entry of its call, but another call's."""
    policy = Policy()
    policy.told(b"id", Code.OK)
    theirs = policy.first(b"id", THEIRS)
    policy.saw(ForgetIdOp(theirs.wire, theirs.entry, theirs.terms, theirs.id), Code.ABSENT)
    assert policy.seen(b"id") is Code.ALREADY
    policy.saw(ForgetIdOp(theirs.wire, theirs.entry, theirs.terms, theirs.id), Code.OK)
    assert policy.seen(b"id") is Code.ABSENT


async def test_an_id_of_another_call_stays_known_without_room_for_more() -> None:
    """Its entry was removed for the store's new one, for which there was no room: it was new in the outage."""
    policy = Policy()
    policy.told(b"id", Code.OK)
    policy.records.reserved = 1 << 30  # as large results take it
    policy.saw(policy.first(b"id", THEIRS), Code.OK)
    assert policy.seen(b"id") is Code.ALREADY
    assert len(policy.records.ledgers) == 1


async def test_a_client_takes_back_through_its_sidecar_in_the_outage_too() -> None:
    """Until the store was back, its id was a duplicate for all others. No call was told to be the first."""
    policy = Policy()
    given_up = policy.first(b"id", THEIRS)
    assert policy.answer(given_up, DOWN) is Code.OK
    for entry, known in ((policy.first(b"id", MINE).entry, Code.ALREADY), (given_up.entry, Code.ABSENT)):
        with pytest.raises(UnavailableError):  # the store is asked, too
            policy.answer(ForgetIdOp(given_up.wire, entry, given_up.terms, given_up.id), DOWN)
        assert policy.seen(b"id") is known
    assert policy.lines == 0


async def test_text_cannot_go_into_a_dense_ledger_of_the_store() -> None:
    """The process created the ledger itself in an outage. Each later call raised ValueError."""
    policy = Policy()
    assert policy.answer(policy.first(b"text"), DOWN) is Code.OK
    dense = LedgerForm.drawn(capacity=100, width=DENSE_WIDTH, window_ms=100_000)
    read, found = LedgerOp(WIRE, b"", 1000), StoredForm(dense.text(), 0)
    policy.saw(read, found)
    event = policy.adopted(read, found)
    assert event == Unreplayed("shop", "orders", "", "the ledger's form cannot be used: 1 ids are lost")
    assert not policy.lines


@pytest.mark.parametrize(
    ("reply", "seconds"), [(Code.OK, 100), (Code.ALREADY, 1)], ids=["first", "duplicate"]
)
async def test_an_id_is_known_while_the_store_has_it(reply: Code, seconds: int) -> None:
    """Of a duplicate the store does not say how old it is, so it is known for a hundredth of the window."""
    policy = Policy()
    policy.told(b"id", reply)
    policy.now += seconds - 0.1
    if reply is Code.OK:
        policy.told(b"id", reply)  # to the same call, asked again
    assert policy.seen(b"id") is Code.ALREADY
    policy.now += 0.2
    assert policy.answer(policy.first(b"id", THEIRS), DOWN) is Code.OK


async def test_what_is_taken_back_is_not_known() -> None:
    """Nobody was told of it: neither of a cancelled call's id, nor of a call's that ends in an error."""
    policy = Policy()
    cancelled = policy.first(b"cancelled")
    cancelled.future.cancel()
    policy.saw(cancelled, Code.OK)
    policy.told(b"failed", Code.OK)
    policy.took_back(policy.first(b"failed", THEIRS))
    assert policy.seen(b"failed") is Code.ALREADY
    policy.took_back(policy.first(b"failed"))
    local = policy.first(b"local")
    assert policy.answer(local, DOWN) is Code.OK
    policy.took_back(local)
    assert [policy.seen(each) for each in (b"cancelled", b"failed", b"local")] == [Code.ABSENT] * 3
    assert policy.lines == policy.records.reserved == 0


def taken(policy: Policy, kind: type) -> FirstOp:
    """Send an id, or the look for it, and let the store have it already."""
    (sent,) = policy.sends(kind)
    assert policy.adopted(sent, Code.ALREADY) is None
    return sent


@pytest.mark.parametrize("reply", [Code.OK, None], ids=["late reply", "no reply"])
async def test_what_the_store_has_for_another_call_here_hides_no_conflict(reply: Code | None) -> None:
    """It is told of a duplicate here, and its entry is removed: if the store has the id then, it is another's."""
    policy = Policy()
    assert policy.answer(policy.first(b"id"), DOWN) is Code.OK
    late = policy.first(b"id", THEIRS)
    late.at = 0.0  # it was sent
    if reply is not None:
        policy.saw(late, reply)
    assert policy.holds_id(late)
    assert policy.answer(late, DOWN) is Code.ALREADY
    policy.opens()
    assert taken(policy, FirstOp).entry.endswith(MINE)
    (removal,) = policy.sends(ForgetIdOp)
    assert removal.entry.endswith(THEIRS)
    assert policy.put_back(removal, asked=True, lane=NEW) is None
    (removal,) = policy.sends(ForgetIdOp)
    assert policy.adopted(removal, Code.OK) is None
    policy.ids.note_orphan(late.wire, late.entry)  # was removed
    (sent,) = policy.sends(FirstOp)
    assert isinstance(policy.adopted(sent, Code.ALREADY), Conflict)
    assert policy.lines == 0


async def test_entries_of_other_calls_are_removed_until_one_was_there() -> None:
    """The id is away from the store for one round trip, however many calls were under way."""
    policy = Policy()
    assert policy.answer(policy.first(b"id"), DOWN) is Code.OK
    for nonce in (b"aaaa\0", b"bbbb\0", b"cccc\0", b"dddd\0"):
        other = policy.first(b"id", nonce)
        other.at = 0.0
        assert policy.answer(other, DOWN) is Code.ALREADY
    policy.opens()
    taken(policy, FirstOp)
    removals = policy.next_operations(3)
    assert [op.entry[-5:] for op in removals] == [b"aaaa\0", b"bbbb\0"]
    assert policy.adopted(removals[0], Code.ABSENT) is None
    assert policy.put_back(removals[1], asked=True, lane=NEW) is None
    removals = policy.next_operations(3)
    assert [op.entry[-5:] for op in removals] == [b"bbbb\0", b"cccc\0"]
    for op, reply in zip(removals, (Code.OK, Code.ABSENT), strict=True):
        assert policy.adopted(op, reply) is None
    (sent,) = policy.sends(FirstOp)
    assert policy.adopted(sent, Code.OK) is None
    assert policy.lines == 0


async def test_a_look_for_an_id_passes_over_a_call_that_ended_in_an_error() -> None:
    policy = Policy()
    failed = policy.first(b"id")
    place = LedgerPlace(failed.wire, failed.place[len(failed.wire) :], policy.ledger.terms, b"id")
    claim = ClaimOp(
        failed.wire + b"=id", terms(Mode.CLAIM, 9000, 9000, False, True), draw_owner(), None, place
    )
    assert policy.answer(claim, DOWN).outcome is Outcome.ACQUIRED
    policy.ids.note_orphan(failed.wire, failed.entry)
    policy.opens()
    taken(policy, SeenOp)
    (removal,) = policy.sends(ForgetIdOp)
    assert policy.adopted(removal, Code.OK) is None
    (look,) = policy.sends(SeenOp)
    assert policy.adopted(look, Code.ABSENT) is None
    assert [type(op) for op in policy.next_operations(100)] == [AdoptOp]


async def test_what_changes_while_it_is_sent_is_sent_again() -> None:
    policy = Policy()
    bucket, digest = policy.ledger.addresses.find(b"id")
    assert policy.answer(policy.first(b"id"), DOWN) is Code.OK
    policy.opens()
    (sent,) = policy.sends(FirstOp)
    assert policy.answer(ForgetIdOp(bucket, digest, policy.ledger.terms, b"id"), DOWN) is Code.OK
    assert policy.answer(policy.first(b"id", THEIRS), DOWN) is Code.OK
    assert policy.adopted(sent, Code.OK) is None
    (removal,) = policy.sends(ForgetIdOp)
    assert policy.adopted(removal, Code.OK) is None
    (sent,) = policy.sends(FirstOp)
    assert sent.entry == digest + THEIRS
    assert policy.adopted(sent, Code.STALE) is None
    (form,) = policy.next_operations(100)
    assert isinstance(form, LedgerOp)
    policy.adopted(form, StoredForm(policy.form.text(), 0))
    (sent,) = policy.sends(FirstOp)
    policy.adopted(sent, Code.OK)
    assert policy.lines == policy.records.reserved == 0
    assert policy.seen(b"id") is Code.ALREADY


@pytest.mark.parametrize(
    ("reply", "reason"), [(Code.FULL, "full"), (Code.FOREIGN, "did not write"), (None, "cannot be used")]
)
async def test_an_id_that_the_store_refuses_is_reported(reply: Code | None, reason: str) -> None:
    policy = Policy()
    assert policy.answer(policy.first(b"id"), DOWN) is Code.OK
    (form,) = policy.next_operations(100)
    if reply is None:
        event = policy.adopted(form, StoredForm(b"newer", 0))
    else:
        policy.adopted(form, StoredForm(policy.form.text(), 0))
        event = policy.adopted(*policy.sends(FirstOp), reply)
    assert reason in event.reason  # type: ignore[union-attr]
    assert policy.lines == policy.records.reserved == 0


async def test_an_id_that_is_over_is_not_sent() -> None:
    policy = Policy()
    op = policy.first(b"id")
    assert policy.answer(op, DOWN) is Code.OK
    policy.now += 101
    assert not policy.holds_id(op)
    assert policy.next_operations(100) == []
    assert policy.lines == policy.records.reserved == 0


async def test_an_id_is_taken_back_by_its_call_whatever_time_that_waits_for_others() -> None:
    """What is interrupted in synchronous code takes its id back by a nonce without patience: it stayed remembered."""
    policy = Policy()
    assert policy.answer(policy.first(b"id", b"mine\x05"), DOWN) is Code.OK
    policy.took_back(policy.first(b"id", THEIRS))
    assert policy.answer(policy.first(b"id", THEIRS), DOWN) is Code.ALREADY
    policy.took_back(policy.first(b"id", MINE))
    assert policy.answer(policy.first(b"id", THEIRS), DOWN) is Code.OK
