"""A takeover, and what may be answered to it: what `resolve=` is asked, and says."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ..codec import described
from ..downstream import downstream_key


@dataclass(frozen=True, slots=True)
class Takeover:
    """A key that was held before, by an owner that may have done the work and died. What `resolve=` is asked about.

    Attributes:
        key: the key; a token's digest.
        attempt: how often the key was acquired, this time included; for a message how often its work was begun.
        fence: the present owner's fence.
        last_owner: the owner before; None where that is not known, because the first reply to this claim was lost, or
            the store has forgotten the key and only a message's own count tells of attempts before.
        last_fence: the fence of the owner before, or None.
        last_holder: who that was, as `Dedup(holder=…)` wrote it, or None.
        wire: the claim's key in the store, from which `downstream` makes keys; without it, as in a test, from `key`.
    """

    key: str
    attempt: int
    fence: int
    last_owner: str | None = field(default=None, repr=False)
    last_fence: int | None = None
    last_holder: str | None = None
    wire: bytes = field(default=b"", repr=False, compare=False)

    def downstream(self, name: str) -> str:
        """Return the idempotency key of a call that the work makes, as `claim.downstream(name)` does within the work.

        It is what an earlier attempt has sent, so a next hop that can be asked by key tells what became of that call.

        Raises:
            InvalidKeyError: the name is empty, longer than 1,024 characters, or no text.
        """
        return downstream_key(self.wire or self.key.encode(), name)


class Resolved(StrEnum):
    """The kinds of answers to a takeover."""

    DONE = "done"
    NOT_DONE = "not_done"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Resolution:
    """The answer to a takeover, made by `done`, `not_done` or `unknown`.

    Attributes:
        kind: which of these.
        value: the result, or the error.
    """

    kind: Resolved
    value: Any = None

    @classmethod
    def done(cls, result: Any = None) -> Resolution:
        """Return "the work was done, with this result": the claim succeeds with it, and everybody gets it."""
        return cls(Resolved.DONE, result)

    @classmethod
    def not_done(cls) -> Resolution:
        """Return "the work was not done": the new owner does it."""
        return cls(Resolved.NOT_DONE)

    @classmethod
    def unknown(cls, error: Any = "unknown whether the work was done") -> Resolution:
        """Return "nobody can know": the claim fails with this error for its `ttl`, and somebody must look into it."""
        return cls(Resolved.UNKNOWN, described(error))
