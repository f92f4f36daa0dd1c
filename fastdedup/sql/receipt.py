"""The answer of `receive`: whether this is the first, and the first one's result."""

from __future__ import annotations

from typing import Any, Final, TypeVar, overload

from ..codec import Encoded, JSONCodec
from ..core.settlement import Settlement
from ..errors import InProgressError, MismatchError, UsageError
from ..model import Outcome
from ..results.declared import LostResult, Results
from .dialects.base import Flow
from .drivers import Driver
from .drivers.base import run
from .rules import Found, InboxRules, TransactionEndedError, ended, left_nested

T = TypeVar("T")
_ANCHOR: Final = "fastdedup_once"
_ACQUIRED: Final = Outcome.ACQUIRED  # naming an enum's member through its class costs 50 ns on Python 3.11
_MISMATCH: Final = Outcome.MISMATCH


class AnyReceipt:
    """The part that receipts of async and of synchronous code share. Its names are those of claims."""

    __slots__ = (
        "_began_nested",
        "_completed",
        "_database",
        "_found",
        "_id",
        "_kept",
        "_lost",
        "_rules",
        "driver",
        "key",
    )

    def __init__(self, rules: InboxRules, driver: Driver, key: str, row_id: bytes, found: Found) -> None:
        self._rules = rules
        self.driver = driver
        """The driver of the transaction; for `once`, which works below `complete`."""
        self._database = driver.database
        self._id = row_id
        self._found = found
        rules.received[found.outcome] += 1
        if found.outcome is _MISMATCH:
            raise MismatchError(
                f"{key!r} was received before with another fingerprint: its publisher uses one key for two messages, "
                "so dead-letter this one"
            )
        self.key = key
        """The key that was received."""
        # Mutable: whether a result was kept; whether the work began within a nested transaction; what duplicates
        # find; a result that they cannot get.
        self._completed = False
        self._began_nested = False
        self._kept = found
        self._lost: LostResult | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key!r} {self.outcome}>"

    def __bool__(self) -> bool:
        raise TypeError("a receipt is neither true nor false: ask receipt.first")

    @property
    def outcome(self) -> Outcome:
        """ACQUIRED for the first; SUCCEEDED for a duplicate; IN_PROGRESS if `busy="skip"` met a twin in flight."""
        return self._found.outcome

    @property
    def first(self) -> bool:
        """True if no transaction has committed this key: do the work, in the same transaction."""
        return self._found.outcome is _ACQUIRED

    @property
    def result(self) -> Any:
        """The first result, decoded: the one that `complete` kept, here or in the first transaction; or None."""
        return self._rules.result(self._kept, self.key)

    @overload
    def replay(self) -> Any: ...

    @overload
    def replay(self, declared: type[T]) -> T: ...

    @overload
    def replay(self, declared: Any) -> Any: ...

    def replay(self, declared: Any = None) -> Any:
        """Return the first result, for a duplicate. `declared`: its type; see `fastdedup.Claim.replay`.

        Raises:
            InProgressError: a twin was in flight.
            UsageError: this receipt is the first: there is nothing to replay, so do the work.
            FailedError: no duplicate can get the result; `error` says why.
            ResultError: the result is not of the declared type, or cannot be read.
            ConfigError: the declared type cannot come back, or needs `fastdedup[types]`.
        """
        if self.outcome is Outcome.IN_PROGRESS:
            raise InProgressError(
                f"{self.key!r} is in progress in another transaction: receive it again later", retry_after=1.0
            )
        if self.first:
            raise UsageError(
                f"{self.key!r} is received for the first time, there is nothing to replay: do the work"
            )
        return self._rules.result(self._found, self.key, declared)

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
        """Return the name of the savepoint, or "" if the database needs none.

        Another row in this transaction may have one, too. The name differs within a nested transaction: work that
        leaves one open is refused, because its end would come last.
        """
        dialect = self._rules.dialect(self._database)
        if not dialect.anchors:
            return ""
        if self.driver.is_nested():
            return f"{_ANCHOR}_nested_{self._id.hex()}"
        # One name costs less: each driver has a cache of statements.
        if dialect.keeps_equal_savepoints:
            return _ANCHOR
        return f"{_ANCHOR}_{self._id.hex()}"

    async def _complete(self, result: Any) -> None:
        """See `Receipt.complete`."""
        self._check_completion()
        await self._keep(self._rules.complete(self._database, self._id, result))

    # Steps of `once`, below `complete`

    async def begin_work(self) -> None:
        """Set a savepoint, if `finish` recognizes the transaction by one: `once` calls this before the work."""
        driver, rules = self.driver, self._rules
        self._began_nested = driver.is_nested()
        if anchor := self._anchor():
            await run(driver, rules.dialect(self._database).anchor(anchor), rules.table_name)

    async def finish(self, result: Any, look: bool) -> None:
        """Keep the work's result in the transaction that holds the row, before its COMMIT; see `InboxRules.finish`.

        `once` calls this after the work, in place of `complete`. `look`: check that the row still exists, because the
        work may have rolled back and begun a transaction of its own.
        """
        driver = self.driver
        # On a lost connection the statement says what is wrong.
        if not driver.is_open() and not driver.is_lost():
            raise ended()
        self._lost = result if isinstance(result, LostResult) else None
        try:
            await self._keep(self._rules.finish(self._database, self._id, result, self._anchor(), look=look))
        except TransactionEndedError as error:
            if driver.is_nested() and not self._began_nested:
                raise left_nested() from error
            raise

    async def _keep(self, flow: Flow[bytes]) -> None:
        """Store a result, and remember what duplicates find."""
        payload = await run(self.driver, flow, self._rules.table_name)
        self._completed = True
        self._kept = Found(Outcome.SUCCEEDED, payload)

    def answer(self, typed: Results | None) -> RowAnswer:
        """Return the result for the callers of `once`, also after the COMMIT. `typed`: see `Results.typed`."""
        return RowAnswer(self._rules, self._kept, self.key, typed, self._lost)


class RowAnswer:
    """The result in a row: each call returns it anew.

    Args:
        rules: the inbox's.
        kept: what the row keeps.
        key: the message's key.
        typed: see `Results.typed`.
        lost: the result, if duplicates cannot get it.
    """

    __slots__ = ("_kept", "_key", "_lost", "_rules", "_typed")

    def __init__(
        self, rules: InboxRules, kept: Found, key: str, typed: Results | None, lost: LostResult | None
    ) -> None:
        self._rules = rules
        self._kept = kept
        self._key = key
        self._typed = typed
        self._lost = lost

    def __call__(self) -> Any:
        """Return the result for a duplicate. Errors: see `InboxRules.result`."""
        return self._rules.result(self._kept, self._key, self._typed)

    def of_own_work(self) -> Any:
        """Return the result for the caller whose work it is, also if duplicates cannot get it.

        Raises:
            ResultWarning: they cannot, and warnings are errors.
            any error of `InboxRules.result`.
        """
        if self._lost is None:
            return self()
        self._lost.warn()
        return self._lost.result

    @property
    def encoded(self) -> Encoded:
        """The result as the row keeps it, for a record of the same codec."""
        return Encoded((self._kept.payload,))

    async def mirror(self, held: Settlement, within: float) -> None:
        """Complete a claim at the gate with it; see `Settlement.mirror`. Duplicates ask the row why it is lost."""
        if self._lost is not None:
            await held.free()
            return
        is_json = type(held.gate.settings.codec) is JSONCodec and type(self._rules.codec) is JSONCodec
        await held.mirror(self.encoded if self._kept.payload and is_json else self(), within=within)


class Receipt(AnyReceipt):
    """The answer to `Inbox.receive`."""

    __slots__ = ()

    async def complete(self, result: Any = None) -> None:
        """Keep a result for duplicates, in the same transaction. Without one, duplicates get None.

        Raises:
            ResultError, ResultTooLargeError: the result cannot be stored.
            UsageError: this is not the first, is completed already, or the transaction has ended.
            RetryTransaction: run the whole transaction again.
        """
        await self._complete(result)
