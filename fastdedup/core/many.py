"""Many claims in one call: one future for all of them, and one answer for each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter
from typing import Any, Final

from ..claim import Claim
from ..errors import ShortfallError, UnavailableError
from ..kernel.operations import NOBODY, ClaimOp, Reply, Verdict
from ..model import Outcome
from ..results.declared import reader_for
from ..tasks import wait_then_stop
from .calls import KnownCall, claim_of
from .counters import outcome_of
from .executor import StaleLedger
from .gate import Gate
from .options import ClaimOptions
from .settlement import Settlement
from .together import Together, parts_of
from .traced_lists import within_a_span
from .waiting import end_of, look, wait_on

_ACQUIRED: Final = Outcome.ACQUIRED  # naming an enum's member through its class costs 50 ns on Python 3.11
_IN_PROGRESS: Final = Outcome.IN_PROGRESS


class ListedClaim(ClaimOp):
    """One claim of a list. It takes its reply itself: all of a list share one future."""

    __slots__ = ("_list", "answer")

    def __init__(self, claims: ClaimList, key: Any, fingerprint: bytes | None) -> None:
        super().__init__(claims.gate.claims.wire(key), claims.terms, claims.draw_owner(), fingerprint)
        self.followers = NOBODY  # so that the engine calls `take` with the reply
        self.witness = None
        self.named = claims.named
        self.key = key
        self.reader = claims.reader
        self._list = claims
        self.answer: Any = None
        """The store's reply, or the error in its place; later the verdict. A cached answer is set at once."""

    def take(self, reply: Reply) -> None:
        """Keep the store's reply."""
        self.answer = reply
        self._list.answered()

    def fail(self, error: BaseException) -> None:
        """Keep the error that came in the reply's place."""
        self.answer = error
        self._list.answered()


class ClaimList(Together):
    """Claims of different keys, made by one call and answered together.

    Args:
        gate: the claims' gate.
        options: how to make them; `RememberedList` in `ledger/remembered.py` handles a ledger.
    """

    def __init__(self, gate: Gate, options: ClaimOptions) -> None:
        super().__init__()
        self.gate = gate
        self.terms = gate.terms_of(options)
        self.draw_owner = gate.owners_of(options)
        self.named = options.owner is not None
        returns = options.returns
        self.reader = None if returns is None else reader_for(returns, gate.settings.codec)
        self._options = options
        self._renews = bool(options.renews)
        self._wait = options.seconds_to_wait

    async def claim(self, keys: Sequence[Any], marks: Sequence[bytes | None]) -> list[Claim]:
        """Make the claims; if one cannot be answered, its error is raised, and the others are released.

        `marks`: the fingerprint of each key, or None.
        """
        claims = [ListedClaim(self, key, mark) for key, mark in zip(keys, marks, strict=True)]
        if self.gate.recent:
            for claim in claims:
                known: KnownCall | None = self.gate.known_success(self._options, claim.key, claim.fingerprint)
                if known is not None:
                    claim.answer, claim.at = known.verdict, 0.0
        return await within_a_span(self.gate, claims, lambda: self._made(claims))

    async def _made(self, claims: Sequence[ListedClaim]) -> list[Claim]:
        began, gives_up = asyncio.get_running_loop().time(), end_of(self._wait)
        counters = self.gate.observers.counters
        since = 0.0 if counters is None else perf_counter()
        try:
            await self._send(claims, gives_up)
            if self._wait and any(map(is_open, claims)):
                await self._wait_for_others(claims, gives_up)
            await self._look_at(self._over(claims, began), gives_up)
            self.ended(claims)
            if counters is not None:
                for claim in claims:
                    counters.judged(self.gate, claim.answer, since)
            return [claim_of(self.gate, claim, claim.answer, self._renews) for claim in claims]
        except BaseException as error:  # noqa: BLE001 -- it is raised below
            fault = error
        self.ended(claims, fault)
        if counters is not None and isinstance(fault, Exception):
            took = perf_counter() - since
            counters.observe(self.gate.settings.namespace, "claim", outcome_of(fault), took)
        # Not awaited in the except clause, because mypyc's code crashes if it is cancelled there.
        self._done.cancel()  # no caller waits for the claims that are still under way
        # After any other error another process may have the key by the same name by then.
        told = isinstance(fault, ShortfallError)
        await asyncio.shield(self.gate.connection.keep(self._give_back(claims, told=told)))
        try:
            raise fault
        finally:
            del fault  # it refers to this frame

    async def prepare(self, claims: Sequence[ListedClaim]) -> None:
        """Prepare claims that are sent next; a list whose claims need more than a key does so."""

    def ended(self, claims: Sequence[ListedClaim], fault: BaseException | None = None) -> None:
        """Learn from the verdicts of all claims, or from the error that ends the list."""

    async def _send(self, claims: Sequence[ListedClaim], gives_up: float) -> None:
        """Send the claims that have no answer yet, and judge all answers.

        What is known of the ledger may be too old for a part's claims: they look again before the next part is sent,
        which then knows the ledger's present form.
        """
        for part in parts_of(claims):
            await self.prepare(part)
            await self.send([claim for claim in part if claim.answer is None], self.gate.begin_claim)
            for claim in part:
                self._judge(claim)
            await self._look_at([claim for claim in part if type(claim.answer) is StaleLedger], gives_up)

    def _judge(self, claim: ListedClaim) -> None:
        """Put the verdict into the answer's place; a refusal, if there is time to look again."""
        answer = claim.answer
        if type(answer) is Verdict and not answer.underreplicated:
            return
        try:
            claim.answer = self.gate.claim_verdict(claim, answer)
        except UnavailableError as refusal:
            claim.answer = None  # if it fell short, the gate has freed it
            if type(refusal) is not StaleLedger and (not self._wait or isinstance(refusal, ShortfallError)):
                raise
            claim.answer = refusal

    async def _wait_for_others(self, claims: Sequence[ListedClaim], gives_up: float) -> None:
        """Wait for other owners, and for a store that refused: once for each key, never for a claim of this list."""
        ours = {claim.wire for claim in claims if not is_open(claim) and claim.answer.outcome is _ACQUIRED}
        waiting: dict[bytes, ListedClaim] = {}
        behind: list[ListedClaim] = []
        for claim in filter(is_open, claims):
            if claim.wire in ours:
                if is_refused(claim):
                    behind.append(claim)
            elif waiting.setdefault(claim.wire, claim) is not claim:
                behind.append(claim)
        await self._each(
            list(waiting.values()), lambda claim: wait_on(self.gate, claim, gives_up, claim.answer)
        )
        # A key that is still another owner's is not looked at again for each of its claims.
        await self._look_at(
            [claim for claim in behind if is_refused(claim) or not is_in_progress(waiting.get(claim.wire))],
            gives_up,
        )

    def _over(self, claims: Sequence[ListedClaim], began: float) -> list[ListedClaim]:
        """Return the acquired claims whose lease the list has outlasted: another owner may have their key by now.

        `began`: when the list began, in the loop's time; for claims that were not sent to the store.
        """
        at_the_latest = asyncio.get_running_loop().time() - self.terms.lease_ms / 1000
        if began > at_the_latest:
            return []
        return [
            claim
            for claim in claims
            if claim.answer.outcome is _ACQUIRED and getattr(claim, "at", began) <= at_the_latest
        ]

    async def _look_at(self, claims: Sequence[ListedClaim], gives_up: float) -> None:
        """Look at the keys of some claims again."""
        if claims:
            await self._each(claims, lambda claim: look(self.gate, claim, claim.terms, gives_up))

    async def _each(
        self, claims: Sequence[ListedClaim], answering: Callable[[ListedClaim], Awaitable[Any]]
    ) -> None:
        """Take the answers that `answering` brings to all claims at a time; they look in turns."""

        async def answer(claim: ListedClaim) -> None:
            claim.answer = await answering(claim)

        tasks = [asyncio.ensure_future(answer(claim)) for claim in claims]
        for task in await wait_then_stop(tasks, asyncio.FIRST_EXCEPTION):
            task.result()

    async def _give_back(self, claims: Sequence[ListedClaim], *, told: bool) -> None:
        """Free the acquired claims of a caller that will not learn of them.

        If another call of the same named owner knows of a claim, that call must settle it.

        `told`: the caller has got an error instead, so an owner with a chosen name does not keep its claims either.
        """
        becomes_orphan = self.gate.connection.becomes_orphan
        acquired = [claim for claim in claims if becomes_orphan(claim, claim.answer)]
        for part in parts_of(acquired):
            settlements = [Settlement(self.gate, claim, claim.answer) for claim in part]
            await asyncio.gather(
                *[each.release_soon(asked=told) for each in settlements], return_exceptions=True
            )


def is_open(claim: ListedClaim) -> bool:
    """True for a claim that may wait: its key is another owner's, or its first look was refused."""
    return is_refused(claim) or is_in_progress(claim)


def is_in_progress(claim: ListedClaim | None) -> bool:
    """True for a claim whose key is another owner's."""
    return claim is not None and claim.answer.outcome is _IN_PROGRESS


def is_refused(claim: ListedClaim) -> bool:
    """True for a claim that neither the store nor the policy has answered."""
    return isinstance(claim.answer, UnavailableError)
