"""The functions for a whole table: a purge in batches, each in a transaction of its own; and the figures."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..checks import Seconds, check_count, check_seconds, check_takes_one
from ..errors import InProgressError
from .bridge import InboxBridge, driver_over, in_transaction, within
from .dialects.base import Database, Figures, Flow, TableName
from .drivers.base import is_retryable, run
from .once import ATTEMPTS, pause_after
from .rules import TableRules

MOST_ROWS = (1 << 63) - 1
"""The greatest integer of SQLite and PostgreSQL."""


class Ticker:
    """The progress of one purge. `batch`: rows of a transaction, or None for the database's own number."""

    def __init__(self, rules: TableRules, batch: int | None, on_batch: Callable[[int], None] | None) -> None:
        self._rules = rules
        self._batch = None if batch is None else check_count(batch, "batch", most=MOST_ROWS)
        if on_batch is not None:
            check_takes_one(on_batch, "on_batch", "the number of rows")
        self._on_batch = on_batch
        # Mutable: the most rows of this batch; the rows deleted; whether there is more to do; how many batches, one
        # after another, the database has ended.
        self._size = 0
        self.total = 0
        self.goes_on = True
        self._ended = 0

    @property
    def table_name(self) -> TableName:
        """The table."""
        return self._rules.table_name

    @property
    def lock_key(self) -> str:
        """The key of the lock of the process that purges."""
        return f"fastdedup-inbox-purge:{self.table_name}"

    def flow(self, database: Database) -> Flow[int | None]:
        """Return the next batch."""
        self._size = self._batch or self._rules.dialect(database).batch
        return self._rules.purge(database, self._size)

    def pause(self, error: Exception) -> float:
        """Return the seconds until a batch is run again that the database has ended for another transaction's sake.

        Raises:
            the error itself: it is any other error, or too many batches, one after another, had it.
        """
        self._ended += 1
        if not is_retryable(error) or self._ended >= ATTEMPTS:
            raise error
        return pause_after(self._ended)

    def deleted(self, rows: int | None) -> None:
        """Count the rows that a committed batch has deleted; None: another process purges."""
        self._ended = 0
        self.goes_on = rows is not None and rows >= self._size
        if rows:
            self.total += rows
            if self._on_batch is not None:
                self._on_batch(rows)


async def purge(ticker: Ticker, bridge: InboxBridge, begin: Any, leader: Any) -> int:
    """Purge a table if no other process does; return how many rows were deleted.

    `leader`: a `Dedup` of the bridge's kind whose lock decides that; None for the database's own lock.
    """
    if leader is None:
        await purge_table(ticker, bridge, begin)
        return ticker.total
    with suppress(InProgressError):  # another process purges
        await within(
            bridge,
            lambda: leader.lock(ticker.lock_key, renew=True),
            lambda _: purge_table(ticker, bridge, begin),
        )
    return ticker.total


async def purge_table(ticker: Ticker, bridge: InboxBridge, begin: Any) -> None:
    """Delete the rows that are too old, a transaction for each batch."""

    async def delete(transaction: Any) -> int | None:
        driver = driver_over(bridge, transaction)
        return await run(driver, ticker.flow(driver.database), ticker.table_name)

    while ticker.goes_on:
        try:
            rows = await in_transaction(bridge, begin, delete)
        except Exception as error:  # noqa: BLE001 -- pause() raises it if the batch must not be run again
            pause = ticker.pause(error)
        else:
            ticker.deleted(rows)
            continue
        await bridge.pause(pause)


async def figures_of(rules: TableRules, bridge: InboxBridge, begin: Any, stretch: Seconds) -> Figures:
    """Return a table's figures; see `Inbox.stats`."""
    seconds = check_seconds(stretch, "stretch", least=1.0)

    async def count(transaction: Any) -> Figures:
        driver = driver_over(bridge, transaction)
        return await run(driver, rules.figures(driver.database, seconds), rules.table_name)

    return await in_transaction(bridge, begin, count)
