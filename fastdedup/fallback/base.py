"""What answers when the store cannot: a policy, chosen by the user, for each namespace."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from ..errors import UnavailableError
from ..stores.base import Op, Reply


@runtime_checkable
class FallbackPolicy(Protocol):
    """Answers an operation in place of the store, or says that nobody can.

    A policy must never answer as if the check had been made: it either keeps records of its own,
    or raises. It is called in the event loop and must not block.
    """

    def answer(self, op: Op, error: UnavailableError) -> Reply:
        """Return the reply to `op`, or raise UnavailableError. `error` says why the store did not."""
        ...

    def holds(self, wire: bytes) -> bool:
        """True while this policy keeps a record for a store key: then it goes on answering for it."""
        ...
