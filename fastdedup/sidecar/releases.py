"""Takes back what a client was granted and does not learn of, and frees the claims of clients that have gone.

A client may leave 10,000 claims at once. They go to the store in small batches with a pause after each, so that other
clients keep their rate. If the store does not answer, each claim is tried again.

Main paths: `UntoldGrants.add` → `take_back`, `ReleaseQueue.add` → `_run`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from time import monotonic
from typing import Any, NamedTuple

from ..backoff import Backoff
from ..errors import DedupError, UnavailableError
from ..gateway import Dedup
from ..kernel.operations import ReleaseOp, Reply

Holding = tuple[Dedup, bytes, bytes]
"""A claim that a client holds: its `Dedup`, its store key, its owner field."""
Grant = Holding | Callable[[], None]
"""What a client has only if it gets the answer: a claim with a drawn owner; or what undoes a use, or forgets ids."""


class Undoable(NamedTuple):
    """What a request has found, and what it was granted."""

    found: Any
    grants: Sequence[Grant]


REMEMBERED = 320
"""The bytes, about, that it takes to keep an id which was remembered, so that it can be forgotten again."""
_IN_ONE_TURN = 32
"""Claims that are taken back in one turn of the loop, which takes 1 ms."""
_TURNS = 64
"""If more than 64 times 32 claims wait, a turn takes back a 64th of them, so that their number stays bounded."""
_BATCH = 64
"""Claims that are released at once: Redis takes 0.2 ms for them, the sidecar 1 ms."""
_SHARE = 2.0
"""The pause after a batch, in lengths of that batch: two thirds of the time belong to the clients that live."""
_UNANSWERED = Backoff(0.02, 0.4, steady=1.0)


def take_back(grants: Iterable[Grant]) -> None:
    """Undo what was granted to a client that does not get the answer, as soon as the store takes that."""
    for grant in grants:
        if isinstance(grant, tuple):
            dedup, wire, owner = grant
            dedup.gate.release_later(wire, owner)
        else:
            grant()


def claims_of(grants: Sequence[Grant]) -> list[Holding]:
    """Return the claims, which are taken back in turns; undo the others now.

    What has no lease does not wait: meanwhile another client would learn that a token is used, or that an id is
    known, and no client would be the first. A thousand of them take about 3 ms of this turn of the loop.
    """
    take_back([grant for grant in grants if not isinstance(grant, tuple)])
    return [grant for grant in grants if isinstance(grant, tuple)]


class UntoldGrants:
    """Takes back what clients of HTTP were granted and do not learn of, some of the claims in each turn of the loop.

    All at once take too long: 64 clients that died with a batch of 1,000 claims each would take the loop for 2 s.

    Args:
        go_on_later: calls a function in a later turn of the loop.
    """

    def __init__(self, go_on_later: Callable[[Callable[[], None]], None]) -> None:
        self._go_on_later = go_on_later
        # Mutable: the claims that wait; is a turn due; does the sidecar stop, so that each is taken back at once.
        self._line: deque[Holding] = deque()
        self._due = False
        self._is_over = False

    def add(self, grants: Sequence[Grant]) -> None:
        """Take these back: claims behind those that wait, the others now."""
        self._line.extend(claims_of(grants))
        if self._is_over or not self._due:
            self._go_on()

    def finish(self) -> None:
        """Take back all at once from now on: the sidecar stops, and no later turn is waited for."""
        self._is_over = True
        self._go_on()

    def _go_on(self) -> None:
        line = self._line
        some = len(line) if self._is_over else max(_IN_ONE_TURN, len(line) // _TURNS)
        grants = [line.popleft() for _ in range(min(some, len(line)))]
        self._due = bool(line)
        if line:
            self._go_on_later(self._go_on)
        take_back(grants)  # last: an error of one keeps no other one waiting for ever


class ReleaseQueue:
    """The claims that are still to be released. It keeps a task only while there are any."""

    def __init__(self) -> None:
        # Mutable: the claims, each with the end of its lease by `time.monotonic()`; the task that releases them.
        self._due: dict[Holding, float] = {}
        self._task: asyncio.Task[None] | None = None
        # Mutable: has another sidecar taken over.
        self._left = False

    def __len__(self) -> int:
        return len(self._due)

    def add(self, claims: Mapping[Holding, float]) -> None:
        """Release these claims; each comes with the end of its lease, by `time.monotonic()`."""
        if self._left:
            return
        self._due.update(claims)
        if self._due and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="fastdedup-releases")

    def keep(self, holding: Holding) -> None:
        """Leave a claim alone: its owner has come back and asks for it again."""
        self._due.pop(holding, None)

    def leave(self) -> None:
        """Leave all claims to their leases from now on: their owners may have them again from another sidecar."""
        self._left = True
        self._due.clear()

    async def finish(self, until: float) -> None:
        """Wait until everything is released, but no longer than `until`, in the loop's time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                if self._task is not None:
                    await asyncio.shield(self._task)

    async def _run(self) -> None:
        pauses = 0
        try:
            while self._due:
                began = monotonic()
                if await self._round(began):
                    pauses = 0
                    await asyncio.sleep(_SHARE * (monotonic() - began))
                else:
                    await asyncio.sleep(_UNANSWERED.pause(pauses))
                    pauses += 1
        finally:
            self._task = None  # whatever ended it: the next claims of a client that goes begin another

    async def _round(self, now: float) -> bool:
        """Try the claims that wait longest; return False if the store did not answer for each of them."""
        sent: list[tuple[Holding, ReleaseOp]] = []
        for holding in list(islice(self._due, _BATCH)):
            dedup, wire, owner = holding
            if self._due[holding] > now and not dedup.gate.connection.is_asked_for(wire, owner):
                sent.append((holding, ReleaseOp(wire, owner, 0)))
            else:
                del self._due[holding]  # its lease has ended, so it is free; or its owner asks for it again
        # All are sent before anything else runs: an owner that comes back claims its key behind its release.
        futures = [_begun(dedup, op) for (dedup, _, _), op in sent]
        all_answered = True
        for (holding, op), reply in zip(
            sent, await asyncio.gather(*futures, return_exceptions=True), strict=True
        ):
            answered = _is_answered(holding[0], op, reply)
            all_answered = all_answered and answered
            ends = self._due.pop(holding, None)
            if not answered and ends is not None:
                self._due[holding] = ends  # behind the others: a store of several parts may answer for those
        return all_answered


def _begun(dedup: Dedup, op: ReleaseOp) -> asyncio.Future[Reply]:
    """Send the release of a claim; return the future of the reply, or of the error in its place."""
    try:
        return dedup.gate.begin(op)
    except DedupError as fault:
        refused: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        refused.set_exception(fault)
        return refused


def _is_answered(dedup: Dedup, op: ReleaseOp, reply: Reply | BaseException) -> bool:
    """Return False if the store did not answer, and the policy refuses: then the claim is tried again.

    After any reply the claim is free, or was not this owner's any more.
    """
    if isinstance(reply, BaseException):
        try:
            dedup.gate.answer(op, reply)
        except UnavailableError:
            return False
        except Exception:  # noqa: BLE001 -- such as a value that fastdedup did not write: another try would not help
            return True
    return True
