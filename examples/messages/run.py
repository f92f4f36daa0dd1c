"""One run: its messages, and what is counted. Each way to deliver them gets one."""

from __future__ import annotations

import os
import random
from typing import Final

from .database import Payments

KILLS: Final = 5
"""How often a consumer is killed."""
DEADLINE: Final = 60.0
"""Seconds that the work may take; it takes a tenth of them."""


class MessageRun:
    """One run.

    Args:
        gate: the URL of the gate's store. Behind memory:// each consumer has a gate of its own.
        messages: how many.
        payments: the work that is done, in the database.
    """

    def __init__(self, gate: str, messages: int, payments: Payments) -> None:
        self.gate = gate
        self.namespace = f"messages-{os.urandom(4).hex()}"
        self.messages = [f"message-{number}" for number in range(messages)]
        self.payments = payments
        # Mutable: what the way counts.
        self.kills = 0
        self.duplicates = 0

    def deliveries(self) -> list[str]:
        """Return each message twice, in no order."""
        twice = self.messages * 2
        random.shuffle(twice)
        return twice

    def moments(self) -> list[int]:
        """Return when to kill: as so many messages are done."""
        count = len(self.messages)
        return sorted(random.sample(range(count), min(KILLS, count)))
