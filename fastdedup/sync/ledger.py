"""Ledgers for synchronous code."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Self, TypeVar

from ..errors import UnavailableError
from ..kernel.owners import draw_owner, owner_text
from ..ledger.client import Ledger as AsyncLedger
from ..ledger.ids import listed_bytes
from ..model import LedgerResize, LedgerStats
from .background import Bound, PerProcess

T = TypeVar("T")


class Ledger:
    """Remembers ids for a window, as `dedup.ledger(...)` makes it. See `fastdedup.Ledger`."""

    def __init__(self, ledger: Bound[AsyncLedger]) -> None:
        self.bound = ledger
        """For integrations: `background, ledger = bound.get()` returns this process's asyncio `Ledger`."""

    def __repr__(self) -> str:
        return f"<sync.{repr(self.bound.latest)[1:]}"

    @property
    def name(self) -> str:
        """The ledger's name."""
        return self.bound.latest.name

    @property
    def window(self) -> float:
        """Seconds for which an id is remembered; the truth is up to 1 % longer."""
        return self.bound.latest.window

    @property
    def capacity(self) -> int:
        """Ids in one window that it is planned for."""
        return self.bound.latest.capacity

    def open(self) -> Self:
        """Found the ledger, or check its form, now instead of at the first use, so that mistakes show at start-up."""
        self._run(AsyncLedger.open)
        return self

    def first(self, id: Any, *, owner: str | None = None) -> bool:
        """Remember an id. Returns True where this call is the first within the window, else False.

        Without `owner=`, a call that ends in an error or is interrupted takes back what it remembered.
        """
        data = [self.bound.latest.bytes_of(id)]
        return self._remember(data, owner, lambda ledger, name: ledger.first(id, owner=name))

    def first_many(self, ids: Iterable[Any], *, owner: str | None = None) -> list[bool]:
        """Remember ids, as `first` does each; of one that stands in the list twice the first is True.

        Either all are answered, or what the others remembered is taken back, and the error raised.
        """
        listed = ids if isinstance(ids, str | bytes) else list(ids)
        data = listed_bytes(listed, dense=self.bound.latest.dense)
        return self._remember(data, owner, lambda ledger, name: ledger.first_many(listed, owner=name))

    def seen(self, id: Any) -> bool:
        """Return whether an id is remembered. Nothing is changed, so the answer may be outdated when it arrives."""
        return self._run(lambda ledger: ledger.seen(id))

    def forget(self, id: Any, *, reason: str | None = None) -> bool:
        """Remove an id, so that it is new again; return False where it was not remembered."""
        return self._run(lambda ledger: ledger.forget(id, reason=reason))

    def stats(self) -> LedgerStats:
        """Return what the ledger holds, from at most 1,000 of its buckets."""
        return self._run(AsyncLedger.stats)

    def resize(self, *, capacity: int) -> LedgerResize:
        """Give the ledger another capacity, and keep all ids. Call it again to learn how far that is."""
        return self._run(lambda ledger: ledger.resize(capacity=capacity))

    def is_of(self, per_process: PerProcess) -> bool:
        """True where its ids are in the store of the gate that has this."""
        return self.bound.per_process is per_process

    def _run(self, call: Callable[[AsyncLedger], Awaitable[T]]) -> T:
        background, ledger = self.bound.get()
        return background.run(lambda: call(ledger), self.bound.per_process.seconds)

    def _remember(
        self, data: list[bytes], owner: str | None, call: Callable[[AsyncLedger, str], Awaitable[T]]
    ) -> T:
        """Return the answer. It can be taken back by the call's name where nobody hears it."""
        background, ledger = self.bound.get()
        seconds = self.bound.per_process.seconds
        if owner is not None:
            return background.run(lambda: call(ledger, owner), seconds)
        name = owner_text(draw_owner())

        def take_back(_: object = None) -> None:
            ledger.take_back_call(data, name)

        async def remembered() -> T:
            try:
                return await call(ledger, name)
            except UnavailableError:
                await ledger.take_back_failed(data, name)
                raise
            except BaseException:
                take_back()
                raise

        return background.run(remembered, seconds, take_back)


def ledger_behind(remember: Any) -> Any:
    """Return this process's asyncio ledger behind `remember=`; what is no ledger is left for a claim to refuse."""
    return remember.bound.get()[1] if isinstance(remember, Ledger) else remember
