"""The form of a ledger in the store: read, created if there is none, checked, relied on for a while, and replaced."""

from __future__ import annotations

import asyncio
from functools import partial
from time import monotonic
from typing import Final

from ..core.gate import Gate
from ..errors import ConfigError, LedgerFullError, UnavailableError, foreign
from ..kernel.codes import Code
from ..kernel.operations import Reply
from ..kernel.replies import StoredForm
from ..keys import check_namespace
from ..model import LedgerResize
from ..stores.base import NO_EVICTION, AdminStore
from ..tasks import Crowd
from .forms import SLOTS, LedgerForm
from .ids import ledger_wire
from .operations import FOREVER_MS, LedgerOp
from .settings import LedgerSettings
from .views import PACE, LedgerView, form_in, over_ms

TRIES: Final = 5
"""Tries of one call, if the ledger's form changes each time."""
_KEEP_MS: Final = 86_400_000
"""Milliseconds for which a form outlives two windows in which no call was made for the ledger."""


class CurrentForm:
    """A ledger's form, in this process's knowledge.

    Args:
        gate: the ledger's gate.
        settings: the settings of the ledger's creation.
    """

    def __init__(self, gate: Gate, settings: LedgerSettings) -> None:
        self.settings = settings
        self.store_key = ledger_wire(gate.settings.namespace, settings.name)
        """The key in the store of the form, which says capacity, width and window."""
        self.view: LedgerView | None = None
        """The form that this process read last, with the values derived from it; None before the first use."""
        self._gate = gate
        # Mutable: the task that reads the form, and its callers; the text of a form that the store has called stale,
        # and whether it was thought to have switched.
        self._opening: asyncio.Task[LedgerView] | None = None
        self._callers = Crowd()
        self._stale: tuple[bytes, bool] | None = None

    async def present(self) -> LedgerView:
        """Return the form; it is read first if the known one is old."""
        view = self.view
        return await self.look_again() if view is None or view.until <= monotonic() else view

    async def look_again(self) -> LedgerView:
        """Read the form, or create the ledger. If that fails, the known form is used while the scripts accept it."""
        opening = self._opening
        if opening is None or opening.done() or opening.get_loop() is not asyncio.get_running_loop():
            self._opening = opening = self._gate.connection.keep(self._read())
            self._callers = Crowd()
            opening.add_done_callback(partial(_has_ended, self._callers))
        if not opening.done():
            await self._callers.wait()
        try:
            return opening.result()
        except UnavailableError:
            if self.view is None:
                raise
            return self.view

    def distrust(self) -> None:
        """Read the form again before the next call: the store may have come back without its data."""
        if self.view is not None:
            self.view.distrust()

    def judge(self, reply: Reply) -> None:
        """Let a STALE operation be sent again; raise for any other reply that is not an answer.

        Raises:
            UnavailableError: the bucket is being moved to another node.
            LedgerFullError: the bucket has no room.
            ForeignRecordError: the bucket holds a value that fastdedup did not write.
        """
        settings = self.settings
        if reply is Code.STALE:
            if self.view is not None:
                self._stale = (self.view.text, self.view.switched)
            self.view = None
        elif reply is Code.ELSEWHERE:
            raise UnavailableError(
                f"a slot of the ledger {settings.name!r} is being moved to another node; try again"
            )
        elif reply is Code.FULL and settings.dense:
            raise LedgerFullError(
                f"the ids of the ledger {settings.name!r} are too far apart: a dense ledger remembers integers that "
                "nearly follow each other; take another name, without dense=True or with a larger capacity",
                retry_after=settings.window_ms / 1000 / SLOTS,
            )
        elif reply is Code.FULL:
            raise LedgerFullError(
                f"a bucket of the ledger {settings.name!r} is full: it holds far more ids than its capacity of "
                f"{settings.capacity}; resize it, or take another name if claims use it (remember=)",
                retry_after=settings.window_ms / 1000 / SLOTS,
            )
        else:
            raise foreign(f"ledger {settings.name}")

    def changes_all_the_time(self) -> UnavailableError:
        """Return the error of a call that was sent `TRIES` times, each time by a form that was replaced meanwhile."""
        return UnavailableError(
            f"the form of the ledger {self.settings.name!r} changes all the time; try again"
        )

    async def resize(self, capacity: int) -> LedgerResize:
        """Announce a form with another capacity; return how far the resizing is. Errors as for `Ledger.resize`."""
        name = self.settings.name
        for _ in range(TRIES):
            # Not a cached form, because the switch counts from the store's present time.
            view = await self._read()
            if not view.is_told:
                raise UnavailableError("the store alone can resize a ledger, and it does not answer")
            if view.whole.capacity == capacity:
                return _progress(name, view)
            if view.resizing:
                raise ConfigError(
                    f"the ledger {name!r} is being resized to {view.whole.capacity}: that must be over first, "
                    f"in {(over_ms(view.whole) - view.now_ms) / 1000:.0f} s"
                )
            wanted = view.whole.settled().resized(capacity, view.now_ms + PACE.announce_ms)
            await self._ask(wanted.text(), view.text, view.now_ms + PACE.skew_ms)
        raise self.changes_all_the_time()

    async def _read(self) -> LedgerView:
        former, name = self.view, self.settings.name
        reply = await self._ask(b"")
        if reply is Code.ABSENT:
            reply = await self._ask(self.settings.new_form().text() if former is None else former.text)
        if not isinstance(reply, StoredForm):
            raise foreign(f"ledger {name}")
        await self._check_eviction()  # afterwards: a store that is down costs its caller one timeout, not two
        now = monotonic()
        form = form_in(reply, name)
        self.settings.check(form)
        if form.former is not None and reply.now_ms >= over_ms(form):
            reply = await self._ask(form.settled().text(), reply.text)
            if not isinstance(reply, StoredForm):
                raise self.changes_all_the_time()
            form = form_in(reply, name)
        is_switched = self._is_switched(form, reply)
        view = LedgerView(self.store_key, form, reply, self.settings.write, now, is_switched)
        if former is not None and former.text == view.text:
            view.terms.seen_fill = former.terms.seen_fill
        self.view = view
        return view

    def _is_switched(self, form: LedgerForm, found: StoredForm) -> bool:
        """Return whether ids are remembered by the form, and no longer by its former one.

        The nodes of a Cluster differ in their clocks. So if a bucket's node has just contradicted, the node is right.
        """
        by_time = found.now_ms >= form.switch_ms
        contradicted = self._stale == (found.text, by_time)
        self._stale = None
        return not by_time if contradicted else by_time

    async def _ask(self, text: bytes, former: bytes = b"", until_ms: int = FOREVER_MS) -> Reply:
        """Read the form, create the ledger by this text, or put it in the place of `former`; see `LedgerOp`.

        Return the form that is there then. A text has the secret, so it is sent only if it is needed.
        """
        ttl_ms = 2 * self.settings.window_ms + _KEEP_MS
        return await self._gate.run(LedgerOp(self.store_key, text, ttl_ms, former, until_ms))

    async def _check_eviction(self) -> None:
        """Refuse a store that may evict keys. If it does not say, it is asked with the next look at the form."""
        store = self._gate.connection.store
        if self.settings.allows_eviction or not isinstance(store, AdminStore):
            return
        try:
            policy = await store.eviction_policy()
        except UnavailableError:
            return
        if policy not in (None, NO_EVICTION):
            raise ConfigError(
                f"the store may evict keys (maxmemory-policy {policy}), so the ledger {self.settings.name!r} would "
                "forget ids without notice; set maxmemory-policy noeviction, or pass allow_eviction=True"
            )


def _has_ended(callers: Crowd, opening: asyncio.Task[LedgerView]) -> None:
    if not opening.cancelled():
        opening.exception()  # marks it as retrieved: all callers may have been cancelled
    callers.wake()


def _progress(name: str, view: LedgerView) -> LedgerResize:
    """Return how far the resizing of a ledger is."""
    form, former = view.whole, view.whole.former
    left = (
        [max(at - view.now_ms, 0) / 1000 for at in (form.switch_ms, over_ms(form))] if former else [0.0, 0.0]
    )
    return LedgerResize(name, form.capacity, former.capacity if former else 0, *left)


async def read_form(gate: Gate, name: str) -> LedgerForm | None:
    """Return the settings of a ledger's creation; None if there is no ledger. Nothing is changed.

    Raises:
        UnavailableError: the store did not answer.
        ForeignRecordError: its key holds a value that fastdedup did not write.
        ConfigError: the name, or the form, cannot be used.
    """
    check_namespace(name, "a ledger's name")
    reply = await gate.run(LedgerOp(ledger_wire(gate.settings.namespace, name), b"", 0))
    if reply is Code.ABSENT:
        return None
    if not isinstance(reply, StoredForm):
        raise foreign(f"ledger {name}")
    return form_in(reply, name)
