"""The settings of a `DedupMiddleware`, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from ...admin.resolving import Check
from ...checks import check_seconds
from ...gateway import Dedup
from ...ledger.client import Ledger
from ...messages.keys import KeyRule
from ...messages.rules import MessageRules
from ...sql.inbox import Inbox
from ...sql.once import Begin

DISCARD: Final = "fastdedup:discard"
"""Given as `dead_letter=`: a dead letter is logged and acknowledged, and lies nowhere."""
TRANSACTION: Final = "transaction"
"""The name of the inbox's transaction in FastStream's context."""
DeadLetter = str | Literal["fastdedup:discard"] | None


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """What a `DedupMiddleware` was given; see there."""

    dedup: Dedup | None
    key: KeyRule
    inbox: Inbox | None
    begin: Begin | None
    consumer: str
    wait: Any
    attempts: int
    retry_delay: float
    dead_letter: str | None
    fingerprint: Any
    keep_result: bool
    remember: Ledger | None
    resolve: Check | None

    @property
    def destination(self) -> str | None:
        """Where dead letters are published to; None where they are not."""
        return None if self.dead_letter == DISCARD else self.dead_letter

    @property
    def held(self) -> float:
        """Seconds for which a message is held in place while another delivery of it is at work."""
        return check_seconds(self.wait, "wait", least=0.0) + self.retry_delay

    def rules(self, consumer: str) -> MessageRules:
        """Return the rules of one subscriber.

        Raises:
            ConfigError: a setting is wrong.
        """
        return MessageRules(
            f"{self.consumer}/{consumer}" if self.consumer else consumer,
            self.key,
            wait=self.wait,
            attempts=self.attempts,
            retry_delay=self.retry_delay,
            fingerprint=self.fingerprint,
            keep_result=self.keep_result,
        )
