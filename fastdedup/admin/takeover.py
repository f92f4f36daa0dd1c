"""A takeover, which `resolve=` is asked about, and its answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ..codec import described
from ..downstream import downstream_key


@dataclass(frozen=True, slots=True)
class Takeover:
    """A key that was held before, by an owner that may have done the work and died. `resolve=` is asked about it.

    Attributes:
        key: the key; a token's digest.
        attempt: how often the key was acquired, this time included; for a message how often its work was begun.
        fence: the present owner's fence.
        last_owner: the owner before; None if that is not known, because the first reply to this claim was lost, or
            the store has forgotten the key and only a message's own count shows the attempts before.
        last_fence: the fence of the owner before, or None.
        last_holder: that owner's holder name, which `Dedup(holder=…)` wrote, or None.
        wire: the claim's key in the store, from which `downstream` makes keys; without it, for example in a test,
            from `key`.
    """

    key: str
    attempt: int
    fence: int
    last_owner: str | None = field(default=None, repr=False)
    last_fence: int | None = None
    last_holder: str | None = None
    wire: bytes = field(default=b"", repr=False, compare=False)

    def downstream(self, name: str) -> str:
        """Return the idempotency key of a call that the work makes: the same as `claim.downstream(name)` in the work.

        An earlier attempt has sent this key. So if the next hop can look up a key, it knows the outcome of that call.

        Raises:
            InvalidKeyError: the name is empty, longer than 1,024 characters, or not text.
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
        kind: which answer it is.
        value: the result, or the error.
    """

    kind: Resolved
    value: Any = None

    @classmethod
    def done(cls, result: Any = None) -> Resolution:
        """Return "the work was done, with this result": the claim succeeds with it, and all callers get it."""
        return cls(Resolved.DONE, result)

    @classmethod
    def not_done(cls) -> Resolution:
        """Return "the work was not done": the new owner does it."""
        return cls(Resolved.NOT_DONE)

    @classmethod
    def unknown(cls, error: Any = "unknown whether the work was done") -> Resolution:
        """Return "it is unknown": the claim fails with this error for its `ttl`; an operator must look into it."""
        return cls(Resolved.UNKNOWN, described(error))
