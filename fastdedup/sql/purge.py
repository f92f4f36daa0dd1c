"""The functions for a whole table: a purge in batches, each in a transaction of its own; and the figures."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..checks import Seconds, check_count, check_seconds, check_takes_one
from ..errors import InProgressError
from .bridge import InboxBridge, driver_over, within
from .dialects.base import Figures
from .drivers.base import is_retryable, run
from .open_transaction import ATTEMPTS, pause_after
from .rules import TableRules

MOST_ROWS = (1 << 63) - 1
"""The greatest integer of SQLite and PostgreSQL."""


async def purge(
    rules: TableRules,
    bridge: InboxBridge,
    begin: Any,
    *,
    leader: Any = None,
    batch: int | None = None,
    on_batch: Callable[[int], None] | None = None,
) -> int:
    """Purge a table if no other process does; return how many rows were deleted. See `Inbox.purge`.

    `leader`: a `Dedup` of the bridge's kind whose lock decides that; None for the database's own lock.
    """
    if batch is not None:
        check_count(batch, "batch", most=MOST_ROWS)
    if on_batch is not None:
        check_takes_one(on_batch, "on_batch", "the number of rows")
    total = 0

    async def delete(transaction: Any) -> tuple[int, bool]:
        """Delete a batch; return its rows, and whether there may be more. No rows if another process purges."""
        driver = driver_over(bridge, transaction)
        size = batch or rules.dialect(driver.database).batch
        rows = await run(driver, rules.purge(driver.database, size), rules.table_name)
        return rows or 0, rows is not None and rows >= size

    async def purge_all(_: Any) -> None:
        nonlocal total
        goes_on, ended = True, 0  # `ended`: how many batches, one after another, the database has ended
        while goes_on:
            try:
                rows, goes_on = await within(bridge, begin, delete)
            except Exception as error:
                ended += 1
                if not is_retryable(error) or ended >= ATTEMPTS:
                    raise
            else:
                ended = 0
                if rows:
                    total += rows
                    if on_batch is not None:
                        on_batch(rows)
                continue
            await bridge.pause(pause_after(ended))

    if leader is None:
        await purge_all(None)
    else:
        key = f"fastdedup-inbox-purge:{rules.table_name}"
        with suppress(InProgressError):  # another process purges
            await within(bridge, lambda: leader.lock(key, renew=True), purge_all)
    return total


async def figures_of(rules: TableRules, bridge: InboxBridge, begin: Any, stretch: Seconds) -> Figures:
    """Return a table's figures; see `Inbox.stats`."""
    seconds = check_seconds(stretch, "stretch", least=1.0)

    async def count(transaction: Any) -> Figures:
        driver = driver_over(bridge, transaction)
        return await run(driver, rules.figures(driver.database, seconds), rules.table_name)

    return await within(bridge, begin, count)
