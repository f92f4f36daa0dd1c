"""One transaction of a call: it receives the row of the call's key, and keeps the result of its work there.

The order is `enter`, which receives the row; the work; then `commit`, which keeps the work's result in the row, or
`roll_back`. `Transactions` has the work as a function; a framework calls the work itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from ..arguments import CallRules
from ..backoff import Backoff
from ..checks import Seconds, check_count, check_wait
from ..errors import ConfigError, RetryTransaction, UsageError
from ..kernel.keyspace import Keyspace, Kind
from ..keys import Fingerprint
from ..model import Outcome
from ..results.declared import Results
from .any_inbox import AnyInbox
from .bridge import driver_over, within
from .dialects import fault_of
from .dialects.base import Flow, Statement
from .drivers import Driver
from .drivers.base import is_retryable, run
from .faults import DatabaseFault
from .receipt import AnyReceipt, RowAnswer
from .rules import Busy, check_busy

log = logging.getLogger("fastdedup.sql")
ATTEMPTS: Final = 5
"""Transactions of one call by default."""
_BACKOFF = Backoff(0.01, 1.0, growth=2.0, steady=0.0)
_ANCHOR: Final = "fastdedup_request"
"""The savepoint by which `commit` recognizes the transaction if no row of an inbox is in it."""


class OnceRules:
    """The settings of one use of an inbox, checked once, and the decisions that need no I/O.

    Args:
        inbox: the inbox.
        begin: begins a transaction; by default the inbox's.
        calls: the rules for the arguments of a call.
        gate: the gate before the inbox, or None.
        wait, busy, attempts: see `Inbox.once`.

    Raises:
        ConfigError: one of them cannot be used, or there is no `begin`.
    """

    def __init__(
        self,
        inbox: AnyInbox[Any],
        begin: Any,
        calls: CallRules,
        gate: Any = None,
        wait: Seconds | None = 0.0,
        busy: Busy = "wait",
        attempts: int = ATTEMPTS,
    ) -> None:
        self.begin = inbox.beginning(begin)
        self.bridge, self.receive, self.inbox = inbox.bridge, inbox.receive_flow, inbox.rules
        self.calls = calls
        self.gate = gate
        self.wait = check_wait(wait)
        self.busy = check_busy(busy)
        self.attempts = check_count(attempts, "attempts")
        # Mutable: whether `begin` was seen to commit.
        self.proven = self.refuted = False

    def results_of(self, function: Callable[..., Any]) -> Results:
        """Return how the results of a function that is about to be decorated are kept. See `DecoratedFunctions` too.

        Raises:
            ConfigError: its declared type cannot come back.
        """
        self.inbox.decorated.tell(function, self.calls, self.inbox.name)
        return Results(function, self.inbox.codec)

    def gate_wire(self, name: str) -> bytes:
        """Return the store key of a key at the gate, even if the gate was not reached."""
        settings = self.gate.settings
        return Keyspace(settings.namespace, Kind.CLAIM, readable=settings.readable_keys).wire(name)

    def check_outermost(self, driver: Driver) -> None:
        """Check that a COMMIT is final, if a gate will learn of it.

        Raises:
            UsageError: the transaction is a part of another one.
        """
        if self.gate is not None and driver.is_nested():
            raise UsageError(
                "begin= is within another transaction, whose rollback would undo work that the gate has recorded: "
                "begin the outermost one (in Django atomic(durable=True), outside of ATOMIC_REQUESTS), or leave "
                "gate= out"
            )

    def prove(self, outcome: Outcome) -> None:
        """Note the outcome of a second look at a committed key.

        Raises:
            ConfigError: the key's row is missing. It existed before the COMMIT: `InboxRules.finish` has looked.
        """
        if outcome is Outcome.ACQUIRED:
            self.refuted = True
            raise ConfigError(
                "begin= does not commit, so the work was rolled back: give it what commits as its block ends, such "
                "as Session.begin, not Session; engine.begin, not engine.connect"
            )
        self.proven, self.refuted = outcome is Outcome.SUCCEEDED, False

    def pause(self, attempt: int, error: Exception) -> float:
        """Return the seconds until the transaction is run again.

        Raises:
            RetryTransaction: that was the last attempt.
        """
        if attempt >= self.attempts:
            raise RetryTransaction(
                f"the database has ended {attempt} transactions of this call, one after another: deliver it again "
                "later, or raise attempts="
            ) from error
        return pause_after(attempt)


def pause_after(attempt: int) -> float:
    """Return the seconds until a transaction is run again: a random part of a pause that grows with each attempt."""
    return _BACKOFF.pause(attempt)


def is_committed_perhaps(error: BaseException) -> bool:
    """True if it is unknown after this error of a COMMIT whether it took effect: its reply was lost."""
    return fault_of(error) is DatabaseFault.UNKNOWN


class CommitUnknown(Exception):
    """Carries the error of a COMMIT whose reply was lost."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


class RolledBackError(Exception):
    """Ends a transaction whose work has not raised an error: no caller sees it."""


class OpenTransaction:
    """One transaction, and the row that it has received. Its methods are flows; see `fastdedup.flows`.

    Args:
        rules: the rules of the inbox's use, with the gate.
        typed: see `Results.typed`.
    """

    def __init__(self, rules: OnceRules, typed: Results | None = None) -> None:
        self._bridge = rules.bridge
        self._rules = rules
        self._typed = typed
        self._key = ""
        # Mutable: what `begin` yields; the block, until its end begins; its driver; was it within another transaction
        # when it began; the row's receipt; was its connection lost, and has its rollback failed.
        self.transaction: Any = None
        """What `begin` yields: a session or a connection."""
        self._block: Any = None
        self._driver: Driver | None = None
        self._began_nested = False
        self._receipt: AnyReceipt | None = None
        self.has_entered = False
        """True once `begin` has given a transaction."""
        self.lost_connection = False
        """True if it was rolled back after its connection was lost."""
        self.rollback_failed = False
        """True if the rollback had an error of its own: a transaction around this one may have ended with it."""

    @property
    def is_open(self) -> bool:
        """True until its end has begun: a COMMIT, or a rollback."""
        return self._block is not None

    async def begin(self, key: str | None, mark: Fingerprint | None) -> RowAnswer | None:
        """Like `enter`, or for work without a row if the key is None. An ended transaction is begun again.

        Raises:
            RetryTransaction: the database has ended every transaction that one call may begin.
            any other error of `enter`.
        """
        attempt = 0
        while True:
            attempt += 1
            try:
                return await (self._enter_without_row() if key is None else self.enter(key, mark))
            except Exception as error:
                if not is_retryable(error) or self.rollback_failed or attempt >= self._rules.attempts:
                    raise
            await self._bridge.pause(pause_after(attempt))

    async def enter(self, key: str, mark: Fingerprint | None) -> RowAnswer | None:
        """Begin the transaction, and receive a key in it.

        Return None for the first, whose work may begin; for a duplicate, whose transaction has ended, return the
        first result.

        Raises:
            MismatchError: the key has another fingerprint in its row.
            RetryTransaction: the database has ended the transaction.
            InProgressError: `busy="skip"` met a twin.
            any other error of `begin` or of the database: there is no transaction.
        """
        rules = self._rules
        await self._open()
        try:
            receipt: AnyReceipt = await rules.receive(self.transaction, key, mark, rules.busy)
            self._driver = receipt.driver
            rules.check_outermost(receipt.driver)
            if receipt.first:
                await receipt.begin_work()
            else:
                receipt.replay(self._typed)  # may raise
        except BaseException as error:
            await self.roll_back(error)
            raise
        self._key, self._receipt = key, receipt
        if receipt.first:
            return None
        block, self._block = self._block, None
        with suppress(Exception):  # the row is another transaction's, and stands however this one ends
            await self._bridge.exit(block, None)
        return receipt.answer(self._typed)

    async def _enter_without_row(self) -> None:
        await self._open()
        try:
            self._driver = driver = driver_over(self._bridge, self.transaction)
            self._began_nested = driver.is_nested()
            await self._run(driver, f"SAVEPOINT {_ANCHOR}")
        except BaseException as error:
            await self.roll_back(error)
            raise

    async def _open(self) -> None:
        block = self._rules.begin()
        self.transaction = await self._bridge.enter(block)
        self._block, self.has_entered = block, True

    async def flush(self) -> None:
        """Send the database what the work has left in a session; see `Driver.flush`."""
        sending = self._driver.flush() if self.is_open and self._driver is not None else None
        if sending is not None:
            await sending

    async def commit(self, result: Any, *, may_stay_nested: bool = False) -> RowAnswer | None:
        """Keep the result in the row, and commit; or roll back and raise. Return the row's answer, if there is a row.

        `may_stay_nested`: a savepoint that the work has left open is an error only if the row cannot keep its result.
        Once it has begun, `roll_back` does nothing: a cancelled caller rolls back while this goes on.

        Raises:
            ResultError, ResultTooLargeError: the result cannot be stored, so nothing is committed.
            UsageError: the work has ended the transaction, went on after a failed statement, or has left a savepoint
                open.
            CommitUnknown: the COMMIT's reply was lost, or a hook of the application has failed, perhaps after it.
            ConfigError: `begin` does not commit.
            any other error of the database: the transaction is rolled back.
        """
        receipt, rules, driver = self._receipt, self._rules, self._driver
        assert driver is not None
        block, self._block = self._block, None
        try:
            if driver.is_nested() and not self._began_nested and not may_stay_nested:
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
            await self._bridge.exit(block, None)
        except BaseException as error:
            if driver.may_be_committed() or is_committed_perhaps(error):
                raise CommitUnknown(error) from None
            raise
        if receipt is None:
            return None
        if not rules.proven:
            await self._prove()
        return receipt.answer(self._typed)

    async def roll_back(self, error: BaseException | None = None) -> None:
        """Roll the transaction back if it is open, because of an error of the work or without one.

        An error of the rollback is only logged: the database rolls back what is not committed.

        Raises:
            Exception: the error that the block raises from this one: `begin` tells it in the application's words.
        """
        block, self._block = self._block, None
        if block is not None:
            await self._roll_back(block, RolledBackError() if error is None else error)

    async def _prove(self) -> None:
        """Check at the first use that `begin` commits: otherwise the gate would skip work that was never done.

        Raises:
            ConfigError: it does not.
        """
        rules = self._rules

        async def look(transaction: Any) -> None:
            rules.prove((await rules.receive(transaction, self._key, busy="skip")).outcome)

        try:
            await within(self._bridge, rules.begin, look)
        except ConfigError:
            raise
        except Exception:  # noqa: BLE001 -- the work is committed, so its caller gets no other error
            return

    async def _run(self, driver: Driver, sql: str) -> None:
        await run(driver, _only(sql), self._rules.inbox.table_name)

    async def _roll_back(self, block: Any, cause: BaseException) -> None:
        # Asked before the end of the block, which may close any connection.
        self.lost_connection = self._driver is not None and self._driver.is_lost()
        try:
            await self._bridge.exit(block, cause)
        except Exception as failed:
            if failed.__cause__ is cause:
                # Else it would hide a cancellation, or the response of a handler that raised no error.
                if isinstance(cause, Exception) and not isinstance(cause, RolledBackError):
                    raise
            elif failed is not cause:
                self.rollback_failed = True
                log.debug("a transaction was not rolled back by its connection", exc_info=failed)


def _only(sql: str) -> Flow[None]:
    yield Statement(sql)
