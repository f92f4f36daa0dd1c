"""Ledgers for synchronous code."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self, TypeVar

from ..ledger.client import Ledger as AsyncLedger
from ..ledger.ids import listed_bytes
from ..model import LedgerResize, LedgerStats
from .background import Bound, PerProcess

T = TypeVar("T")


class Ledger:
    """Remembers ids for a window; `dedup.ledger(...)` makes it. See `fastdedup.Ledger`."""

    def __init__(self, ledger: Bound[AsyncLedger]) -> None:
        self.bound = ledger
        """For integrations: `background, ledger = bound.get()` returns this process's asyncio `Ledger`."""

    def __repr__(self) -> str:
        return f"<sync.{repr(self.bound.latest)[1:]}"

    def is_of(self, per_process: PerProcess, namespace: str) -> bool:
        """True if its ids are in the store of the gate that has this, and are those of this namespace."""
        ours = self.bound.per_process is per_process
        return ours and self.bound.latest.namespace == namespace

    def _open(self) -> Self:
        self.bound.run(AsyncLedger.open)
        return self

    def _first(self, id: Any, *, owner: str | None) -> bool:
        if owner is None:
            return self._first_undoable([self.bound.latest.bytes_of(id)])[0]
        return self.bound.run(lambda it: it.first(id, owner=owner))

    def _first_many(self, ids: Iterable[Any], *, owner: str | None) -> list[bool]:
        is_wrong = isinstance(ids, str | bytes | bytearray | memoryview) or not isinstance(ids, Iterable)
        listed = ids if is_wrong else list(ids)  # in this thread; `listed_bytes` names what is wrong
        if owner is None:
            return self._first_undoable(listed_bytes(listed, dense=self.bound.latest.dense))
        count = len(listed) if isinstance(listed, list) else 0
        return self.bound.run(lambda it: it.first_many(listed, owner=owner), operations=count)

    def _first_undoable(self, data: list[bytes]) -> list[bool]:
        """Return the answers. If no caller gets them, the call is undone."""
        background, ledger = self.bound.get()
        seconds = self.bound.per_process.seconds_of(len(data))
        return background.run(lambda: ledger.first_undoable(data), seconds, lambda found: found[1]())[0]

    # The rest of the class is written by scripts/write_sync.py, which `make format` runs.

    @property
    def name(self) -> str:
        """The ledger's name."""
        return self.bound.latest.name

    @property
    def window(self) -> float:
        """Seconds for which an id is remembered at least; it may be up to 1 % longer."""
        return self.bound.latest.window

    @property
    def capacity(self) -> int:
        """Ids in one window that it is planned for."""
        return self.bound.latest.capacity

    def open(self) -> Self:
        """Create the ledger, or check its form, now instead of at the first use, so that mistakes show at start-up.

        Errors: see `first`.
        """
        return self._open()

    def first(self, id: Any, *, owner: str | None = None) -> bool:
        """Remember an id. Returns True if this call is the first within the window, else False.

        Args:
            id: text, bytes, an integer or a UUID, of 1 byte to 64 KiB. Text and its UTF-8 are one id, and so are an
                integer and its decimal text.
            owner: your own name for this call, of up to 63 bytes: the same name gets the same answer again. Without
                it, a call that is interrupted or ends in an error forgets what it remembered: before the error is
                raised, if the store answers within one further `timeout`.

        Raises:
            UnavailableError: neither the store nor the policy answered. Call again, with
                `owner=error.owner` or without.
            LedgerFullError: the ledger holds 12 to 18 times its capacity.
            ConfigError: the ledger was created with other settings, or the store evicts keys.
            InvalidKeyError: the id or the owner cannot be used.
            ForeignRecordError: its bucket holds a value that fastdedup did not write.
            UsageError: closed, or its store is an object of another process.
        """
        return self._first(id, owner=owner)

    def first_many(self, ids: Iterable[Any], *, owner: str | None = None) -> list[bool]:
        """Remember ids, each like `first`; of equal ids in the list the first one is True.

        Either all are answered, or none is remembered: if one cannot be answered, the others are forgotten again,
        and the error is raised. With `owner=` it is kept, and the same call gets the same answers again.

        A list has at most 10,000 ids; a longer one raises UsageError.
        """
        return self._first_many(ids, owner=owner)

    def seen(self, id: Any) -> bool:
        """Return whether an id is remembered. Nothing is changed, so the answer may be outdated when it arrives.

        Errors: see `first`.
        """
        return self.bound.run(lambda it: it.seen(id))

    def forget(self, id: Any, *, reason: str | None = None) -> bool:
        """Remove an id, so that it is new again; False if it was not remembered. Errors: see `first`.

        The record of a claim that was completed a moment ago (`remember=`) goes on answering, for a minute. It
        reports a `KeyForgotten` event with the user and the reason; `reason`: up to 256 characters.
        """
        return self.bound.run(lambda it: it.forget(id, reason=reason))

    def stats(self) -> LedgerStats:
        """Return the content of the ledger, from up to 1,000 buckets, 2,000 of a dense one. Errors: see `first`."""
        return self.bound.run(lambda it: it.stats())

    def resize(self, *, capacity: int) -> LedgerResize:
        """Give the ledger another capacity, and keep all ids. Returns the progress; call it again to learn more.

        It is announced for 45 seconds, so that each process learns of it; clients of both capacities go on. Then ids
        are remembered by the new capacity, and for one window each call asks for older ids as well, so
        `first` takes two round trips.

        A ledger that claims use (`remember=`) must not be resized: these are refused until it is over.

        Raises:
            ConfigError: the capacity is not valid, or the ledger is just being resized to another one.
            UnavailableError: the store did not answer; it may still have been announced.
        """
        return self.bound.run(lambda it: it.resize(capacity=capacity))


def ledger_behind(remember: Any) -> Any:
    """Return this process's asyncio ledger behind `remember=`; a claim refuses any other object."""
    return remember.bound.get()[1] if isinstance(remember, Ledger) else remember
