"""The inbox for synchronous code: the same names, words and errors as in `fastdedup.sql`.

It runs in the caller's own thread and transaction; only a gate has a background thread.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, Concatenate, ParamSpec, TypeVar

from ..checks import Seconds, not_a_gate
from ..core.settlement import Settlement
from ..downstream import claimed_work
from ..errors import (
    ConfigError,
    DedupError,
    InProgressError,
    RetryTransaction,
    UsageError,
)
from ..kernel.keyspace import Keyspace, Kind
from ..keys import Fingerprint
from ..sql.any_inbox import AnyInbox, mark_of, marks_of
from ..sql.dialects.base import Figures
from ..sql.drivers import Driver, driver_of
from ..sql.drivers.base import is_retryable, run_now
from ..sql.inbox import DAY
from ..sql.local_calls import Answer, ThreadCalls
from ..sql.once import (
    ATTEMPTS,
    MENDING,
    UNHEARD,
    CommitUnknown,
    OnceRules,
    bypassed,
    claim_at,
    count_wait,
    is_committed_perhaps,
)
from ..sql.purge import Ticker
from ..sql.receipt import AnyReceipt
from ..sql.rules import Busy, TableRules
from ..sql.signatures import OnceFunction, arguments_before, hide_transaction
from .claim import Claim, take_back
from .gateway import Dedup
from .once import check_blocking, check_done

P = ParamSpec("P")
T = TypeVar("T")
Begin = Callable[[], AbstractContextManager[Any]]
"""Begins a transaction: returns a context manager that yields it, commits it, and rolls it back on an error."""


class Receipt(AnyReceipt):
    """The answer to `Inbox.receive`."""

    __slots__ = ()

    def complete(self, result: Any = None) -> None:
        """Keep a result for duplicates, in the same transaction. Errors as for `fastdedup.sql.Receipt.complete`."""
        self._check_completion()
        rules, driver = self._rules, self.driver
        flow = rules.complete(driver.database, self._id, result)
        self._keep(run_now(driver, flow, rules.table_name))

    def begin_work(self) -> None:
        """Set a savepoint by which `finish` recognizes the transaction; see `fastdedup.sql.receipt.Receipt`."""
        driver, rules = self.driver, self._rules
        run_now(driver, rules.dialect(driver.database).anchor(self._anchor()), rules.table_name)

    def finish(self, result: Any, look: bool) -> None:
        """Keep the work's result in the transaction, before its COMMIT; see `fastdedup.sql.receipt.Receipt`."""
        self._keep(run_now(self.driver, self._finishing(result, look), self._rules.table_name))


class Inbox(AnyInbox[Begin]):
    """Remembers which messages a consumer has handled. Arguments and errors as for `fastdedup.sql.Inbox`."""

    def receive(self, transaction: Any, key: str, *, fingerprint: Any = None, busy: Busy = "wait") -> Receipt:
        """Remember a key in the caller's own transaction; say whether it is the first.

        `transaction`: a session or connection of SQLAlchemy, a connection of psycopg, sqlite3 or PyMySQL, or Django's
        inside `transaction.atomic()`. The other arguments, and the errors, as for `fastdedup.sql.Inbox.receive`.
        """
        rules, driver = self._rules, sync_driver(transaction)
        row_id = rules.id_of(key)
        flow = rules.receive(driver.database, row_id, busy, mark_of(fingerprint))
        found = run_now(driver, flow, rules.table_name)
        return Receipt(rules, driver, key, row_id, found)

    def receive_many(
        self,
        transaction: Any,
        keys: Sequence[str],
        *,
        fingerprints: Sequence[Any] | None = None,
        busy: Busy = "wait",
    ) -> list[Receipt]:
        """Remember many keys; see `fastdedup.sql.Inbox.receive_many`."""
        if isinstance(keys, str | bytes):
            raise UsageError("receive_many() takes a list of keys, not one text")
        rules, driver, keys = self._rules, sync_driver(transaction), list(keys)
        ids = [rules.id_of(key) for key in keys]
        marks = marks_of(fingerprints, keys)
        found = run_now(driver, rules.receive_many(driver.database, ids, busy, marks), rules.table_name)
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
    ) -> Callable[[Callable[Concatenate[Any, P], T]], OnceFunction[P, T]]:
        """Decorate `def work(transaction, …)` to be done once for each key; see `fastdedup.sql.Inbox.once`."""
        beginning = self.beginning(begin)
        if gate is not None and not isinstance(gate, Dedup):
            raise not_a_gate(gate, "once(gate=…)", "fastdedup.sync.Dedup")
        rules = OnceRules(self._rules, key, gate, wait, busy, attempts, fingerprint)

        def decorate(function: Callable[Concatenate[Any, P], T]) -> OnceFunction[P, T]:
            check_blocking(function, "once() of fastdedup.sql.Inbox")
            rules.check_function(function)
            call: Callable[..., T] = function
            before = arguments_before(function)
            calls = ThreadCalls(functools.partial(_count_wait, rules))

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> T:
                def work(transaction: Any) -> T:
                    result = call(*args[:before], transaction, *args[before:], **kwargs)
                    check_done(function, result)
                    return result

                key, mark = rules.key_and_mark(*args[:before], None, *args[before:], **kwargs)
                result: T = Once(self, rules, beginning, work, mark).run(key, calls)()
                return result

            hide_transaction(wrapper, before)
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
        ticker = Ticker(self._rules, batch, on_batch)
        beginning = self.beginning(begin)
        if leader is None:
            purge_table(ticker, beginning)
        else:
            with suppress(InProgressError), leader.lock(ticker.lock_key, renew=True):
                purge_table(ticker, beginning)
        return ticker.total

    def stats(self, *, begin: Begin | None = None, stretch: Seconds = DAY) -> Figures:
        """Return the table's figures; see `fastdedup.sql.Inbox.stats`."""
        return figures_of(self._rules, self.beginning(begin), stretch)


def purge_table(ticker: Ticker, begin: Begin) -> None:
    """Delete the rows that are too old, a transaction for each batch."""
    while ticker.goes_on:
        try:
            with begin() as transaction:
                driver = sync_driver(transaction)
                rows = run_now(driver, ticker.flow(driver.database), ticker.table_name)
        except Exception as error:  # noqa: BLE001 -- pause() raises it where it shall not be run again
            pause = ticker.pause(error)
        else:
            ticker.deleted(rows)
            continue
        time.sleep(pause)


def figures_of(rules: TableRules, begin: Begin, stretch: Seconds) -> Figures:
    """Return a table's figures; see `Inbox.stats`."""
    seconds = Ticker.seconds(stretch)
    with begin() as transaction:
        driver = sync_driver(transaction)
        return run_now(driver, rules.figures(driver.database, seconds), rules.table_name)


class Once:
    """One call of a decorated function: see `fastdedup.sql.once`, which this follows step by step."""

    def __init__(
        self,
        inbox: Inbox,
        rules: OnceRules,
        begin: Begin,
        work: Callable[[Any], Any],
        mark: Fingerprint | None,
    ) -> None:
        self._inbox = inbox
        self._mark = mark
        self._rules = rules
        self._begin = begin
        self._work = work

    def run(self, key: str, calls: ThreadCalls) -> Answer:
        """Claim at the gate, decide in the transaction, tell the gate."""
        rules = self._rules
        if rules.gate is None:
            return self._decide(key, None, None)
        name = rules.inbox.gate_key(key)
        if not rules.wait:
            return self._through_the_gate(key, name, 0.0)
        ends = time.monotonic() + rules.wait
        return calls.run((name, self._mark), lambda: self._through_the_gate(key, name, ends), rules.wait)

    def _through_the_gate(self, key: str, name: str, ends: float) -> Answer:
        """See `run`. `name`: the key at the gate; `ends`: when to wait there no longer."""
        claim: Claim | None = None
        try:
            claim = self._claim(name, ends)
            if not claim.acquired:
                claim.replay()  # may raise
                return claim.replay
        except UNHEARD as unheard:
            self._bypass(unheard)
        settings = self._rules.gate.settings
        wire = Keyspace(settings.namespace, Kind.CLAIM, readable=settings.readable_keys).wire(name)
        return self._decide(key, claim, wire)

    def _bypass(self, error: DedupError) -> None:
        """Tell of it in the gate's thread, where all its events are told."""
        with suppress(UsageError):  # the gate is closed by now
            background, dedup = self._rules.gate.bound.get()
            background.tell(functools.partial(bypassed, dedup, self._rules.inbox, error))

    def _decide(self, key: str, claim: Claim | None, wire: bytes | None) -> Answer:
        try:
            answer = self._transact(key, wire)
        except CommitUnknown as unknown:
            error = unknown.error
        except BaseException:
            _settle(claim, lambda held: held.free())
            raise
        else:
            if claim is not None:
                result = answer()
                _settle(claim, lambda held: held.mirror(result, within=MENDING))
            return answer
        if claim is not None:
            claim.tell(lambda held: held.settlement.abandon())
        try:
            raise error
        finally:
            del error  # it refers to this frame

    def _claim(self, name: str, ends: float) -> Claim:
        gate: Dedup = self._rules.gate
        background, dedup = gate.bound.get()
        seconds = gate.per_process.seconds + self._rules.wait
        return Claim(
            background, background.run(lambda: claim_at(dedup, name, ends, self._mark), seconds, take_back)
        )

    def _transact(self, key: str, wire: bytes | None) -> Answer:
        attempt = 0
        while True:
            attempt += 1
            try:
                with claimed_work(wire, self):
                    return self._attempt(key)
            except Exception as error:
                if not (isinstance(error, RetryTransaction) or is_retryable(error)):
                    raise
                pause = self._rules.pause(attempt, error)
            time.sleep(pause)

    def _attempt(self, key: str) -> Answer:
        commits = False
        try:
            with self._begin() as transaction:
                receipt = self._inbox.receive(transaction, key, fingerprint=self._mark, busy=self._rules.busy)
                self._rules.check_outermost(receipt.driver)
                if not receipt.first:
                    receipt.replay()  # may raise
                    return receipt.answer()
                receipt.begin_work()
                receipt.finish(self._work(transaction), look=not self._rules.proven)
                commits = True
        except BaseException as error:
            if commits and is_committed_perhaps(error):
                raise CommitUnknown(error) from None
            raise
        if not self._rules.proven:
            self._prove(key)
        return receipt.answer()

    def _prove(self, key: str) -> None:
        try:
            with self._begin() as transaction:
                self._rules.prove(self._inbox.receive(transaction, key, busy="skip").outcome)
        except ConfigError:
            raise
        except Exception:  # noqa: BLE001 -- the work is committed, so its caller hears of no other error
            return


def _count_wait(rules: OnceRules, seconds: float, answered: bool) -> None:
    with suppress(UsageError):  # the gate is closed by now
        background, dedup = rules.gate.bound.get()
        # In the gate's thread, where all else is counted.
        background.tell(lambda: count_wait(dedup, seconds, answered))


def _settle(claim: Claim | None, settle: Callable[[Settlement], Coroutine[Any, Any, Any]]) -> None:
    """Tell the gate, for `MENDING` seconds at most: what is left then goes on in the background."""
    if claim is not None:
        # The background thread may have ended: then the lease ends by itself.
        with suppress(DedupError, TimeoutError):
            claim.say(lambda held: asyncio.wait_for(settle(held.settlement), MENDING))


def sync_driver(transaction: Any) -> Driver:
    """Return the driver for a synchronous transaction."""
    driver = driver_of(transaction)
    if driver.is_async:
        raise UsageError(
            f"{type(transaction).__name__} is async: use Inbox of fastdedup.sql, or a synchronous connection"
        )
    return driver
