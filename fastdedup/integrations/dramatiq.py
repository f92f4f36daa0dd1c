"""`DedupMiddleware`: Dramatiq actors that do their work once for each key, for any number of messages and deliveries.

Main path: `before_process_message` → `BlockingWay.begin` → the actor → `after_process_message` → `Attempt.succeed`.
Dramatiq logs the error of a hook and goes on to the actor, except for SkipMessage: so every way out here is that one.
"""

from __future__ import annotations

import base64
import functools
import inspect
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from ..checks import Seconds
from ..downstream import enter, leave
from ..errors import ConfigError
from ..extras import needs
from ..messages.blocking import WAIT, Attempt, BlockingWay, check_gate
from ..messages.decisions import Action, Decision, log
from ..messages.keys import of_arguments
from ..messages.memory import check_broker, check_ledger, seconds_known
from ..messages.rules import MessageRules
from ..sync.gateway import Dedup
from ..sync.ledger import Ledger

with needs(__name__, "Dramatiq", "'fastdedup[dramatiq]'"):
    from dramatiq import JSONEncoder, Middleware, get_encoder
    from dramatiq.middleware import MiddlewareError, Retries, SkipMessage
    from dramatiq.results import ResultMissing, Results

ATTEMPTS: Final = 25
"""How often an actor is begun for a key, by default: more than Dramatiq's own 20 retries, which come first."""
_HELD: Final = "fastdedup_held"
_PACKED: Final = "fastdedup_base64"
"""The name of a result that an encoder of Dramatiq has encoded."""


class ActorOptionError(ConfigError, MiddlewareError):
    """An actor's option is wrong. Dramatiq raises it because it is a MiddlewareError."""


def message_id(message: Any) -> str:
    """The rule `dedup_key=message_id`: Dramatiq keeps a message's id in retries and redeliveries."""
    return str(message.message_id)


class DedupMiddleware(Middleware):
    """Runs the actors that have the option `dedup_key` once for each key.

        broker.add_middleware(DedupMiddleware(dedup))

        @dramatiq.actor(dedup_key=lambda order_id: f"order:{order_id}")
        def charge(order_id): ...

    A message whose key is done gives the first result to Results and pipelines. A message whose key is at work
    elsewhere comes again later, and spends no retry. An exception frees the key, and the middleware Retries decides
    on a retry.

    Options of an actor:
        dedup_key: a function of its arguments, called with those that it names; or `message_id`.
        dedup_fingerprint: a function of its arguments; another message with the same key and another fingerprint
            is dead-lettered.
        dedup_attempts: how often it is begun for a key, crashes included; then the message is dead-lettered.
        dedup_resolve: a function that is not async, called with a `Takeover` before the actor runs again, for example
            after a crash or a retry: it says whether an earlier attempt has done the work; see
            `fastdedup.sync.Dedup.claim`. "done" gives the message its result, and "unknown" dead-letters it. An error
            of the function is an attempt that failed: the message comes again later, and spends no retry of
            Dramatiq's.

    Args:
        dedup: the gate.
        wait: seconds to wait in a worker's thread for a twin at work.
        attempts: `dedup_attempts` of actors that set none.
        remember: the ledger in which the gate remembers finished messages; without it each message's record stays. A
            duplicate that comes more than a minute later then has the result None.

    Raises:
        ConfigError: `dedup` or `remember` is of another kind.
    """

    def __init__(
        self,
        dedup: Dedup,
        *,
        wait: Seconds | None = WAIT,
        attempts: int = ATTEMPTS,
        remember: Ledger | None = None,
    ) -> None:
        self._dedup = check_gate(dedup)
        check_ledger(remember, Ledger, self._dedup.per_process, self._dedup.settings.namespace)
        self._remember = remember
        self._wait = WAIT if wait is None else wait
        self._attempts = attempts
        self._ways: dict[str, BlockingWay] = {}
        # Mutable, in each worker's thread: the attempt at its message, or the result in place of the actor's; whether
        # the message is a dead letter.
        self._here = threading.local()

    @property
    def actor_options(self) -> set[str]:
        """The options that an actor may have."""
        return {"dedup_key", "dedup_fingerprint", "dedup_attempts", "dedup_resolve"}

    def before_declare_actor(self, broker: Any, actor: Any) -> None:
        """Check the options of an actor, and let a duplicate's result replace its own.

        Raises:
            ActorOptionError: an option is wrong; the middleware Retries comes later; or the broker may deliver a
                message again after the gate has forgotten its key.
        """
        if "dedup_key" not in actor.options:
            return
        retries = [each for each in broker.middleware if isinstance(each, Retries)]
        try:
            if any(each in retries for each in broker.middleware[broker.middleware.index(self) :]):
                raise ConfigError("Retries must stand before DedupMiddleware, or it sends dead letters again")
            rules = self._rules(actor)
            check_broker(
                seconds_known(self._dedup, self._remember),
                broker,
                "dramatiq.brokers.redis",
                "heartbeat_timeout",
            )
            resolve = actor.options.get("dedup_resolve")
            way = BlockingWay(rules, self._dedup, "actor", remember=self._remember, resolve=resolve)
        except ConfigError as error:
            raise ActorOptionError(f"actor {actor.actor_name!r}: {error}") from None
        self._ways[actor.actor_name] = way
        actor.fn = self._or_replayed(actor.fn)
        of_retries = (each.retry_when for each in retries)
        if retry_when := actor.options.get("retry_when") or next(of_retries, None):
            actor.options["retry_when"] = self._unless_dead(retry_when)

    def before_process_message(self, broker: Any, message: Any) -> None:
        """Let the actor run if this message is the first.

        Raises:
            SkipMessage: it is not the first, and there is no result to pass on.
        """
        self._forget()
        way = self._ways.get(message.actor_name)
        if way is None or message.failed:
            return
        call, failed = (message, message.args, message.kwargs), message.options.get("retries", 0)
        found = way.begin(call, failed=failed)
        while isinstance(found, Decision):
            if found.action is Action.RETRY and not self._deliver_later(broker, way, message, found):
                found = way.begin(call, failed=failed)
                continue
            self._replay_or_skip(broker, message, found)
            return
        self._here.attempt = found
        if found.done is not None:
            self._here.replay = found.done
        self._here.work = enter(found.claim.asynchronous.settlement.store_key, found.claim)

    def after_process_message(
        self, broker: Any, message: Any, *, result: Any = None, exception: BaseException | None = None
    ) -> None:
        """Settle the attempt that `before_process_message` has begun."""
        attempt: Attempt | None = getattr(self._here, "attempt", None)
        self._forget()
        if attempt is None:
            return
        if exception is None:
            attempt.succeed(result, functools.partial(_packed, _encoder_of(broker)))
        elif attempt.fail(exception).action is Action.DEAD_LETTER:
            message.fail()
            # Else Retries, which comes next, enqueues it too. If it asks `retry_when`, `_unless_dead` answers.
            message.options["max_retries"] = 0
            self._here.is_dead = True

    def after_skip_message(self, broker: Any, message: Any) -> None:
        """Free the key of a message that another middleware has skipped."""
        attempt: Attempt | None = getattr(self._here, "attempt", None)
        self._forget()
        if attempt is not None:
            attempt.free()

    def _rules(self, actor: Any) -> MessageRules:
        key, mark = actor.options["dedup_key"], actor.options.get("dedup_fingerprint")
        signature = inspect.signature(actor.fn)
        return MessageRules(
            actor.actor_name,
            (lambda call: message_id(call[0]))
            if key is message_id
            else of_arguments(key, signature, "dedup_key"),
            wait=self._wait,
            attempts=actor.options.get("dedup_attempts", self._attempts),
            fingerprint=None if mark is None else of_arguments(mark, signature, "dedup_fingerprint"),
            keep_result=True,
        )

    def _deliver_later(self, broker: Any, way: BlockingWay, message: Any, decision: Decision) -> bool:
        """Enqueue a message again; return False, a moment later, if the broker does not take it."""
        held = message.options.get(_HELD, 0)
        delay = round(way.delay(decision, held) * 1000)
        again = message.copy(options={_HELD: held + 1})
        is_sent = way.deliver_later(lambda: broker.enqueue(again, delay=delay))
        if is_sent:
            log.info(
                "actor %r: a message comes again in %d ms: %s", message.actor_name, delay, decision.reason
            )
        return is_sent

    def _replay_or_skip(self, broker: Any, message: Any, decision: Decision) -> None:
        if decision.action is Action.ACK and decision.error is None:
            try:
                self._here.replay = (_unpacked(decision.result, _encoder_of(broker)),)
                return
            except Exception as error:  # noqa: BLE001 -- the encoder's, of a class that has a new name
                decision = replace(decision, error=error)
        if decision.action is Action.DEAD_LETTER:
            message.fail()
        else:
            if decision.action is Action.ACK:
                _store_error(broker, message, decision.error)
            message.options["store_results"] = False  # else Results would store None for the message's id
        raise SkipMessage(f"{decision.reason}: {decision.error or decision.key}")

    def _or_replayed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            replay: tuple[Any] | None = self._here.__dict__.pop("replay", None)
            return function(*args, **kwargs) if replay is None else replay[0]

        return run

    def _unless_dead(self, retry_when: Callable[..., bool]) -> Callable[..., bool]:
        return lambda *args: not getattr(self._here, "is_dead", False) and retry_when(*args)

    def _forget(self) -> None:
        leave(getattr(self._here, "work", None))
        self._here.__dict__.clear()


def _encoder_of(broker: Any) -> Any:
    """Return the encoder of results, which first callers get through it."""
    kept = (each.backend.encoder for each in broker.middleware if isinstance(each, Results))
    return next(kept, None) or get_encoder()


def _store_error(broker: Any, message: Any, error: BaseException | None) -> None:
    """Store why a duplicate has no result, unless its message has one: its caller would wait until a timeout."""
    results: Any = next((each for each in broker.middleware if isinstance(each, Results)), None)
    with suppress(Exception):  # there are no Results, there is one already, or their backend does not answer
        try:
            results.backend.get_result(message)
        except ResultMissing:
            message.stuff_exception(error)
            message.fail()  # until its error is stored: the message itself is acknowledged
            results.after_nack(broker, message)
    message.failed = False


def _packed(encoder: Any, result: Any) -> Any:
    """Return a result in its kept form: encoded unless it is kept as JSON. So a duplicate's caller gets its types."""
    if result is None or type(encoder) is JSONEncoder:
        return result
    return {_PACKED: base64.b64encode(encoder.encode({_PACKED: result})).decode()}


def _unpacked(kept: Any, encoder: Any) -> Any:
    if isinstance(kept, dict) and _PACKED in kept:
        return encoder.decode(base64.b64decode(kept[_PACKED]))[_PACKED]
    return kept
