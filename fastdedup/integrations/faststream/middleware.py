"""`DedupMiddleware`: made once, it gives each subscriber its own consumer, and each message its `Processing`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any, Unpack
from weakref import WeakKeyDictionary

from ...errors import ConfigError
from ...gateway import Dedup
from ...messages.decisions import Counts
from ...messages.keys import KeyRule
from ...messages.settings import MessageSettings
from .brokers import broker_of
from .processing import Guarded, Processing
from .settings import GuardSettings


class DedupMiddleware:
    """Lets each subscriber's handler do its work once for each message, for any number of deliveries.

    Give it to a broker or a router: `RabbitBroker(middlewares=[DedupMiddleware(…)])`. It takes the acknowledgement
    over: with any `ack_policy` but ACK_FIRST, a message is acknowledged once it is done, tried again after
    `retry_delay` seconds if it was not, and becomes a dead letter after `attempts`. Give `lifespan(broker)` to the
    application, so that a wrong setup is found before the first message.

    Args:
        dedup: the gate, opened by `lifespan` unless it is open; None if an inbox decides alone.
        key: a function of FastStream's message: `message_id`, `offset`, `header("order-id")`, `body`, or your own.
        consumer: a name that comes before each subscriber's own, for services that share the gate's namespace and
            subscribe to the same thing.
        dead_letter: the place to publish dead letters to: a queue, topic, subject, stream or list, of the message's
            own kind. Without it RabbitMQ rejects the message, into its queue's dead-letter exchange, and JetStream
            terminates it; Kafka, Redis and core NATS need it, or `DISCARD`.
        keep_result: keep what the handler returns, and publish it again for a duplicate; with `remember=` it is kept
            for a minute.
        settings: those that all consumers have, see `fastdedup.messages.settings.MessageSettings`: inbox, begin,
            remember, resolve, wait, attempts, retry_delay, lease, fingerprint. A parameter `session: Transaction` of
            the handler gets the inbox's transaction. An inbox is one consumer, so the middleware then guards one
            subscriber: put others on routers with their own.

    Raises:
        ConfigError: a setting is wrong.
        TypeError: there is no such setting.
    """

    def __init__(
        self,
        dedup: Dedup | None,
        *,
        key: KeyRule,
        consumer: str = "",
        dead_letter: str | None = None,
        keep_result: bool = False,
        **settings: Unpack[MessageSettings],
    ) -> None:
        self._settings = GuardSettings(dedup, key, consumer, dead_letter, keep_result, settings)
        # Mutable: the subscribers met so far. Weak, because an application may make and end some while it runs.
        self._guarded: WeakKeyDictionary[Any, Guarded] = WeakKeyDictionary()

    def __call__(self, msg: Any, /, *, context: Any) -> Processing:
        """Return what handles one message; FastStream calls it."""
        return Processing(msg, context=context, find=self.guarded, settings=self._settings)

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
            inbox = self._settings.given.get("inbox")
            if inbox is not None and self._guarded:
                raise ConfigError(
                    f"the inbox {inbox.name!r} is one consumer, and this is its second subscriber: "
                    "put each on a router, with a DedupMiddleware and an inbox of its own"
                )
            self._only_one(subscriber)
            broker = broker_of(subscriber)
            broker.check(subscriber, self._settings)
            deliveries = self._settings.deliveries(broker.name_of(subscriber))
            if patience := broker.redelivers_after(subscriber):
                deliveries.check_memory(*patience)
            found = self._guarded[subscriber] = Guarded(broker, deliveries)
        return found

    @property
    def counts(self) -> dict[str, Counts]:
        """The outcomes of the deliveries so far, by the consumer's name."""
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
