"""`Inbox`, for async code. Main path: `Inbox.receive` → `InboxRules.receive` → the dialect's `insert`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Concatenate, ParamSpec, TypeVar

from ..checks import Seconds
from ..errors import ConfigError, InProgressError, UsageError
from ..gateway import Dedup
from .any_inbox import AnyInbox, mark_of, marks_of
from .dialects.base import Figures
from .drivers import Driver, driver_of
from .drivers.base import run
from .once import ATTEMPTS, Begin, OnceRules, once
from .purge import Ticker
from .receipt import Receipt
from .rules import Busy
from .signatures import OnceFunction

P = ParamSpec("P")
T = TypeVar("T")
DAY = 86_400.0


class Inbox(AnyInbox[Begin]):
    """Remembers which messages a consumer has handled, in the database that it works on.

    Make it once, at module level; it has no connection of its own. The table is made beforehand: the command
    `fastdedup inbox ddl` prints its SQL. All inboxes of a table keep their rows equally long.

    Args:
        name: the consumer's name. The same key of another inbox is another row.
        keep: seconds, or a timedelta, after which `purge` deletes a row. A message that is delivered later than that
            is handled twice, so keep rows longer than the broker keeps messages.
        table: the table's name.
        schema: the schema that it is in; without one the connection's own.
        begin: begins a transaction, as `Session.begin` does; for `purge` and `stats`, and by default for `once`.
        codec: turns results into bytes and back; JSON by default.
        max_result: bytes of a result at most.

    Raises:
        ConfigError: a name could be more than a name; `keep` is no time; or another inbox of this name or this table
            keeps its rows for another time.
    """

    async def receive(
        self, transaction: Any, key: str, *, fingerprint: Any = None, busy: Busy = "wait"
    ) -> Receipt:
        """Remember a key in the caller's own transaction; say whether it is the first.

        Waits for a twin in flight: where that commits this one is a duplicate, where it rolls back the first.

        Args:
            transaction: an async session or connection of SQLAlchemy, or a connection of asyncpg, psycopg, aiosqlite
                or aiomysql.
            key: what names the message; at most 1024 bytes of UTF-8.
            fingerprint: what must be equal under one key, such as the amount: a value to digest, or what
                `fastdedup.fingerprint()` returned. The row keeps it, for which an older table needs a new column.
            busy: "skip" does not wait for a twin in flight, and answers IN_PROGRESS.

        Raises:
            UsageError: no transaction, a closed or read-only one, or a synchronous one.
            ConfigError: the table is not there, or does not fit; or a `fingerprint` cannot be digested, or kept.
            MismatchError: the key was received with another fingerprint. The transaction goes on.
            InvalidKeyError: the key cannot be used.
            RetryTransaction: run the whole transaction again.
        """
        rules, driver = self._rules, async_driver(transaction)
        row_id = rules.id_of(key)
        flow = rules.receive(driver.database, row_id, busy, mark_of(fingerprint))
        found = await run(driver, flow, rules.table_name)
        return Receipt(rules, driver, key, row_id, found)

    async def receive_many(
        self,
        transaction: Any,
        keys: Sequence[str],
        *,
        fingerprints: Sequence[Any] | None = None,
        busy: Busy = "wait",
    ) -> list[Receipt]:
        """Remember many keys; the receipts are in the order of the keys. Arguments and errors as for `receive`.

        `fingerprints` gives one for each key, or None. A MismatchError tells of the first of them: roll back, and
        receive the messages one by one.

        The keys are inserted sorted, so that two calls with the same keys do not deadlock. A key that stands in the
        list twice is first once.
        """
        if isinstance(keys, str | bytes):
            raise UsageError("receive_many() takes a list of keys, not one text")
        rules, driver, keys = self._rules, async_driver(transaction), list(keys)
        ids = [rules.id_of(key) for key in keys]
        marks = marks_of(fingerprints, keys)
        found = await run(driver, rules.receive_many(driver.database, ids, busy, marks), rules.table_name)
        return [Receipt(rules, driver, *each) for each in zip(keys, ids, found, strict=True)]

    def once(
        self,
        key: Callable[..., str],
        *,
        begin: Begin | None = None,
        fingerprint: Callable[..., Any] | None = None,
        gate: Dedup | None = None,
        wait: Seconds = 0.0,
        busy: Busy = "wait",
        attempts: int = ATTEMPTS,
    ) -> Callable[
        [Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]], OnceFunction[P, Coroutine[Any, Any, T]]
    ]:
        """Decorate `async def work(transaction, …)` to be done once for each key; later calls return its result.

        The decorated function is called without the transaction, which `begin` begins for it. A transaction that the
        database ends for another one's sake is run again, after a pause.

        Args:
            key: returns the key; called as the function is, with None in the transaction's place. A method gets the
                transaction behind `self`.
            begin: begins a transaction, as `Session.begin` does.
            fingerprint: returns what must be equal under one key; called as `key` is. None: nothing is compared.
            gate: a `Dedup` that answers duplicates before they reach the database. Where it does not answer, the
                inbox decides alone, and the event `GateBypassed` tells of it.
            wait: seconds to wait for another owner's work at the gate.
            busy: as for `receive`.
            attempts: transactions at most.

        Raises, when it is called:
            InProgressError: another owner is at work, and `wait` is over; or `busy="skip"` met a twin.
            MismatchError: the key is known with another fingerprint.
            RetryTransaction: the last attempt was ended by the database, too.
            any error of the function: the transaction is rolled back, and the gate is free again.
            any error of the driver: where it comes from the COMMIT, whether that took effect is unknown. Deliver the
                message again: `receive` tells.
        """
        begin = begin or self._begin
        if begin is None:
            raise ConfigError(
                "once() must begin a transaction: give it, or the inbox, begin=, such as begin=Session.begin"
            )
        return once(self.receive, OnceRules(self._rules, key, gate, wait, busy, attempts, fingerprint), begin)

    async def purge(
        self,
        *,
        begin: Begin | None = None,
        leader: Dedup | None = None,
        batch: int | None = None,
        on_batch: Callable[[int], None] | None = None,
    ) -> int:
        """Delete the rows that are older than `keep`, in batches; return how many were deleted.

        Each batch is a transaction of its own, so it may be stopped at any time, and goes on where it was. One
        process at a time purges a table; another one that calls it returns at once. Call it every so often.

        Args:
            begin: begins a transaction.
            leader: a `Dedup` whose lock says who purges; without one the database's own lock does.
            batch: rows of one transaction at most; by default what the database deletes in about ten milliseconds.
            on_batch: called with the number of rows that each batch deleted.

        Raises:
            RetryTransaction: the database has ended several batches, one after another. What was deleted before stays
                deleted.
        """
        ticker = Ticker(self._rules, batch, on_batch)
        if leader is None:
            return await self._purge(ticker, self.beginning(begin))
        with suppress(InProgressError):  # another process purges
            async with leader.lock(ticker.lock_key, renew=True):
                await self._purge(ticker, self.beginning(begin))
        return ticker.total

    async def stats(self, *, begin: Begin | None = None, stretch: Seconds = DAY) -> Figures:
        """Return the table's figures: rows, bytes, the oldest row's age, and the rows by age. Reads the whole index.

        `stretch`: seconds of each stretch of ages.
        """
        seconds = Ticker.seconds(stretch)
        async with self.beginning(begin)() as transaction:
            driver = async_driver(transaction)
            flow = self._rules.figures(driver.database, seconds)
            return await run(driver, flow, self.table)

    async def _purge(self, ticker: Ticker, begin: Begin) -> int:
        while ticker.goes_on:
            try:
                async with begin() as transaction:
                    driver = async_driver(transaction)
                    rows = await run(driver, ticker.flow(driver.database), self.table)
            except Exception as error:  # noqa: BLE001 -- pause() raises it where it shall not be run again
                pause = ticker.pause(error)
            else:
                ticker.deleted(rows)
                continue
            await asyncio.sleep(pause)
        return ticker.total


def async_driver(transaction: Any) -> Driver:
    """Return the driver for an async transaction."""
    driver = driver_of(transaction)
    if not driver.is_async:
        raise UsageError(
            f"{type(transaction).__name__} is synchronous: use Inbox of fastdedup.sync.sql, or an async connection"
        )
    return driver
