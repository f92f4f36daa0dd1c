"""The words of the contract: what a store keeps under a key, what it is asked, and what it replies.

Times are milliseconds since 1970, durations are milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

ISSUED, WORKING, WATCHED, SUCCEEDED, FAILED, RELEASED, MACHINE = "IPWSFRM"
HELD = (WORKING, WATCHED)
"""An owner is at work. WATCHED: another claimant waits, and hears of the end."""
SETTLED = (SUCCEEDED, FAILED)
MAX_ATTEMPT = 65_535
MAX_VERSION = 31 << 48
DAY_US = 86_400_000_000


class Record(NamedTuple):
    """What a store keeps under one key. A machine's record has its version as `fence` and its state as `result`."""

    state: str
    owner: bytes
    fence: int = 0
    attempt: int = 0
    until: int = 0
    """When the lease ends, or the result expires; 0 once the key was released."""
    expires: int = 0
    """When the record is gone."""
    fingerprint: bytes | None = None
    result: bytes = b""
    token: bool = False


class Reply(NamedTuple):
    """What the caller is told. `wakes`: the waiters of the key are told to ask again."""

    code: str
    fence: int = 0
    attempt: int = 0
    left: int = 0
    result: bytes = b""
    fresh: bool = True
    """False if an owner got its own claim back."""
    owner: bytes = b""
    """Of the record that the caller met, or replaced if it acquired the key."""
    former: int = 0
    """The fence of the record that was replaced."""
    record: Record | None = None
    settled: bool = False
    """An adoption has met a result."""
    wakes: bool = False


class Clock(NamedTuple):
    """The store's time: in microseconds, and the beginning and the end of the present millisecond."""

    us: int
    ms: int
    end: int


OK, LOST, ABSENT, FOREIGN = Reply("OK"), Reply("LOST"), Reply("ABSENT"), Reply("FOREIGN")


@dataclass(frozen=True, slots=True)
class Claim:
    """Ask for a key. `mode`: claim, redeem (only what was issued), or consume (redeem and succeed in one step)."""

    owner: bytes
    lease: int
    keep: int
    fingerprint: bytes | None = None
    mode: str = "claim"
    watch: bool = False


@dataclass(frozen=True, slots=True)
class Settle:
    """Complete or fail. `fence` 0, here and below: of any holding of this owner."""

    owner: bytes
    fence: int
    keep: int
    state: str = SUCCEEDED
    result: bytes = b""


@dataclass(frozen=True, slots=True)
class Release:
    """Free a key. `consumed`: also a token that this owner has consumed."""

    owner: bytes
    fence: int
    consumed: bool = False


@dataclass(frozen=True, slots=True)
class Renew:
    """Ask for a lease that runs from now."""

    owner: bytes
    fence: int
    lease: int
    keep: int


@dataclass(frozen=True, slots=True)
class Touch:
    """Let the record live for at least `keep` from now."""

    owner: bytes
    fence: int
    keep: int


@dataclass(frozen=True, slots=True)
class Issue:
    """Make a token. Its subject is its fingerprint."""

    issuer: bytes
    keep: int
    subject: bytes | None = None


@dataclass(frozen=True, slots=True)
class Transition:
    """Move a machine. `change` names this call; `again`: it was sent before and got no reply."""

    change: bytes
    to: bytes
    sources: frozenset[bytes]
    initial: bytes
    keep: int
    version: int | None = None
    again: bool = False


@dataclass(frozen=True, slots=True)
class Read:
    """Look at a record."""


@dataclass(frozen=True, slots=True)
class Forget:
    """Remove a record without asking for its owner."""


@dataclass(frozen=True, slots=True)
class Adopt:
    """Bring in a record that a policy has made while the store was out of reach.

    `left` and `keep`: for how long its lease and the record still live. `base`: the owner and the fence that the
    store had last, as far as the policy knows.
    """

    record: Record
    left: int
    keep: int
    base: tuple[bytes, int] | None = None
