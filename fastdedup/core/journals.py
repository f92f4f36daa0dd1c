"""The journals of policies that have answered over a connection. When the store is back, they are written to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ..fallback.base import JournalledPolicy
from ..fallback.reconcile import Reconciler

_POLICIES: Final = 64
"""The number of policies that are kept, before those without records for the store are dropped."""


class Journals:
    """The journals of one connection.

    Args:
        make: returns the reconciler that writes a policy's journal into the store.
    """

    def __init__(self, make: Callable[[JournalledPolicy], Reconciler]) -> None:
        self._make = make
        # Mutable: for each policy, the namespace of its journal in figures, and its reconciler; the number of
        # policies at which those without records are dropped.
        self._found: dict[int, tuple[str, Reconciler]] = {}
        self._tidy_at = _POLICIES

    def add(self, policy: JournalledPolicy, namespace: str) -> Reconciler:
        """Add a policy that has answered; return the reconciler of its journal, which the caller must wake."""
        found = self._found.get(id(policy))
        if found is None and len(self._found) >= self._tidy_at:
            # A program may make a scope with a policy for each of its many tenants.
            self._found = {key: each for key, each in self._found.items() if each[1].has_work}
            self._tidy_at = max(_POLICIES, 2 * len(self._found))
        name, reconciler = ("", self._make(policy)) if found is None else found
        self._found[id(policy)] = name or namespace, reconciler
        return reconciler

    def policies(self) -> list[tuple[JournalledPolicy, str]]:
        """Return each policy that has answered, with the namespace of its journal in figures. In any thread."""
        return [(reconciler.policy, name) for name, reconciler in tuple(self._found.values())]

    def lines(self) -> dict[str, int]:
        """Return how many records each journal has for the store, by the namespace of its policy's gate."""
        return {name: policy.lines for policy, name in self.policies()}

    def store_is_back(self, node: bytes) -> None:
        """Try the records of a part of the store at once, without the rest of a pause."""
        for _, reconciler in self._found.values():
            reconciler.store_is_back(node)

    async def finish(self, timeout: float) -> None:
        """Try each journal once more, for `timeout` seconds."""
        finished: set[Reconciler] = set()
        while left := [each for _, each in self._found.values() if each not in finished]:
            # A request that is still under way may let the policy of another scope give its first answer meanwhile.
            for reconciler in left:
                await reconciler.finish(timeout)
            finished.update(left)

    def cancel(self) -> None:
        """Stop trying at once. The journals keep their records."""
        for _, reconciler in self._found.values():
            reconciler.cancel()
