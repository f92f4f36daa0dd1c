"""Mutants of what a caller holds: claims, tokens, waiters, renewals, ledgers."""

from __future__ import annotations

from .mutant import Mutant

CLAIMS = {
    "fastdedup/core/held_claim.py": [
        Mutant(
            "A settling whose first reply was lost is told as a lost claim.",
            "unclear = code == Code.LOST and isinstance(op, ReleaseOp | SettleOp) and op.resent",
            "unclear = False",
            "released_and_taken",
        ),
        Mutant(
            "A lost claim is not watched, although a copy of it may come late.",
            'if hasattr(self.op, "resent"):',
            "if False:",
            "local_lru",
        ),
    ],
    "fastdedup/core/settlement.py": [
        Mutant(
            "An outcome that a cancelled caller has left goes on beside the one that is said anew.",
            "            recording.cancel()\n",
            "            pass\n",
            "failed_anew",
        ),
        Mutant(
            "A completion is not recorded if its caller is cancelled.",
            "self._go_on(_LOSS, lambda: self._finish(how, op, until, traces=False, alone=True))",
            "pass",
            "claim_and_complete",
        ),
        Mutant(
            "A release is not made if its caller is cancelled.",
            "self.gate.connection.free_soon(self.op, self.fence, asked=True)",
            "pass",
            "release_and_claim",
        ),
        Mutant(
            "A failure is not recorded if its caller is cancelled.",
            "                if isinstance(op, SettleOp):\n                    self.settled = None",
            "                if isinstance(op, SettleOp) and op.succeeded:\n                    self.settled = None",
            "failed_anew",
        ),
        Mutant(
            "A completion is not tried again while the store is unavailable.",
            "if not isinstance(op, SettleOp) or error.unrecorded:",
            "if True:",
            "claim_and_complete",
        ),
        Mutant(
            "A release that the body's end asks for is forgotten if the store does not answer.",
            "            self.gate.connection.orphans.add("
            "self.op, self.fence, asked=asked)\n            raise",
            "            raise",
            "async_with",
        ),
        Mutant(
            "A body that is cancelled twice leaves its claim held.",
            "        with contextlib.suppress(Exception):\n            await asyncio.shield(settling)",
            "        with contextlib.suppress(Exception):\n            settling.cancel()",
            "async_with",
        ),
        Mutant(
            "A body's error releases a claim whose result is being recorded.",
            "if error is not None and self.settling:",
            "if False:",
            "completed_inside",
        ),
        Mutant(
            "A late copy of a claim that was released is not watched for.",
            "            self.gate.connection.orphans.watch(self.op)\n",
            "            pass\n",
            "release_and_claim",
        ),
        Mutant(
            "An owner that fails what a cancelled call of its own has completed is told that its claim is lost.",
            "            if not alone:  # its caller goes on by itself\n                self._note_unsure(how)\n",
            "            if not alone:  # its caller goes on by itself\n",
            "failed_anew",
        ),
    ],
    "fastdedup/core/calls.py": [
        Mutant(
            "A claim is not given back if its caller is cancelled before the reply comes.",
            "            gate.abandon(op)\n            raise",
            "            raise",
            "claim_and_complete",
        ),
    ],
    "fastdedup/core/executor.py": [
        Mutant(
            "A redeemed token is not watched, although a copy of an earlier look may come late.",
            'if was_orphan or hasattr(look, "resent"):',
            'if hasattr(look, "resent"):',
            "redeem_what_is_consumed",
        ),
        Mutant(
            "A waiter's claim is taken back although its next look has got it.",
            "was_orphan = self.connection.orphans.leave_to_owner(look)",
            "was_orphan = False",
            "lock",
        ),
        Mutant(
            "A use of a token is told as a duplicate although it may still be taken back.",
            "return 2 * connection.timeout - age if connection.store_time_us else 0.0",
            "return 0.0",
            "consume",
        ),
        Mutant(
            "The error of a token's use is raised before that is taken back.",
            "            await self.until_taken_back([op])\n            raise fault",
            "            raise fault",
            "failed_use",
        ),
    ],
    "fastdedup/core/waiting.py": [
        Mutant(
            "A waiter that cannot be told does not look by itself.",
            "alarm if told else min(alarm, _DEAF_PAUSE)",
            "alarm",
            "wait_unheard",
        ),
        Mutant(
            "A refused look ends the wait.",
            "    return await look_again(gate, call, terms, gives_up, refusal)",
            "    raise refusal",
            "wait",
        ),
        Mutant(
            "A claim that the store answers does not wake the others that it refused.",
            "            connection.outage_waiters.is_back(part)\n",
            "            pass\n",
            test="tests/unit/test_wakeups.py::test_the_first_answered_look_wakes_the_others",
        ),
    ],
    "fastdedup/core/connection.py": [
        Mutant(
            "What was given up is not freed at once when the store is back.",
            "        self.orphans.retry_now()\n",
            "",
            test="tests/unit/test_wakeups.py::test_claims_without_a_reply_are_freed_as_soon_as_the_store_is_back",
        ),
    ],
    "fastdedup/core/many.py": [
        Mutant(
            "A list that ends early gives back nothing of what it has taken.",
            "await asyncio.shield(self.gate.connection.keep(self._give_back(claims, told=told)))",
            "pass",
            "claim_many",
        ),
        Mutant(
            "What a list has accepted is sent although the list has failed.",
            "        self._done.cancel()  # no",
            "        # no",
            test="tests/regression/test_local_answers.py::test_a_list_that_fails_holds_nothing",
        ),
    ],
    "fastdedup/core/renewal.py": [
        Mutant(
            "An outage loses a claim that is being settled, and stops its body.",
            "return None if life.is_over else life.lose(outage=True)",
            "return life.lose(outage=True)",
            test="tests/unit/test_renewal.py::test_a_renewal_in_vain_loses_no_claim_that_is_settled",
        ),
        Mutant(
            "A renewal without an answer loses the claim at once.",
            "if loop.time() >= ends:\n                return None",
            "if True:\n                return None",
            "renew",
        ),
        Mutant(
            "A lease is taken for longer than it is.",
            "ends = known if max(known, ends) - started > lease else max(known, ends)",
            "ends = started + lease",
            "renew_in_vain",
        ),
    ],
}
LEDGERS = {
    "fastdedup/ledger/first_call.py": [
        Mutant(
            "An id is not taken back if its call is cancelled.",
            "            if not self._named:\n                self.take_back()",
            "            if not self._named and isinstance(error, DedupError):\n                self.take_back()",
            "first",
        ),
        Mutant(
            "The ids of a list are not taken back if its call is cancelled.",
            "            if not self._named:\n                self.take_back()",
            "            if not self._named and len(self._sent) < 2:\n                self.take_back()",
            "first_many",
        ),
        Mutant(
            "An id is not taken back if its call fails.",
            "            if not self._named:\n                self.take_back()",
            "            if not (self._named or isinstance(error, DedupError)):\n                self.take_back()",
            "first",
        ),
        Mutant(
            "What a list has remembered is kept if one of its ids fails.",
            "if op.answer not in _NOTHING_LEFT:",
            "if op.answer not in (*_NOTHING_LEFT, Code.OK):",
            "first_many",
        ),
        Mutant(
            "An id is told as a duplicate although its call may still be taken back.",
            "stays = self._pauses >= LOOKS or GRANTED.lately(op.place, young) or self._orphans.knows(op)",
            "stays = True",
            "first_elsewhere",
        ),
        Mutant(
            "An id is told as a duplicate of a failed call that is just being taken back.",
            "again = [op for op in duplicates if self._orphans.knows(op)]",
            "again = list[FirstOp]()",
            "first",
        ),
        Mutant(
            "The error of a first call is raised before that is taken back.",
            "            await self._gate.until_taken_back(self._sent)\n",
            "",
            "failed_first",
        ),
    ],
}
