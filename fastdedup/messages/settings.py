"""The settings that the consumers of all brokers have in common, each with its default."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, TypedDict

from ..admin.resolving import Check
from ..checks import Seconds
from ..gateway import Dedup
from ..ledger.client import Ledger
from ..sql.bridge import Begin
from ..sql.inbox import Inbox
from .deliveries import Deliveries
from .keys import KeyRule
from .rules import ATTEMPTS, WAIT, MessageRules

GRACE: Final = 30.0
"""Seconds that handlers get to end after `stop`, by default."""
RETRY_DELAY: Final = 1.0
"""Seconds until a message that was not done is delivered again, by default."""


class MessageSettings(TypedDict, total=False):
    """What decides on a message, beside the gate and `key=`. Each may be left out.

    Attributes:
        inbox: decides in the handler's own transaction; the handler is called with the transaction and the message.
        begin: begins a transaction, such as `Session.begin`; by default the inbox's.
        remember: the ledger in which the gate remembers what is done; without it each message's record stays.
        resolve: asked before the handler runs if an earlier attempt may have done the work, like `resolve=` of
            `Dedup.claim`; `Resolution.unknown()` dead-letters the message. With a gate and no inbox.
        wait: seconds to hold a message while another delivery of it is at work.
        attempts: how often the handler is begun for a message, crashes included.
        retry_delay: seconds until a message that was not done is tried again.
        lease: seconds after which another delivery may take a message whose process died; it is renewed meanwhile.
        fingerprint: a function of the message; another message with the same key is a dead letter.
    """

    inbox: Inbox | None
    begin: Begin | None
    remember: Ledger | None
    resolve: Check | None
    wait: Seconds | None
    attempts: int
    retry_delay: Seconds
    lease: Seconds | None
    fingerprint: Callable[[Any], Any] | None


class ConsumerSettings(MessageSettings, total=False):
    """What a `Consumer` of any broker takes beside what it consumes, the gate and `key=`. Each may be left out.

    Attributes:
        name: the consumer's name, by default the broker's own for it (its group, queue or subscription). Two
            consumers of one message both do their work.
        grace: seconds that handlers get to end after `stop`.
    """

    name: str | None
    grace: Seconds


def deliveries_of(
    name: str,
    dedup: Dedup | None,
    key: KeyRule,
    settings: ConsumerSettings,
    own: Iterable[str] = (),
    kind: type[MessageSettings] = ConsumerSettings,
    *,
    keep_result: bool = False,
) -> Deliveries:
    """Return what decides on a consumer's deliveries.

    Args:
        name: the consumer's name, if the settings have none.
        dedup: the gate; None if an inbox decides alone.
        key: a function of the message that returns its key, or None.
        settings: the consumer's.
        own: the names of the settings that it has beside them, for the error.
        kind: the settings that it may have.
        keep_result: see `MessageRules`.

    Raises:
        ConfigError: a setting is wrong; the message names it.
        TypeError: there is no such setting.
    """
    unknown = sorted(settings.keys() - kind.__annotations__)
    if unknown:
        known = ", ".join([*own, *kind.__annotations__])
        raise TypeError(f"the consumer has no setting {unknown[0]!r}; it has {known}")
    given = settings.get("name")
    rules = MessageRules(
        name if given is None else given,
        key,
        wait=settings.get("wait", WAIT),
        attempts=settings.get("attempts", ATTEMPTS),
        retry_delay=settings.get("retry_delay", RETRY_DELAY),
        lease=settings.get("lease"),
        fingerprint=settings.get("fingerprint"),
        keep_result=keep_result,
    )
    inbox, begin = settings.get("inbox"), settings.get("begin")
    return Deliveries(rules, dedup, inbox, begin, settings.get("remember"), settings.get("resolve"))
