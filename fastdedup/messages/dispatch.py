"""The door for a queue that has no consumer here: a message and a handler in, what to tell the queue out.

    orders = Dispatcher("orders", dedup, key=lambda message: message["id"])
    disposition = await orders.dispatch(message, on_order)

Main path: `Dispatcher.dispatch` → `Deliveries.handle`; `SyncDispatcher.dispatch` → `BlockingWay.begin`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Unpack

from ..checks import Seconds, check_count, check_flag, check_takes, is_async
from ..errors import ConfigError, UsageError
from ..gateway import Dedup
from ..sync.gateway import Dedup as SyncDedup
from ..sync.ledger import Ledger as SyncLedger
from ..sync.once import check_done
from ..sync.resolving import SyncCheck
from .blocking import WAIT, Attempt, BlockingWay, check_gate
from .decisions import Action, Counts, Decision, Reason
from .delivery import Handler, lay_nothing
from .keys import KeyRule
from .rules import ATTEMPTS, MessageRules
from .settings import RETRY_DELAY, MessageSettings, deliveries_of

__all__ = ["Dispatcher", "Disposition", "SyncDispatcher"]


@dataclass(frozen=True, slots=True)
class Disposition(Decision):
    """What to tell the queue about a message, and why.

    `action` is ACK (delete the message), RETRY (let it come again after `retry_after` seconds) or DEAD_LETTER (lay it
    down elsewhere, then delete it). A message that failed for good is DEAD_LETTER at each delivery, so a poller that
    dies before it has laid the message down loses nothing.

    Attributes:
        retry_after: seconds until the message shall come again; 0.0 unless the action is RETRY.
    """

    retry_after: float = 0.0


def _disposition(decision: Decision, rules: MessageRules) -> Disposition:
    facts = {each.name: getattr(decision, each.name) for each in fields(Decision)}
    if decision.action is Action.ACK and decision.reason is Reason.DUPLICATE and decision.error is not None:
        facts["action"] = Action.DEAD_LETTER  # the poller lays it down, and may have died before it did
    delay = rules.retry_delay if decision.action is Action.RETRY else 0.0
    return Disposition(**facts, retry_after=delay)


class Dispatcher:
    """Decides on the messages of one queue; the handler's work is done once for each message.

    Args:
        name: the consumer's name: one text for all processes that share its work. Two consumers of one message both
            do their work.
        dedup: the gate, open before the first message; None if an inbox decides alone.
        key: a function of the message that returns its key, or None.
        settings: see `fastdedup.messages.settings.MessageSettings`: inbox, begin, remember, resolve, wait, attempts,
            retry_delay, lease, fingerprint.

    Raises:
        ConfigError: a setting is wrong; the message names it.
        TypeError: there is no such setting.
    """

    def __init__(
        self, name: str, dedup: Dedup | None, *, key: KeyRule, **settings: Unpack[MessageSettings]
    ) -> None:
        given: Any = settings
        self._deliveries = deliveries_of(name, dedup, key, given, ["key"], MessageSettings)
        self.name = name

    @property
    def counts(self) -> Counts:
        """The outcomes so far."""
        return self._deliveries.counts

    def check_memory(self, seconds: float, setting: str) -> None:
        """Check that a message that is done stays known for as long as the queue may deliver it again.

        Args:
            seconds: how long the queue waits for an ack, or keeps a message.
            setting: the queue's own name for that, for the error.

        Raises:
            ConfigError: the gate, or the inbox, forgets the message first.
        """
        self._deliveries.check_memory(seconds, setting)

    async def dispatch(
        self, message: Any, handler: Handler, *, failed: int = 0, again: bool = False
    ) -> Disposition:
        """Do the work of a message if this is its first delivery; return what to tell the queue.

        The message is held, and nothing returned, while another delivery is at work (for `wait` seconds) and while
        the store does not answer. If the call is cancelled, so is the handler, and the key is free again.

        Args:
            message: as the rule for its key takes it.
            handler: an async function of the message; with an inbox, of the transaction and the message.
            failed: the attempts that the queue has counted, for an inbox without a gate, which counts none.
            again: an operator has taken it from the dead letters: work on it though it has failed for good.

        Raises:
            ConfigError: the gate or the inbox is set up wrongly; the handler is not async, or takes other arguments;
                `failed` is no count.
            UsageError: the gate or the inbox is not open.
        """
        self._deliveries.check_handler(handler)
        check_count(failed, "failed", least=0)
        check_flag(again, "again")
        decision = await self._deliveries.handle(message, handler, lay_nothing, failed=failed, again=again)
        return _disposition(decision, self._deliveries.rules)


class SyncDispatcher:
    """The `Dispatcher` of code that blocks: with a gate of `fastdedup.sync`, and without an inbox.

    The message is held for 5 s at most while the store does not answer; then it is to come again.

    Args:
        name: the consumer's name.
        dedup: the gate.
        key: a function of the message that returns its key, or None.
        wait: seconds to hold a message while another delivery of it is at work.
        attempts: how often the handler is begun for a message, crashes included.
        retry_delay: seconds until a message that was not done shall come again.
        lease: seconds after which another delivery may take a message whose process died; it is renewed meanwhile.
        fingerprint: a function of the message; another message with the same key is a dead letter.
        remember: the ledger in which the gate remembers what is done.
        resolve: asked before the handler runs if an earlier attempt may have done the work.
        inbox: refused, because only the `Dispatcher` of asyncio works with one.

    Raises:
        ConfigError: a setting is wrong; the message names it.
    """

    def __init__(
        self,
        name: str,
        dedup: SyncDedup,
        *,
        key: KeyRule,
        wait: Seconds | None = WAIT,
        attempts: int = ATTEMPTS,
        retry_delay: Seconds = RETRY_DELAY,
        lease: Seconds | None = None,
        fingerprint: Callable[[Any], Any] | None = None,
        remember: SyncLedger | None = None,
        resolve: SyncCheck | None = None,
        inbox: None = None,
    ) -> None:
        if inbox is not None:
            raise ConfigError(
                "SyncDispatcher takes no inbox: decorate the work by Inbox.once(…, gate=dedup), which needs no "
                "dispatcher, or use the Dispatcher of asyncio"
            )
        self._rules = MessageRules(
            name,
            key,
            wait=WAIT if wait is None else wait,
            attempts=attempts,
            retry_delay=retry_delay,
            lease=lease,
            fingerprint=fingerprint,
        )
        self._way = BlockingWay(self._rules, check_gate(dedup), remember=remember, resolve=resolve)
        self.name = name
        self.counts = Counts()
        # Mutable: the handler that was checked last.
        self._handler: Callable[[Any], Any] | None = None

    def dispatch(
        self, message: Any, handler: Callable[[Any], Any], *, failed: int = 0, again: bool = False
    ) -> Disposition:
        """Do the work of a message if this is its first delivery; return what to tell the queue.

        Args:
            message: as the rule for its key takes it.
            handler: a function of the message.
            failed: the attempts that the queue has counted, if they are to count here.
            again: an operator has taken it from the dead letters: work on it though it has failed for good.

        Raises:
            ConfigError: the gate is set up wrongly; the handler is async, or takes other arguments; `failed` is no
                count.
            UsageError: the gate is not open; the handler returned a coroutine, so its work is not done.
        """
        if not callable(handler) or is_async(handler):
            raise ConfigError(f"the handler must be a plain function, not async, got {handler!r}")
        if handler != self._handler:  # to read a signature is slow
            check_takes(handler, "the handler", "the message")
            self._handler = handler
        check_count(failed, "failed", least=0)  # after the claim, an error would leave it held and renewed
        check_flag(again, "again")
        self.counts.delivered += 1
        found = self._way.begin(message, failed=failed, again=again)
        decision = found if isinstance(found, Decision) else self._work(found, message, handler)
        if decision.reason is Reason.IN_PROGRESS:
            time.sleep(self._rules.twin_pause)
        self.counts.count(decision)
        return _disposition(decision, self._rules)

    def _work(self, attempt: Attempt, message: Any, handler: Callable[[Any], Any]) -> Decision:
        try:
            result = attempt.result_of(lambda: handler(message))
        except Exception as error:  # noqa: BLE001 -- an attempt that failed, whatever it is
            self._way.failed_attempts.tell(attempt.key, attempt.number, error)
            return attempt.fail(error)
        except BaseException:
            attempt.free()
            raise
        try:
            check_done(handler, result)
        except UsageError:
            attempt.free()
            raise
        return attempt.succeed(result)
