"""The settings that claims of one kind have in common: a batch states them once."""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache


class Mode(StrEnum):
    """The ways to claim a key."""

    CLAIM = "claim"
    REDEEM = "redeem"
    """Claim only a key that was issued."""
    CONSUME = "consume"
    """Redeem a key and record its success in one step."""


class Terms:
    """The settings that claims share; a batch states them once. Compared by identity: make them with `terms()`."""

    __slots__ = (
        "consumes",
        "header",
        "keep_ms",
        "lease_ms",
        "mode",
        "redeems",
        "remembered",
        "shared",
        "ttl_ms",
        "watch",
    )

    def __init__(
        self, mode: Mode, lease_ms: int, keep_ms: int, watch: bool, remembered: bool = False
    ) -> None:
        self.mode = mode
        self.lease_ms = lease_ms
        self.keep_ms = keep_ms
        """The time for which the record lives: longer than the lease, so that a takeover counts attempts."""
        self.ttl_ms = keep_ms - lease_ms
        """A claim's own ttl: the time for which the record stays after the lease."""
        self.watch = watch
        """The claimant waits: the operation that frees or settles the key must publish that."""
        # Looked up once here: naming an enum's member costs 50 ns, and a claim would do so several times.
        self.consumes = mode is Mode.CONSUME
        self.redeems = mode is Mode.REDEEM
        self.shared = mode is Mode.CLAIM and not remembered
        """Equal concurrent claims may share one operation; each use of a token needs an answer of its own.

        Also False for claims whose success a ledger remembers: these share one in another way, so that plain claims
        need no check for them.
        """
        self.remembered = remembered
        """A ledger remembers the success: these are the terms of a claim with `unless`."""
        self.header = (str(lease_ms), str(keep_ms), mode.value, "1" if watch else "0")


terms = lru_cache(maxsize=4096)(Terms)
