"""`Inbox`, for async code. Main path: `Inbox.receive` → `InboxRules.receive` → the dialect's `insert`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from ..arguments import CallRules
from ..checks import Seconds, check_dedup
from ..gateway import Dedup
from .any_inbox import DAY, AnyInbox
from .bridge import AWAITING, Begin
from .dialects.base import Figures
from .once import once
from .open_transaction import ATTEMPTS, OnceRules
from .purge import figures_of, purge
from .receipt import Receipt
from .rules import Busy
from .signatures import OnceFunction

P = ParamSpec("P")
T = TypeVar("T")


class Inbox(AnyInbox[Begin]):
    """Remembers which messages a consumer has handled, in the database that it works on.

    Make it once, at module level; it has no connection of its own. The table is made beforehand: the command
    `fastdedup inbox ddl` prints its SQL. All inboxes of a table keep their rows equally long.

    Args:
        name: the consumer's name. The same key of another inbox is another row.
        keep: seconds, or a timedelta, after which `purge` deletes a row. A message that is delivered later than that
            is handled twice, so keep rows longer than the broker keeps messages.
        table: the table's name.
        schema: the table's schema; without one the connection's own.
        begin: begins a transaction, like `Session.begin`; for `purge` and `stats`, and by default for `once`.
        codec: turns results into bytes and back; JSON by default.
        max_result: the most bytes of a result.

    Raises:
        ConfigError: a name is too long, or has other characters than letters, digits and underscores; `keep` is not a
            time, or `codec` no codec; or another inbox of this name or this table keeps its rows for another time.
    """

    bridge = AWAITING
    receipt = Receipt

    async def receive(
        self, transaction: Any, key: str, *, fingerprint: Any = None, busy: Busy = "wait"
    ) -> Receipt:
        """Remember a key in the caller's own transaction; say whether it is the first.

        If another transaction has received the key and has not ended (a twin), it waits: if the twin commits, this
        call is a duplicate; if it rolls back, this call is first.

        Args:
            transaction: an async session or connection of SQLAlchemy, or a connection of asyncpg, psycopg, aiosqlite
                or aiomysql.
            key: the message's name; at most 1024 bytes of UTF-8.
            fingerprint: data that must be equal under one key, such as the amount: a value to digest, or a result of
                `fastdedup.fingerprint()`. The row keeps it, for which an older table needs a new column.
            busy: "skip" does not wait for a twin, and answers IN_PROGRESS.

        Raises:
            UsageError: there is no transaction, or it is closed, read-only or synchronous.
            ConfigError: the table does not exist, or does not fit; or a `fingerprint` cannot be digested, or kept.
            MismatchError: the key was received with another fingerprint. The transaction goes on.
            InvalidKeyError: the key cannot be used.
            RetryTransaction: run the whole transaction again.
        """
        receipt: Receipt = await self.receive_flow(transaction, key, fingerprint, busy)
        return receipt

    async def receive_many(
        self,
        transaction: Any,
        keys: Sequence[str],
        *,
        fingerprints: Sequence[Any] | None = None,
        busy: Busy = "wait",
    ) -> list[Receipt]:
        """Remember many keys; the receipts are in the order of the keys. Arguments and errors: see `receive`.

        `fingerprints` has one for each key, or is None. A MismatchError names the first key that differs: roll back,
        and receive the messages one by one.

        The keys are inserted sorted, so that two calls with the same keys do not deadlock. A key that is in
        the list twice is first once.
        """
        return await self._receive_many(transaction, keys, fingerprints, busy)

    def once(
        self,
        key: Callable[..., str],
        *,
        begin: Begin | None = None,
        name: str | None = None,
        fingerprint: Callable[..., Any] | None = None,
        gate: Dedup | None = None,
        wait: Seconds | None = None,
        busy: Busy = "wait",
        attempts: int = ATTEMPTS,
    ) -> Callable[
        [Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]], OnceFunction[P, Coroutine[Any, Any, T]]
    ]:
        """Decorate `async def work(transaction, …)` to be done once for each key; later calls return its result.

        They get the type that the function declares to return. If a result cannot come back, the work is committed,
        its caller gets it with a ResultWarning, and later calls raise FailedError.

        The decorated function is called without the transaction, which `begin` begins for it. If the
        database ends a transaction for the sake of another, it is run again, after a pause.

        Args:
            key: returns the key; called with those arguments of the function that it names, and with None for the
                transaction. `by("order.id")` makes one.
            begin: begins a transaction, like `Session.begin`.
            name: stands before each key; see `Dedup.once`.
            fingerprint: returns the data that must be equal under one key; called like `key`. None: no comparison.
            gate: a `Dedup` that answers duplicates before they reach the database. If it does not answer, the
                inbox decides alone, and the event `GateBypassed` reports that.
            wait: seconds to wait for another owner's work at the gate.
            busy: see `receive`.
            attempts: the most transactions of a call.

        Raises, when it is called:
            InProgressError: another owner is at work, and `wait` is over; or `busy="skip"` met a twin.
            MismatchError: the key is known with another fingerprint.
            FailedError: no later call can get the result of the first one; `error` says why.
            RetryTransaction: the database has ended the last attempt too.
            any error of the function: the transaction is rolled back, and the gate is free again.
            any error of the driver: if it comes from the COMMIT, it is unknown whether that took effect. Deliver the
                message again: `receive` knows.
        """
        calls = CallRules(key, fingerprint, name)
        return once(OnceRules(self, begin, calls, gate, wait, busy, attempts))

    async def purge(
        self,
        *,
        begin: Begin | None = None,
        leader: Dedup | None = None,
        batch: int | None = None,
        on_batch: Callable[[int], None] | None = None,
    ) -> int:
        """Delete the rows that are older than `keep`, in batches; return how many were deleted.

        Each batch is a transaction of its own, so a purge may be stopped at any time, and the next one goes on. One
        process at a time purges a table; another one that calls it returns at once. Call it regularly.

        Args:
            begin: begins a transaction.
            leader: a `Dedup` whose lock decides which process purges; without one the database's own lock does.
            batch: the most rows of a transaction; by default the number that one deletes in about ten milliseconds.
            on_batch: called with the number of rows that each batch deleted.

        Raises:
            ConfigError: an argument cannot be used.
            RetryTransaction: the database has ended several batches, one after another. Rows that were deleted before
                stay deleted.
        """
        if leader is not None:
            check_dedup(leader, Dedup, "purge(leader=…)")
        beginning = self.beginning(begin)
        return await purge(self._rules, self.bridge, beginning, leader=leader, batch=batch, on_batch=on_batch)

    async def stats(self, *, begin: Begin | None = None, stretch: Seconds = DAY) -> Figures:
        """Return the table's figures: rows, bytes, the oldest row's age, and the rows by age. Reads the whole index.

        `stretch`: the seconds of each range of ages.
        """
        return await figures_of(self._rules, self.bridge, self.beginning(begin), stretch)
