"""What `receive` answers: are you the first, and what came of it."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from ..errors import InProgressError, MismatchError, UsageError
from ..model import Outcome
from .dialects.base import Flow
from .drivers import Driver
from .drivers.base import run
from .local_calls import Answer
from .rules import Found, InboxRules, ended

_ANCHOR: Final = "fastdedup_once"


class AnyReceipt:
    """What receipts of async and of synchronous code share. Its words are those of claims."""

    __slots__ = ("_completed", "_found", "_id", "_kept", "_result", "_rules", "driver", "key")

    def __init__(self, rules: InboxRules, driver: Driver, key: str, row_id: bytes, found: Found) -> None:
        self._rules = rules
        self.driver = driver
        """What sends its statements in the transaction; for `once`, which works beneath `complete`."""
        self._id = row_id
        self._found = found
        rules.received[found.outcome] += 1
        if found.outcome is Outcome.MISMATCH:
            raise MismatchError(
                f"{key!r} was received before with another fingerprint: its publisher uses one key for two messages, "
                "so dead-letter this one"
            )
        self.key = key
        """The key that was received."""
        # Mutable: was a result kept; what duplicates find; the result.
        self._completed = False
        self._kept = found
        self._result: Any = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key!r} {self.outcome}>"

    def __bool__(self) -> bool:
        raise TypeError("a receipt is neither true nor false: ask receipt.first")

    @property
    def outcome(self) -> Outcome:
        """ACQUIRED for the first; SUCCEEDED for a duplicate; IN_PROGRESS where `busy="skip"` met a twin in flight."""
        return self._found.outcome

    @property
    def first(self) -> bool:
        """True where nobody has committed this key: do the work, in the same transaction."""
        return self._found.outcome is Outcome.ACQUIRED

    @property
    def result(self) -> Any:
        """The first result, decoded: what `complete` kept, here or in the transaction that was first; or None."""
        return self._result if self.first else self._rules.result(self._found, self.key)

    def replay(self) -> Any:
        """Return the first result, for a duplicate.

        Raises:
            InProgressError: a twin was in flight.
            UsageError: this one is the first: there is nothing to replay, do the work.
        """
        if self.outcome is Outcome.IN_PROGRESS:
            raise InProgressError(
                f"{self.key!r} is in progress in another transaction: receive it again later", retry_after=1.0
            )
        if self.first:
            raise UsageError(
                f"{self.key!r} is received for the first time, there is nothing to replay: do the work"
            )
        return self.result

    def _check_completion(self) -> None:
        if not self.first:
            raise UsageError(f"{self.key!r} is a duplicate, so it is not completed: its first result stands")
        if self._completed:
            raise UsageError(f"{self.key!r} is completed already: complete it once")
        if not self.driver.is_open():
            raise UsageError(
                f"the transaction that received {self.key!r} has ended: complete it before the commit"
            )

    def _anchor(self) -> str:
        """Return the name of the savepoint. Within another transaction of an inbox's it must be another one's."""
        return f"{_ANCHOR}_{self._id.hex()}" if self.driver.is_nested() else _ANCHOR

    def _finishing(self, result: Any, look: bool) -> Flow[bytes]:
        if not self.driver.is_open():
            raise ended()
        return self._rules.finish(self.driver.database, self._id, result, self._anchor(), look=look)

    def _keep(self, payload: bytes) -> None:
        """Remember the result in the form that duplicates get it."""
        self._completed = True
        self._kept = Found(Outcome.SUCCEEDED, payload)
        self._result = self._rules.result(self._kept, self.key)

    def answer(self) -> Answer:
        """Return a function that returns the result, decoded anew for each caller, also after the COMMIT."""
        return partial(self._rules.result, self._kept, self.key)


class Receipt(AnyReceipt):
    """The answer to `Inbox.receive`."""

    __slots__ = ()

    async def complete(self, result: Any = None) -> None:
        """Keep a result for duplicates, in the same transaction. Without one, duplicates get None.

        Raises:
            ResultError, ResultTooLargeError: it cannot be stored.
            UsageError: not the first, completed already, or the transaction has ended.
            RetryTransaction: run the whole transaction again.
        """
        self._check_completion()
        rules, driver = self._rules, self.driver
        flow = rules.complete(driver.database, self._id, result)
        self._keep(await run(driver, flow, rules.table_name))

    async def begin_work(self) -> None:
        """Set a savepoint by which `finish` recognizes the transaction: `once` calls this before the work."""
        driver, rules = self.driver, self._rules
        await run(driver, rules.dialect(driver.database).anchor(self._anchor()), rules.table_name)

    async def finish(self, result: Any, look: bool) -> None:
        """Keep the work's result in the transaction that holds the row, before its COMMIT; see `InboxRules.finish`.

        `once` calls this after the work, where a caller of `receive` calls `complete`. `look`: see that the row is
        still there, because the work may have rolled back and begun a transaction of its own.
        """
        driver, rules = self.driver, self._rules
        self._keep(await run(driver, self._finishing(result, look), rules.table_name))
