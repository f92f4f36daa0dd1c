"""Mutants of the engine, and of orphans."""

from __future__ import annotations

from .mutant import Mutant

ENGINE = {
    "fastdedup/kernel/orphans.py": [
        Mutant(
            "A cancelled claim releases what another call of the same named owner has got.",
            "return not op.named or named.let_go(op, reply)",
            "return True",
            "named_again",
        ),
        Mutant(
            "A list that ends early keeps a key whose first reply was lost: it seems to be an earlier claim's.",
            "return not op.named or named.let_go(op, reply)",
            "return named.let_go(op, reply)",
            "claim_many",
        ),
    ],
    "fastdedup/kernel/named.py": [
        Mutant(
            "A call that is given up releases what another call of its name was told of.",
            "if noted.calls or not noted.ours:",
            "if not noted.ours:",
            "named_hedge",
        ),
    ],
    "fastdedup/kernel/engine.py": [
        Mutant(
            "A claim is freed although its client has asked for it again by its owner's name.",
            "            self._orphans.leave_to_owner(op)\n",
            "",
            "asked_again_by_name",
        ),
        Mutant(
            "A claim that got no answer is forgotten, and may hold its key for nobody.",
            "self._note_orphan(cast(ClaimOp, op), sent=sent)",
            "pass",
            "claim_and_complete",
        ),
        Mutant(
            "A claim that follows a cancelled claim waits for that one's lease.",
            "            self._promote(op)\n        followers, op.followers = op.followers, None",
            "            pass\n        followers, op.followers = op.followers, None",
            "twins",
        ),
        Mutant(
            "A claim that follows another claim gets the key as well.",
            "answer = reply_to_follower(reply, op.owner)",
            "answer = reply",
            "twins",
        ),
        Mutant(
            "A claim that follows a failed claim waits for ever.",
            "            give_error(self._loop, follower, copy_of(error))",
            "            pass",
            "twins",
        ),
        Mutant(
            "Later claims follow a claim that has failed, and wait for ever.",
            "        self._forget_claim(claim)\n        followers, claim.followers = claim.followers, None",
            "        followers, claim.followers = claim.followers, None",
            "claim_and_complete",
        ),
        Mutant(
            "A claim whose caller was cancelled as the answer came is not released.",
            "self._free_orphan(op, future.result())",
            "pass",
            "claim_and_complete",
        ),
        Mutant(
            "The second copy of a claim that was sent twice is not watched.",
            "self._orphans.watch(claim)",
            "pass",
            "claim_and_complete",
        ),
        Mutant(
            "A batch that gets no answer is never given up.",
            "self._batches.give_up(before)",
            "pass",
            "claim_and_complete",
        ),
        Mutant(
            "Failures count towards the breaker although answers came between them.",
            "                self._health.answered()\n",
            "                pass\n",
            "breaker",
        ),
        Mutant(
            "The breaker never opens.",
            "            self._health.failed(error)\n",
            "            pass\n",
            "breaker",
        ),
        Mutant(
            "Everything is refused although the breaker has closed.",
            "0 if reason or self._closed else self._max_pending",
            "0",
            "claim_and_complete",
        ),
    ],
    "fastdedup/kernel/breaker.py": [
        Mutant(
            "An open breaker never closes.",
            "        self.state = BreakerState.CLOSED\n        self.failed_in_a_row = 0\n        return True",
            "        return True",
            "breaker",
        ),
    ],
    "fastdedup/kernel/health.py": [
        Mutant(
            "The store is not probed while the breaker is open.",
            "            self._probe_later()\n            self._on_change(self._breaker.reason, 0.0)",
            "            self._on_change(self._breaker.reason, 0.0)",
            "claim_and_complete",
        ),
    ],
}
UNDO = {
    "fastdedup/core/orphans.py": [
        Mutant(
            "What is freed later may be another acquisition of the same name.",
            " or self.fence not in (0, found.fence):",
            ":",
            "released_by_name",
        ),
        Mutant(
            "A claim is not released if its caller was cancelled before the answer came.",
            "send(release).add_done_callback(partial(self._note_released, op, fence if told else 0))",
            "pass",
            "claim_and_complete",
        ),
        Mutant(
            "A cancelled claim whose release got no answer is forgotten.",
            "            self.add(op, fence if asked else 0, asked=asked)\n",
            "            pass\n",
            "claim_and_complete",
        ),
        Mutant(
            "A cancelled claim that was sent twice counts as released, although the first copy may come late.",
            ' or hasattr(op, "resent"):',
            ":",
            "claim_and_complete",
        ),
        Mutant(
            "A cancelled use of a token is released as if it was a claim.",
            "op.owner, fence, consumed=op.terms.consumes)",
            "op.owner, fence)",
            "consume",
        ),
        Mutant(
            "A key under which nothing is found is not looked at again.",
            "if self._closed or orphan.looks + 1 >= _LOOKS:",
            "if True:",
            "claim_and_complete",
        ),
        Mutant(
            "What was taken back is not watched, although a copy may come late.",
            "if not self._closed and orphan.may_come_late(held_key[1]):",
            "if False:",
            "alone",
        ),
        Mutant(
            "The key of a claim that was sent twice is not watched after its release.",
            "if self._closed or op.named or not is_drawn(op.owner):",
            "if True:",
            "released_anew",
        ),
        Mutant(
            "A claim is taken back although its owner has asked again, and was told that it has it.",
            "orphan = self._orphans.pop(held_key, None) if self._orphans else None",
            "orphan = self._orphans.get(held_key) if self._orphans else None",
            "local_lru_alone",
        ),
        Mutant(
            "What a waiter's lost look has taken is not taken back at its end.",
            "            if orphan is not None:\n                self.put",
            "            if False:\n                self.put",
            "lock",
        ),
        Mutant(
            "A claim is not taken back.",
            "if not asked and (op.named or not is_drawn(op.owner)):",
            "if not asked:",
            "claim_and_complete",
        ),
        Mutant(
            "A use of a token is not taken back.",
            'if found.state not in "PW" and not (self.consumed and found.state == "S"):',
            'if found.state not in "PW":',
            "consume",
        ),
        Mutant(
            "A use of a token is taken back by the release of a claim.",
            "fence, consumed=self.consumed)",
            "fence)",
            "consume",
        ),
        Mutant(
            "What the store does not answer for is taken for done.",
            "                self._orphans.move_to_end(held_key)\n",
            "                del self._orphans[held_key]\n",
            "claim_and_complete",
        ),
        Mutant(
            "A release without an answer is taken for done.",
            "                self._orphans[held_key] = orphan_then  # to the end\n",
            "                pass\n",
            "release_and_claim",
        ),
        Mutant(
            "After a look that did not free all, no further look follows.",
            "        if self._orphans and not self._closed:\n            self._try_later()\n\n    def _due",
            "\n    def _due",
            "claim_and_complete",
        ),
        Mutant(
            "A late copy of a claim whose release was not answered stays, because it has another fence.",
            "        if self.resent:\n            self.fence = 0\n",
            "",
            "released_anew",
        ),
        Mutant(
            "A failed use or first call is told before it is taken back.",
            "while any(map(self._is_unasked, held_keys)):",
            "while False:",
            "failed_use",
        ),
    ],
    "fastdedup/ledger/orphan_ids.py": [
        Mutant(
            "An id that a failed call has remembered is not taken back.",
            "        self._orphans.put((op.wire, op.entry), OrphanId(op))\n",
            "",
            "first",
        ),
        Mutant(
            "A call for an id does not take the place of a failed call for it.",
            "is None and not named:",
            "is None and False:",
            "first_again",
        ),
        Mutant(
            "A call for an id takes the place of a failed call that the store was asked to remove.",
            "if not orphan.is_removing:",
            "if True:",
            "first",
        ),
        Mutant(
            "An id that was taken back is not watched, although a copy may come late.",
            'another call has another nonce."""\n        return True',
            'another call has another nonce."""\n        return False',
            "failed_first",
        ),
    ],
}
