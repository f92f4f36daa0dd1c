"""The journals of policies that have answered over a connection: each is brought into the store when that is back."""

from __future__ import annotations

from collections.abc import Callable

from ..fallback.base import JournalledPolicy
from ..fallback.reconcile import Reconciler


class Journals:
    """Those of one connection.

    Args:
        make: returns what brings a policy's journal into the store.
    """

    def __init__(self, make: Callable[[JournalledPolicy], Reconciler]) -> None:
        self._make = make
        # Mutable: the reconcilers, and the namespace that each journal is shown under, by the policy.
        self._reconcilers: dict[int, Reconciler] = {}
        self._names: dict[int, str] = {}

    def add(self, policy: JournalledPolicy, namespace: str) -> Reconciler:
        """A policy has answered; return what brings its journal into the store, which is to be woken."""
        number = id(policy)
        if not self._names.get(number):
            self._names[number] = namespace
        if number not in self._reconcilers:
            self._reconcilers[number] = self._make(policy)
        return self._reconcilers[number]

    def policies(self) -> list[tuple[JournalledPolicy, str]]:
        """Return each policy that has answered, with the namespace that its journal is shown under."""
        found = tuple(self._reconcilers.items())  # also for metrics, in another thread
        return [(each.policy, self._names[number]) for number, each in found]

    def lines(self) -> dict[str, int]:
        """Return how many records each journal has for the store, by the namespace of its policy's gate."""
        return {namespace: policy.lines for policy, namespace in self.policies()}

    def store_is_back(self, node: bytes) -> None:
        """Try the records of a part of the store at once, without waiting for a pause to end."""
        for reconciler in self._reconcilers.values():
            reconciler.store_is_back(node)

    async def finish(self, timeout: float) -> None:
        """Try once more, for `timeout` seconds each."""
        finished: set[Reconciler] = set()
        while left := [each for each in self._reconcilers.values() if each not in finished]:
            # A request that is still under way may let the policy of another scope give its first answer meanwhile.
            for reconciler in left:
                await reconciler.finish(timeout)
            finished.update(left)

    def give_up(self) -> None:
        """Report each record that the store never got."""
        for reconciler in self._reconcilers.values():
            reconciler.give_up()

    def cancel(self) -> None:
        """Stop trying at once. The journals keep their records."""
        for reconciler in self._reconcilers.values():
            reconciler.cancel()
