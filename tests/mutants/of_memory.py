"""Mutants of the memory store."""

from __future__ import annotations

from .mutant import Mutant

MEMORY = {
    "fastdedup/stores/memory.py": [
        Mutant(
            "The store's fence falls if a key is taken over after the clock was set back.",
            "self._fence = max(self._fence + 1, now * 1000 + self._offset + self._lead_us)",
            "self._fence = max(self._fence + 1 if former is None else 0, now * 1000 + self._offset + self._lead_us)",
            test="tests/unit/test_memory_store.py::test_to_take_one_key_over_lowers_no_other_keys_fence",
        ),
        Mutant(
            "An owner that redeemed a token and consumes it is told so, and the token is not used up.",
            "            if held:\n",
            "            if False:\n",
        ),
        Mutant("Another owner gets a claim that is held.", "if not held:", "if not held or not own:"),
        Mutant(
            "The next owner's fence is not higher.",
            "else max(self._fence, former.fence + 1)",
            "else former.fence",
        ),
        Mutant(
            "The next owner's attempt is not counted.",
            "min(former.attempt + 1, _MAX_ATTEMPT)",
            "former.attempt",
        ),
        Mutant(
            "The next owner of a key drops the fingerprint.",
            "op.fingerprint or former.fingerprint",
            "op.fingerprint",
        ),
        Mutant(
            "A token that is consumed can be used again once its lease is over.",
            'entry = Entry("S" if consume else "P", op.owner',
            'entry = Entry("P", op.owner',
        ),
        Mutant(
            "A token can be used after its time.",
            "self._put(op.wire, entry, self._from + op.ttl_ms)",
            "self._put(op.wire, entry, self._from + 2 * op.ttl_ms)",
        ),
        Mutant(
            "A token that is taken over is no token any more.",
            "            entry.token = former.token\n",
            "",
        ),
        Mutant(
            "A lease starts at the beginning of its millisecond, so it is too short.",
            "self._from = -(-now_us // 1000)",
            "self._from = now",
        ),
        Mutant(
            "An owner that claims its key again, for less, shortens its lease.",
            "max(entry.until, self._from + op.terms.lease_ms)",
            "self._from + op.terms.lease_ms",
        ),
        Mutant(
            "The repetition of a settling is told that the claim is lost.",
            "if says(entry, state, op.payload):\n            return Code.OK",
            "if says(entry, state, op.payload):\n            return Code.LOST",
        ),
        Mutant(
            "The repetition of a release is told that the claim is lost.",
            'if entry.state in "RI":\n            return Code.OK',
            'if entry.state in "RI":\n            return Code.LOST',
        ),
        Mutant(
            "A token that was redeemed and completed is issued again by the release of a use.",
            'entry.state == "S" and entry.token and not entry.payload\n',
            'entry.state == "S" and entry.token\n',
        ),
        Mutant(
            "A release keeps the fingerprint, so another request is a mismatch.",
            "            entry.fingerprint = None\n",
            "            pass\n",
        ),
        Mutant(
            "What was settled or released is renewed.",
            "return entry if entry is not None and entry.state in LIVE else None",
            "return entry",
        ),
        Mutant(
            "A renewal undoes a touch.",
            "self.keep(wire, entry, max(entry.expires, self._from + keep_ms))",
            "self.keep(wire, entry, self._from + keep_ms)",
        ),
        Mutant("A settling or a release wakes no waiter.", "        if watched:\n", "        if False:\n"),
        Mutant(
            "The repetition of a transition moves the machine again.",
            "if entry is not None and entry.owner == op.change:",
            "if False:",
        ),
        Mutant("A machine moves from any state.", "if state not in op.sources:", "if False:"),
        Mutant(
            "A completion is not remembered by its ledger.",
            "code = self.ledgers.apply(FirstOp(place.bucket, place.entry, place.terms), now)",
            "code = Code.OK",
        ),
        Mutant(
            "The fence of a free key falls after an outage.",
            "max(ours.fence, former.fence) if free else ours.fence",
            "ours.fence",
        ),
    ],
    "fastdedup/stores/entry.py": [
        Mutant("A claim is settled by a fence that is over.", " and op.fence in (0, entry.fence)\n", "\n"),
        Mutant("A claim is settled by any owner.", "entry.owner == op.owner and op.fence", "op.fence"),
        Mutant(
            "A result is replayed to a claim with another fingerprint.",
            "return bool(fingerprint and entry.fingerprint and fingerprint != entry.fingerprint)",
            "return False",
        ),
        Mutant("A lease is over a millisecond late.", "entry.until > now\n", "entry.until >= now\n"),
        Mutant(
            "A token that was used in the store and here counts as two uses.",
            "return _is_consumed(former) and _is_consumed(ours)",
            "return False",
        ),
        Mutant(
            "An owner that gave way in an outage keeps the key in the store.",
            "if same or base == (former.owner, former.fence):",
            "if same:",
        ),
        Mutant(
            "A success of an outage does not replace another owner's failure.",
            '(Code.OURS_STANDS, True) if success and former.state == "F" else (Code.THEIRS_STANDS, False)',
            "(Code.THEIRS_STANDS, False)",
        ),
    ],
    "fastdedup/ledger/memory.py": [
        Mutant(
            "An id is forgotten before its window is over.", "order[0][0] < now_ms", "order[0][0] <= now_ms"
        ),
        Mutant(
            "An id is a duplicate although its call may still be taken back.",
            "return Code.PENDING if pending else Code.ALREADY",
            "return Code.ALREADY",
        ),
        Mutant(
            "The repetition of a first call for an id is a duplicate of itself.",
            "            if same_call(former, nonce):\n",
            "            if False:\n",
        ),
        Mutant(
            "What one call has remembered is removed for another call.",
            "        if len(entry) > width and not same_call(held[1], entry[width:]):\n",
            "        if False:\n",
        ),
    ],
}
