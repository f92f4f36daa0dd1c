"""A transaction that one call begins and another one ends, around work that a framework calls.

The order is `begin`, which receives the row; the work; then `commit`, which keeps the work's result in the row, or
`roll_back`. `Once` has the work as a function, so it needs no such object.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any, Final

from ..errors import UsageError
from ..keys import Fingerprint
from .any_inbox import AnyInbox
from .bridge import driver_over
from .dialects.base import Flow, Statement
from .drivers.base import Driver, flush, is_retryable, run
from .local_calls import Answer
from .once import CommitUnknown, OnceRules, is_committed_perhaps, pause_after, prove_commit
from .receipt import AnyReceipt

log = logging.getLogger("fastdedup.sql")
_ANCHOR: Final = "fastdedup_request"
"""The savepoint by which `commit` recognizes the transaction if no row of an inbox is in it."""


class RolledBackError(Exception):
    """Ends a transaction whose work has not raised an error: no caller sees it."""


class OpenTransaction:
    """One transaction, and the row that it has received. Its methods are flows; see `fastdedup.flows`.

    Args:
        inbox: the inbox.
        begin: begins a transaction; see `Begin` and `SyncBegin`.
        rules: the rules of the inbox's use, with the gate.
    """

    def __init__(self, inbox: AnyInbox[Any], begin: Any, rules: OnceRules) -> None:
        self._inbox = inbox
        self._begin = begin
        self._rules = rules
        self._key = ""
        # Mutable: what `begin` yields; the block, until its end begins; its driver; was it within another transaction
        # when it began; the row's receipt; was its connection lost.
        self.transaction: Any = None
        """What `begin` yields: a session or a connection."""
        self._block: Any = None
        self._driver: Driver | None = None
        self._began_nested = False
        self._receipt: AnyReceipt | None = None
        self.lost_connection = False
        """True if it was rolled back after its connection was lost."""

    @property
    def is_open(self) -> bool:
        """True until its end has begun: a COMMIT, or a rollback."""
        return self._block is not None

    async def begin(self, key: str | None, mark: Fingerprint | None) -> Answer | None:
        """Begin the transaction, and receive a key in it. None as the key stands for work without a row.

        Return None for the first, whose work may begin; for a duplicate, whose transaction has ended, return a
        function that returns the first result. If the database ends the transaction, another one is begun.

        Raises:
            MismatchError: the key has another fingerprint in its row.
            RetryTransaction: the database has ended every transaction that one call may begin.
            any other error of `begin` or of the database: there is no transaction.
        """
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self._try(key, mark)
            except Exception as error:
                if not is_retryable(error) or attempt >= self._rules.attempts:
                    raise
            await self._inbox.bridge.pause(pause_after(attempt))

    async def _try(self, key: str | None, mark: Fingerprint | None) -> Answer | None:
        block = self._begin()
        self.transaction = await self._inbox.bridge.enter(block)
        self._block = block
        try:
            if key is None:
                self._driver = driver = driver_over(self._inbox.bridge, self.transaction)
                self._began_nested = driver.is_nested()
                await self._run(driver, f"SAVEPOINT {_ANCHOR}")
                return None
            receipt: AnyReceipt = await self._inbox.receive_flow(self.transaction, key, mark)
            self._driver = receipt.driver
            self._rules.check_outermost(receipt.driver)
            if receipt.first:
                await receipt.begin_work()
            else:
                receipt.replay()  # may raise
        except BaseException as error:
            await self.roll_back(error)
            raise
        self._key, self._receipt = key, receipt
        if receipt.first:
            return None
        self._block = None
        with suppress(Exception):  # the row is another transaction's, and stands however this one ends
            await self._inbox.bridge.exit(block, None)
        return receipt.answer(None)

    async def flush(self) -> None:
        """Send the database what the work has left in a session; see `flush` of the drivers."""
        if self.is_open and self._driver is not None:
            await flush(self._driver)

    async def commit(self, result: Any) -> None:
        """Keep the result in the row, and commit; or roll back and raise.

        Once it has begun, `roll_back` does nothing: a cancelled caller rolls back while this goes on.

        Raises:
            ResultError, ResultTooLargeError: the result cannot be stored, so nothing is committed.
            UsageError: the work has ended the transaction, went on after a failed statement, or has left a savepoint
                open.
            CommitUnknown: the COMMIT's reply was lost, or a hook of the application has failed, perhaps after it.
            ConfigError: `begin` does not commit; see `prove_commit`.
            any other error of the database: the transaction is rolled back.
        """
        receipt, rules, driver = self._receipt, self._rules, self._driver
        assert driver is not None
        block, self._block = self._block, None
        try:
            if driver.is_nested() and not self._began_nested:
                # Its end would come after ours: SQLite commits then, and only after that the session's error comes.
                raise UsageError(
                    "the work has left a savepoint open, so nothing was committed: end each begin_nested() before "
                    "the handler returns, best as `async with session.begin_nested():`"
                )
            if receipt is not None:
                await receipt.finish(result, look=not rules.proven)
            else:
                # It fails if the work has ended the transaction. It also fails in one that cannot commit: PostgreSQL
                # answers its COMMIT by rolling back, without an error, and psycopg leaves the block of a connection
                # that was lost in silence.
                await self._run(driver, f"RELEASE SAVEPOINT {_ANCHOR}")
        except BaseException as error:
            await self._roll_back(block, error)
            raise
        try:
            await self._inbox.bridge.exit(block, None)
        except BaseException as error:
            if driver.may_be_committed() or is_committed_perhaps(error):
                raise CommitUnknown(error) from None
            raise
        if receipt is not None:
            await prove_commit(self._inbox.bridge, self._begin, self._inbox.receive_flow, rules, self._key)

    async def roll_back(self, error: BaseException | None = None) -> None:
        """Roll the transaction back if it is open, because of an error of the work or without one.

        An error of the rollback is only logged: the database rolls back what is not committed.
        """
        block, self._block = self._block, None
        if block is not None:
            await self._roll_back(block, RolledBackError() if error is None else error)

    async def _run(self, driver: Driver, sql: str) -> None:
        await run(driver, _only(sql), self._inbox.table)

    async def _roll_back(self, block: Any, cause: BaseException) -> None:
        # Asked before the end of the block, which may close any connection.
        self.lost_connection = self._driver is not None and self._driver.is_lost()
        try:
            await self._inbox.bridge.exit(block, cause)
        except Exception as failed:
            if failed is not cause:
                log.debug("a transaction was not rolled back by its connection", exc_info=failed)


def _only(sql: str) -> Flow[None]:
    yield Statement(sql)
