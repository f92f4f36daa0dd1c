"""`DedupMiddleware`: made once, it gives each subscriber its own consumer, and each message its `Processing`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary

from ...admin.resolving import Check
from ...checks import Seconds, check_seconds
from ...errors import ConfigError
from ...gateway import Dedup
from ...ledger.client import Ledger
from ...messages.decisions import Counts
from ...messages.keys import KeyRule
from ...messages.rules import ATTEMPTS, WAIT
from ...sql.inbox import Inbox
from ...sql.once import Begin
from .guarded import Guarded
from .processing import Processing
from .settings import GuardSettings


class DedupMiddleware:
    """Lets each subscriber's handler do its work once for each message, however often the broker delivers it.

    Give it to a broker or a router: `RabbitBroker(middlewares=[DedupMiddleware(…)])`. It takes the acknowledgement
    over: whatever the subscriber's `ack_policy`, a message is acknowledged once it is done, tried again after
    `retry_delay` seconds where it was not, and becomes a dead letter after `attempts`. Give `lifespan(broker)` to the
    application, so that a wrong setup is found before the first message.

    Args:
        dedup: the gate, opened by `lifespan` unless it is open; None where an inbox decides alone.
        key: a function of FastStream's message: `message_id`, `offset`, `header("order-id")`, `body`, or your own.
        inbox: decides in the handler's own transaction, which a parameter `session: Transaction` gets. An inbox is
            one consumer, so the middleware then guards one subscriber: put others on routers with their own.
        begin: begins a transaction, such as `Session.begin`; by default the inbox's.
        consumer: a name that stands before each subscriber's own, for services that share the gate's namespace and
            subscribe to the same thing.
        wait: seconds to hold a message while another delivery of it is at work.
        attempts: how often the handler is begun for a message, crashes included.
        retry_delay: seconds until a message that was not done is tried again.
        dead_letter: where dead letters are published to: a queue, topic, subject, stream or list, as the message
            came. Without it RabbitMQ rejects the message, into its queue's dead-letter exchange, and JetStream
            terminates it; Kafka, Redis and core NATS need it, or `DISCARD`.
        fingerprint: a function of the message; another message with the same key is a dead letter.
        keep_result: keep what the handler returns, and publish it again for a duplicate.
        remember: the ledger in which the gate remembers what is done; without it each message's record stays. A
            result is then kept for a minute.
        resolve: an async function that is asked before the handler runs again, whether an earlier attempt did the
            work; see `Dedup.claim`. With a gate alone.

    Raises:
        ConfigError: a setting is wrong.
    """

    def __init__(
        self,
        dedup: Dedup | None,
        *,
        key: KeyRule,
        inbox: Inbox | None = None,
        begin: Begin | None = None,
        consumer: str = "",
        wait: Seconds = WAIT,
        attempts: int = ATTEMPTS,
        retry_delay: Seconds = 1.0,
        dead_letter: str | None = None,
        fingerprint: Callable[[Any], Any] | None = None,
        keep_result: bool = False,
        remember: Ledger | None = None,
        resolve: Check | None = None,
    ) -> None:
        if dead_letter is not None and (not isinstance(dead_letter, str) or not dead_letter):
            raise ConfigError(f"dead_letter= must be the name of a place to publish to, got {dead_letter!r}")
        self._settings = GuardSettings(
            dedup,
            key,
            inbox,
            begin,
            consumer,
            wait,
            attempts,
            check_seconds(retry_delay, "retry_delay", least=0.0),
            dead_letter,
            fingerprint,
            keep_result,
            remember,
            resolve,
        )
        Guarded.check_settings(self._settings)
        # Mutable: the subscribers met so far. Weak, as an application may make and end some while it runs.
        self._guarded: WeakKeyDictionary[Any, Guarded] = WeakKeyDictionary()

    def __call__(self, msg: Any, /, *, context: Any) -> Processing:
        """Return what handles one message; FastStream calls it."""
        return Processing(msg, context=context, find=self.guarded, retry_delay=self._settings.retry_delay)

    def lifespan(self, *brokers: Any) -> Callable[[], AbstractAsyncContextManager[None]]:
        """Return a lifespan for the application: it checks every subscriber, and opens the gate unless it is open.

        app = FastStream(broker, lifespan=guard.lifespan(broker))
        """

        @asynccontextmanager
        async def opened() -> AsyncIterator[None]:
            for broker in brokers:
                self.check(broker)
            dedup = self._settings.dedup
            try:
                async with nullcontext() if dedup is None or dedup.is_open else dedup:
                    yield
            finally:
                for each in self._guarded.values():
                    each.deliveries.end()

        return opened

    def check(self, broker: Any) -> None:
        """See that each subscriber of a broker that this middleware stands before can be guarded.

        Raises:
            ConfigError: one cannot; the message says why.
        """
        for subscriber in broker.subscribers:
            if self in subscriber._outer_config.broker_middlewares:
                self.guarded(subscriber)

    def guarded(self, subscriber: Any) -> Guarded:
        """Return a subscriber's consumer. Raises as `check`."""
        found = self._guarded.get(subscriber)
        if found is None:
            if self._settings.inbox is not None and self._guarded:
                raise ConfigError(
                    f"the inbox {self._settings.inbox.name!r} is one consumer, and this is its second subscriber: "
                    "put each on a router, with a DedupMiddleware and an inbox of its own"
                )
            self._only_one(subscriber)
            found = self._guarded[subscriber] = Guarded(subscriber, self._settings)
        return found

    @property
    def counts(self) -> dict[str, Counts]:
        """What came of the deliveries so far, by the consumer's name."""
        return {each.deliveries.rules.consumer: each.deliveries.counts for each in self._guarded.values()}

    @property
    def is_paused(self) -> bool:
        """True while messages are held for a store that does not answer."""
        return any(each.deliveries.is_paused for each in self._guarded.values())

    def _only_one(self, subscriber: Any) -> None:
        found = [
            each for each in subscriber._outer_config.broker_middlewares if isinstance(each, DedupMiddleware)
        ]
        if len(found) > 1:
            raise ConfigError(
                f"{len(found)} DedupMiddlewares stand before one subscriber, on its broker and its router, and would "
                "wait for each other: leave one"
            )
