"""Claims whose success a ledger remembers, for `LocalLRU`: a record and an id, which are changed together."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any, cast

from ..errors import UnavailableError
from ..kernel.codes import Code
from ..kernel.operations import ClaimOp, Op, Reply, SettleOp, Verdict, was_accepted
from ..kernel.records import Holding
from ..ledger.ids import NONCE_BYTES, without_patience
from ..ledger.operations import ECHO_MS, FirstOp, LedgerPlace, without_ledger
from ..model import Outcome
from ..stores.entry import LIVE, SETTLED, is_free, is_of
from ..stores.memory import MemoryStore
from .journal import Journal
from .local_ids import LocalIds

ClaimOrSettleOp = ClaimOp | SettleOp
AnswerRecord = Callable[[Op, UnavailableError, Callable[[Any], Reply]], Reply]
"""Answers from a key's record, which the last argument changes; notes the change in the journal.

Returns the reply, or raises the error if only the store can know it."""


class RememberedClaims:
    """Answers for claims whose success a ledger remembers.

    Args:
        records: the records of the policy.
        journal: its journal.
        ids: its ids.
    """

    def __init__(self, records: MemoryStore, journal: Journal, ids: LocalIds) -> None:
        self._records = records
        self._journal = journal
        self._ids = ids

    def answer(
        self, op: ClaimOrSettleOp, place: LedgerPlace, error: UnavailableError, answer_record: AnswerRecord
    ) -> Reply:
        """Answer from memory, or raise `error` if only the store can know the answer. `place`: of the id."""
        if not place.id:
            raise error  # another program made the record, without the id
        now = self._records.now()
        if not self._ids.finds(place):
            return Code.STALE  # its caller reads the form, and retries
        if isinstance(op, SettleOp):
            return answer_record(op, error, self._complete)
        entry = self._records.entry(op.wire)
        if self._ids.is_done(place) and is_free(entry, op.fingerprint, now):
            return Verdict(Outcome.SUCCEEDED, degraded=True)
        if entry is not None and entry.state in SETTLED:
            return answer_record(op, error, self._apply_alone)
        line, is_new = self._ids.will_look(place.seen())  # before the claim: it needs room
        try:
            reply = answer_record(op, error, self._apply_alone)
            if type(reply) is Verdict and reply.outcome is Outcome.ACQUIRED:
                line.let_wait(op.wire)
            return reply
        finally:
            if is_new and not line.records:
                self._journal.strike(line.wire)

    def saw(self, place: LedgerPlace, reply: Reply) -> None:
        """Note from the store's reply whether the claim's id is done."""
        if type(reply) is Verdict:
            done = reply.outcome is Outcome.SUCCEEDED
            # If an owner gets its own claim back, the id's state is unknown: a call of `first` may know it.
            if done or (reply.outcome is Outcome.ACQUIRED and reply.fresh):
                self._ids.saw(place.seen(), Code.ALREADY if done else Code.ABSENT)
        elif reply is Code.OK or reply is Code.UNCONFIRMED:
            self._ids.saw_completion(place)

    def _apply_alone(self, op: ClaimOrSettleOp) -> Reply:
        return self._records.apply(without_ledger(op))

    def _complete(self, op: SettleOp) -> Reply:
        """Settle a claim, and remember its id. The record stays as long as the id, so that conflicts are found."""
        entry, place = self._records.entry(op.wire), cast(LedgerPlace, op.also)
        if entry is None or entry.state not in LIVE or not is_of(entry, op):
            return self._apply_alone(op)
        # Not the nonce of the store's completions, because two processes that did the work would then count as one.
        nonce = without_patience(blake2b(op.owner + b"%d" % entry.fence, digest_size=NONCE_BYTES).digest())
        first = FirstOp(place.bucket, place.digest + nonce, place.terms, place.id)
        self._ids.answer(first, UnavailableError("the id is not known"))
        try:
            code = self._apply_alone(op)
        except UnavailableError:  # no room for the result
            self._ids.took_back(first)
            raise
        self._journal.note(op.wire, place.id.decode(), Holding(entry.owner, entry.fence))
        self._records.keep(op.wire, entry, self._records.now() + place.terms.window_ms)
        self._journal.lines[op.wire].echo_ms = min(op.keep_ms, ECHO_MS)
        self._ids.share(first, op.wire, was_accepted=was_accepted(op))
        return code
