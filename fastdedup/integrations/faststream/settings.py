"""The settings of a `DedupMiddleware`, checked once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from ...checks import check_place
from ...gateway import Dedup
from ...messages.deliveries import Deliveries
from ...messages.keys import KeyRule
from ...messages.rules import MessageRules
from ...messages.settings import MessageSettings, deliveries_of
from .results import keeping

DISCARD: Final = "fastdedup:discard"
"""Given as `dead_letter=`: a dead letter is logged and acknowledged, and lies nowhere."""
TRANSACTION: Final = "transaction"
"""The name of the inbox's transaction in FastStream's context."""


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """The arguments of a `DedupMiddleware`; see there.

    Raises:
        ConfigError: a setting is wrong.
        TypeError: there is no such setting.
    """

    dedup: Dedup | None
    key: KeyRule
    consumer: str
    dead_letter: str | None
    keep_result: bool
    given: MessageSettings
    rules: MessageRules = field(init=False)
    """The checked settings, but for the consumer's name."""

    def __post_init__(self) -> None:
        if self.dead_letter is not None:
            check_place(self.dead_letter, "dead_letter", "the name of a place to publish to")
        object.__setattr__(self, "rules", self.deliveries("any").rules)

    @property
    def destination(self) -> str | None:
        """The place that dead letters are published to; None if they are not published."""
        return None if self.dead_letter == DISCARD else self.dead_letter

    def deliveries(self, consumer: str) -> Deliveries:
        """Return what decides on the deliveries of one subscriber."""
        name = f"{self.consumer}/{consumer}" if self.consumer else consumer
        given: Any = dict(self.given)
        if given.get("resolve") is not None:
            given["resolve"] = keeping(given["resolve"])
        own = ("key", "consumer", "dead_letter", "keep_result")
        return deliveries_of(
            name, self.dedup, self.key, given, own, MessageSettings, keep_result=self.keep_result
        )
