"""`Deliveries`: one consumer's way from a delivery to its decision, for every broker.

What happens after a failure, by the part that failed:

    the gate does not answer       the message is held until it does; if there is an inbox, the inbox decides alone
    the database does not answer   the message is held until it does: no attempt is spent, nothing is delivered again
    the handler                    the key is free after the delay, and the message is delivered again; after the last
                                   attempt it is a dead letter, and a failure
    the COMMIT's reply             the message is held, and the consumer asks the inbox again, which knows
    this process                   the lease ends, and the next delivery is one more attempt
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ..admin.resolving import Check, check_resolve
from ..checks import check_takes, is_async
from ..errors import ConfigError, ForeignRecordError, InvalidKeyError, describe_error
from ..events import ConsumerEnded, emit
from ..gateway import Dedup
from ..ledger.client import Ledger
from ..log_throttle import LogThrottle
from ..sql.bridge import Begin
from ..sql.inbox import Inbox
from .decisions import Action, Counts, Decision, Reason, log
from .delivery import Delivery, Handler, Lay
from .failed_attempts import FailedAttempts
from .gated import GatedWay
from .holding import HeldMessage, Pauses
from .in_inbox import InboxWay
from .memory import check_ledger, check_memory, seconds_known
from .rules import MessageRules


class Deliveries:
    """Decides on the deliveries of one consumer.

    Args:
        rules: the consumer's settings.
        dedup: the gate; None if the inbox decides alone.
        inbox: decides in the handler's own transaction.
        begin: begins a transaction; by default the inbox's.
        remember: the ledger in which the gate remembers the messages that are done.
        resolve: asked before the handler runs again, whether the work was done; see `Dedup.claim`.
        logs_attempts: log each attempt that fails; False if the caller logs them.

    Raises:
        ConfigError: there is neither gate nor inbox, one is of another kind, nothing begins a transaction, or
            there is none to begin.
    """

    def __init__(
        self,
        rules: MessageRules,
        dedup: Dedup | None,
        inbox: Inbox | None = None,
        begin: Begin | None = None,
        remember: Ledger | None = None,
        resolve: Check | None = None,
        *,
        logs_attempts: bool = True,
    ) -> None:
        if dedup is not None and not isinstance(dedup, Dedup):
            raise ConfigError(f"dedup must be a fastdedup.Dedup, got {type(dedup).__name__}")
        if inbox is not None and not isinstance(inbox, Inbox):
            raise ConfigError(f"inbox must be a fastdedup.sql.Inbox, got {type(inbox).__name__}")
        if begin is not None and inbox is None:
            raise ConfigError("begin= begins an inbox's transaction: give inbox= too, or leave begin= out")
        if remember is not None and inbox is not None:
            raise ConfigError("with an inbox, its table remembers the messages: leave remember= out")
        if dedup is not None:
            check_ledger(remember, Ledger, dedup.gate.connection, dedup.settings.namespace)
        if resolve is not None:
            check_resolve(resolve)
            if inbox is not None or dedup is None:
                raise ConfigError("resolve goes with a gate alone: an inbox's row says what was done")
        self.rules = rules
        self._remember = remember
        self.counts = Counts()
        self._dedup = dedup
        self._inbox = inbox
        self._on_event = None if dedup is None else dedup.gate.connection.report
        self._pauses = Pauses(rules.consumer, self.counts, self._on_event)
        self._failed_attempts = FailedAttempts(rules, is_silent=not logs_attempts)
        self._unlaid = LogThrottle()
        self._broker_away = HeldMessage(self._pauses)
        # Mutable: the handler that was checked last.
        self._handler: Handler | None = None
        self._way: GatedWay | InboxWay
        if inbox is not None:
            self._way = InboxWay(
                rules, dedup, inbox, inbox.beginning(begin), self._pauses, self._failed_attempts
            )
        elif dedup is not None:
            self._way = GatedWay(rules, dedup, self._pauses, self._failed_attempts, remember, resolve)
        else:
            raise ConfigError("a consumer needs a gate, an inbox, or both: dedup= and inbox= are None")

    def check_handler(self, handler: Any) -> Handler:
        """Return a handler, if it is async and takes what it is called with.

        Raises:
            ConfigError: it is not async, or does not take the message alone, or with an inbox the transaction and
                the message.
        """
        if not is_async(handler):
            raise ConfigError(f"the handler must be async def, got {handler!r}")
        if handler != self._handler:  # a poller gives it with each message, and to read a signature is slow
            transaction = () if self._inbox is None else ("the transaction",)
            check_takes(handler, "the handler", *transaction, "the message")
            self._handler = handler
        return handler  # type: ignore[no-any-return]

    def check_memory(self, seconds: float, setting: str) -> None:
        """Check that a finished message stays known for as long as the broker may take to deliver it again.

        Args:
            seconds: how long the broker waits for an ack.
            setting: the broker's own name for that.

        Raises:
            ConfigError: the inbox forgets the message first, or the gate if there is no inbox.
        """
        if self._inbox is not None:
            keep = self._inbox.rules.keep
            check_memory(keep, seconds, setting, "the inbox keeps its row", "keep= of the Inbox")
        elif self._dedup is not None:
            check_memory(seconds_known(self._dedup, self._remember), seconds, setting)

    def follow(self, timeout: float) -> None:
        """Let a process that died hold a message no longer than its broker does, unless `lease=` says how long.

        A timeout that is renewed at each third of it has two thirds left at least when the process dies.

        Args:
            timeout: seconds after which the broker delivers a message of such a process again.
        """
        lease = timeout * 2 / 3
        if self._dedup is not None and self.rules.lease is None and lease < self._dedup.settings.lease:
            self._way.hold_for(lease)

    def check_open(self) -> None:
        """Check that the gate, if there is one, is open in this event loop.

        Raises:
            UsageError: the gate is not open.
        """
        if self._dedup is not None:
            self._dedup.gate.connection.running_engine()

    @property
    def is_paused(self) -> bool:
        """True while a message waits for a store that does not answer, or while the broker does not answer."""
        return self._pauses.is_paused

    def broker_is_away(self, reason: str) -> None:
        """Pause the consumer, because its broker does not answer. A second call changes nothing."""
        self._broker_away.begin(reason)

    def broker_is_back(self) -> None:
        """End what `broker_is_away` began, if it did."""
        self._broker_away.end()

    def end(self) -> None:
        """End the consumer's pause, and log how many attempts failed without a log line of their own."""
        self._failed_attempts.tell_count()
        self.broker_is_back()

    def tell_end(self, error: BaseException) -> None:
        """Tell that an error has ended the consumer."""
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        reason = describe_error(error)
        log.error("consumer %r has ended, and takes no more messages: %s", self.rules.consumer, reason)
        emit(self._on_event, ConsumerEnded(self.rules.consumer, reason))

    async def lay_at_last(
        self,
        publish: Callable[[], Awaitable[None]],
        pause: Callable[[], Awaitable[None]],
        is_lost: Callable[[Exception], bool] = lambda error: False,
    ) -> None:
        """Publish a dead letter as soon as the broker takes it: the next delivery would not know its cause.

        The message's key stays claimed until then.

        Args:
            publish: publishes it; returns once the broker has confirmed it.
            pause: waits before the next try, or raises if there is no next one.
            is_lost: whether the broker delivers the message again after an error of `publish`, which is raised then.
        """
        while True:
            try:
                return await publish()
            except Exception as error:
                if is_lost(error):
                    raise
                if self._unlaid.passes():
                    log.error("consumer %r cannot lay a dead letter down: %r", self.rules.consumer, error)
            await pause()

    async def handle(
        self,
        message: Any,
        handler: Handler,
        lay: Lay,
        *,
        failed: int = 0,
        again: bool = False,
        is_cancelled: Callable[[], bool] | None = None,
    ) -> Decision:
        """Do the work of a delivery if it is the first; return the decision, which the broker gets.

        Args:
            message: the broker's message, in the form that the rule for its key takes.
            handler: called with the message; with an inbox called with the transaction and the message.
            lay: publishes the message as a dead letter; awaited before a decision DEAD_LETTER is returned.
            failed: the attempts that the message's own headers count.
            again: an operator has taken it from the dead letters: work on it though it has failed for good.
            is_cancelled: returns whether the running task was cancelled by its consumer, or with it: any other
                cancellation is a failed attempt. None if the task is a framework's: each cancellation ends it.

        Raises:
            ConfigError, UsageError: the gate or the inbox is set up wrongly, or is not open.
            any error of `lay`: the message is not settled, so the broker shall deliver it again.
        """
        self.counts.delivered += 1
        delivery = Delivery(
            self.rules.consumer, "", None, message, handler, lay, failed, again, self._on_event, is_cancelled
        )
        try:
            delivery.key = self.rules.key_of(message)
            delivery.mark = self.rules.mark_of(message)
            decision = await self._way.decide(delivery)
        except (InvalidKeyError, ForeignRecordError) as error:
            decision = self.rules.without_key(error, delivery.key or None)
        if decision.reason is Reason.IN_PROGRESS:
            await asyncio.sleep(self.rules.twin_pause)
        if decision.action is Action.DEAD_LETTER:
            await delivery.bury(decision)
        self.counts.count(decision)
        return decision
