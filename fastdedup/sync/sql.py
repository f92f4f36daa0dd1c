"""The inbox for synchronous code: the same names, words and errors as in `fastdedup.sql`.

It runs in the caller's own thread and transaction; only a gate has a background thread.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Concatenate, ParamSpec, TypeVar

from ..arguments import CallRules
from ..checks import Seconds, check_dedup
from ..errors import DedupError, UsageError
from ..flows import drive
from ..gateway import Dedup as AsyncDedup
from ..keys import Fingerprint
from ..sql.any_inbox import DAY, AnyInbox
from ..sql.bridge import BLOCKING
from ..sql.bridge import SyncBegin as Begin
from ..sql.dialects.base import Figures
from ..sql.local_calls import ThreadEnd, count_wait
from ..sql.once import MENDING, AtGate, Settle, bypassed, calls_of, claim_at
from ..sql.open_transaction import ATTEMPTS, OnceRules
from ..sql.purge import figures_of, purge
from ..sql.receipt import AnyReceipt
from ..sql.rules import Busy
from ..sql.signatures import OnceFunction, hide_transaction
from .claim import Claim, take_back
from .gateway import Dedup
from .once import check_blocking, check_done

P = ParamSpec("P")
T = TypeVar("T")


class Receipt(AnyReceipt):
    """The answer to `Inbox.receive`."""

    __slots__ = ()

    def complete(self, result: Any = None) -> None:
        """Keep a result for duplicates, in the same transaction. Errors: see `fastdedup.sql.Receipt.complete`."""
        drive(self._complete(result))


class Inbox(AnyInbox[Begin]):
    """Remembers which messages a consumer has handled. Arguments and errors: see `fastdedup.sql.Inbox`."""

    bridge = BLOCKING
    receipt = Receipt

    def receive(self, transaction: Any, key: str, *, fingerprint: Any = None, busy: Busy = "wait") -> Receipt:
        """Remember a key in the caller's own transaction; say whether it is the first.

        `transaction`: a session or connection of SQLAlchemy, a connection of psycopg, sqlite3 or PyMySQL, or Django's
        inside `transaction.atomic()`. For the other arguments and the errors see `fastdedup.sql.Inbox.receive`.
        """
        receipt: Receipt = drive(self.receive_flow(transaction, key, fingerprint, busy))
        return receipt

    def receive_many(
        self,
        transaction: Any,
        keys: Sequence[str],
        *,
        fingerprints: Sequence[Any] | None = None,
        busy: Busy = "wait",
    ) -> list[Receipt]:
        """Remember many keys; see `fastdedup.sql.Inbox.receive_many`."""
        return drive(self._receive_many(transaction, keys, fingerprints, busy))

    def once(
        self,
        key: Callable[..., str],
        *,
        begin: Begin | None = None,
        name: str | None = None,
        fingerprint: Callable[..., Any] | None = None,
        gate: Dedup | None = None,
        wait: Seconds = 0.0,
        busy: Busy = "wait",
        attempts: int = ATTEMPTS,
    ) -> Callable[[Callable[Concatenate[Any, P], T]], OnceFunction[P, T]]:
        """Decorate `def work(transaction, …)` to be done once for each key; see `fastdedup.sql.Inbox.once`."""
        rules = OnceRules(self, begin, CallRules(key, fingerprint, name), gate, wait, busy, attempts)
        if gate is not None:
            check_dedup(gate, Dedup, "once(gate=…)")

        def decorate(function: Callable[Concatenate[Any, P], T]) -> OnceFunction[P, T]:
            check_blocking(function, "once() of fastdedup.sql.Inbox")

            async def do(*args: Any, **kwargs: Any) -> Any:
                result = function(*args, **kwargs)
                check_done(function, result)
                return result

            call = calls_of(function, do, rules, BlockedGate)

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> T:
                result: T = drive(call(args, kwargs))
                return result

            hide_transaction(wrapper)
            return wrapper  # type: ignore[return-value] # a function, whose signature the protocol describes

        return decorate

    def purge(
        self,
        *,
        begin: Begin | None = None,
        leader: Dedup | None = None,
        batch: int | None = None,
        on_batch: Callable[[int], None] | None = None,
    ) -> int:
        """Delete the rows that are older than `keep`, in batches; see `fastdedup.sql.Inbox.purge`."""
        if leader is not None:
            check_dedup(leader, Dedup, "purge(leader=…)")
        beginning = self.beginning(begin)
        return drive(purge(self._rules, BLOCKING, beginning, leader=leader, batch=batch, on_batch=on_batch))

    def stats(self, *, begin: Begin | None = None, stretch: Seconds = DAY) -> Figures:
        """Return the table's figures; see `fastdedup.sql.Inbox.stats`."""
        return drive(figures_of(self._rules, BLOCKING, self.beginning(begin), stretch))


class BlockedGate(AtGate):
    """`AtGate` for synchronous code: the gate has a thread of its own."""

    end = ThreadEnd

    async def claim(self, name: str, ends: float, mark: Fingerprint | None) -> Claim:
        """See `AtGate`."""
        gate: Dedup = self.rules.gate
        background, dedup = gate.bound.get()
        seconds = gate.per_process.seconds + self.rules.wait
        return Claim(
            background, background.run(lambda: claim_at(dedup, name, ends, mark), seconds, take_back)
        )

    async def tell(self, claim: Claim, settle: Settle) -> None:
        """Tell the gate, for at most `MENDING` seconds; then the rest of the work goes on in the background."""
        # The background thread may have ended: then the lease ends by itself.
        with suppress(DedupError, TimeoutError):
            claim.say(lambda held: asyncio.wait_for(settle(held.settlement), MENDING))

    def bypass(self, error: DedupError) -> None:
        """See `AtGate`."""
        self._soon(lambda dedup: bypassed(dedup, self.rules.inbox, error))

    def count_wait(self, seconds: float, answered: bool) -> None:
        """See `AtGate`."""
        self._soon(lambda dedup: count_wait(dedup, seconds, answered))

    def _soon(self, report: Callable[[AsyncDedup], None]) -> None:
        """Report in the gate's thread, like all its events and counts."""
        with suppress(UsageError):  # the gate is closed already
            background, dedup = self.rules.gate.bound.get()
            background.thread.tell(lambda: report(dedup))
