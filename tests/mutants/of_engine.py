"""Mutants of the engine, and of the undo list."""

from __future__ import annotations

from .mutant import Mutant

ENGINE = {
    "fastdedup/kernel/unwanted.py": [
        Mutant(
            "A claim is not released if its caller was cancelled before the answer came.",
            "self._submit(release).add_done_callback(partial(self._released, op))",
            "pass",
            "claim_and_complete",
        ),
        Mutant(
            "A cancelled claim whose release got no answer is forgotten.",
            "            self.give_up(op)\n",
            "            pass\n",
            "claim_and_complete",
        ),
        Mutant(
            "A cancelled claim that was sent twice counts as released, although the first copy may come late.",
            ' or hasattr(op, "unsure"):',
            ":",
            "claim_and_complete",
        ),
        Mutant(
            "A cancelled use of a token is released as if it was a claim.",
            "reply.fence, consumed=op.terms.consumes)",
            "reply.fence)",
            "consume",
        ),
        Mutant(
            "A cancelled claim releases what another call of the same named owner has got.",
            "if op.named and (named.others(op) > 0 or not is_first_hand(op, reply)):",
            "if False:",
            "named_again",
        ),
    ],
    "fastdedup/kernel/engine.py": [
        Mutant(
            "A claim that got no answer is forgotten, and may hold its key for nobody.",
            "self._given_up(cast(ClaimOp, op), sent=sent)  # before",
            "pass  # before",
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
            "answer = behind(reply, op.owner)",
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
            "self._unwanted.release(op, future.result(), self.named)",
            "pass",
            "claim_and_complete",
        ),
        Mutant(
            "The second copy of a claim that was sent twice is not watched.",
            'self._unwanted.watch_resent(cast("Sequence[ClaimOp]", ops), outcome)',
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
            "self._max_pending if closed and not self._closed else 0",
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
            "A key under which nothing is found is not looked at again.",
            "if self._closed or given_up.looks + 1 >= _LOOKS:",
            "if True:",
            "claim_and_complete",
        ),
        Mutant(
            "What was taken back is not watched, although a copy may come late.",
            "if not self._closed and not given_up.fence and (given_up.id is not None or is_drawn(holding[1])):",
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
            "given_up = self._given_up.pop(holding, None) if self._given_up else None",
            "given_up = self._given_up.get(holding) if self._given_up else None",
            "local_lru_alone",
        ),
        Mutant(
            "What a waiter's lost look has taken is not taken back at its end.",
            "            if given_up is not None and not self._closed:\n                self._watches",
            "            if False:\n                self._watches",
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
            ' or (given_up.consumed and record.state == "S")',
            "",
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
            "                self._given_up.move_to_end(holding)\n",
            "                del self._given_up[holding]\n",
            "claim_and_complete",
        ),
        Mutant(
            "A release without an answer is taken for done.",
            "                self._given_up[holding] = given_up_then  # to the end\n",
            "                pass\n",
            "release_and_claim",
        ),
        Mutant(
            "After a look that did not free all, no further look follows.",
            "        if self._given_up and not self._closed:\n            self._try_later()\n\n    def _due",
            "\n    def _due",
            "claim_and_complete",
        ),
        Mutant(
            "An id that a failed call has remembered is not taken back.",
            "            self._put((op.wire, op.entry), GivenUp(False, op))\n",
            "",
            "first",
        ),
        Mutant(
            "A call for an id does not take the place of a failed call for it.",
            "is None and not named and self._places:",
            "is None and False:",
            "first_again",
        ),
        Mutant(
            "A call for an id takes the place of a failed call that the store was asked to remove.",
            "if not self._given_up[op.wire, entry].removed:",
            "if True:",
            "first",
        ),
        Mutant(
            "A failed use or first call is told before it is taken back.",
            "while any(map(self._is_unasked, holdings)):",
            "while False:",
            "failed_use",
        ),
    ],
}
