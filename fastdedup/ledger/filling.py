"""The fill of a ledger: its content, estimated from some of its buckets, and the event when it fills."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from random import sample
from typing import Final, NamedTuple

from ..core.gate import Gate
from ..errors import DedupError
from ..events import LedgerFilling
from ..kernel.codes import Code
from ..kernel.replies import Weight
from ..model import LedgerStats
from .current_form import CurrentForm
from .forms import FILLING, SLOTS, LedgerForm
from .operations import WeighOp
from .views import FormerView, LedgerView

_SAMPLE: Final = 1000
_SAMPLE_DENSE: Final = 2000
"""Buckets that are weighed to estimate a ledger's content; a dense one has most ids in a few neighbours."""
_HOUR: Final = 3600.0
_LOOK_AGAIN: Final = 600.0
"""Seconds after which a ledger is counted again if it seemed to fill, but did not."""


class _Weighed(NamedTuple):
    """The estimate for one form: its ids, the bytes of its buckets, and the entries in one bucket."""

    ids: float
    size: float
    a_bucket: float


class Filling:
    """Counts the content of a ledger, and reports when it comes near to its capacity.

    Args:
        gate: the ledger's gate.
        form: the ledger's form.
    """

    def __init__(self, gate: Gate, form: CurrentForm) -> None:
        self._gate = gate
        self._form = form
        self._tell_from = 0.0
        """When the next event may be reported, in the loop's time."""

    async def stats(self) -> LedgerStats:
        """Return the content of the ledger, from some of its buckets. Errors: see `Ledger.first`."""
        view = await self._form.present()
        form = view.form
        ids, size, a_bucket = await self._weighed(view)
        if view.former is not None:
            former = await self._weighed(view.former)
            ids, size = ids + former.ids, size + former.size
        return LedgerStats(
            name=self._form.settings.name,
            ids=round(ids),
            capacity=form.capacity,
            fill=ids / form.capacity,
            window=form.window_ms / 1000,
            slots=SLOTS,
            width=0 if form.dense else form.width,
            bytes=round(size),
            bytes_an_id=size / ids if ids else 0.0,
            false_duplicates=0.0 if form.dense else ids * a_bucket / 256.0**form.width,
        )

    async def _weighed(self, view: LedgerView | FormerView) -> _Weighed:
        looked_at = _some_buckets(view.form)
        entries, living, size = 0, 0, 0
        asked = [self._gate.run(WeighOp(view.addresses.bucket(number), view.terms)) for number in looked_at]
        for weight in await asyncio.gather(*asked):
            if isinstance(weight, Weight):
                entries += weight.entries
                living += weight.living
                size += weight.size
            elif weight is not Code.ABSENT:
                self._form.judge(weight)
        share = view.form.buckets / len(looked_at)
        return _Weighed(living * share, size * share, entries / len(looked_at))

    def note(self, view: LedgerView) -> None:
        """Count a ledger that seems to fill (`LedgerView.seems_to_fill`), and report it if it fills."""
        now = asyncio.get_running_loop().time()
        if now < self._tell_from:
            return
        if view.form.dense:  # because its strays are counted, and not its ids
            self._tell(view.form.fill_of(view.terms.seen_fill))
            return
        self._tell_from = now + _LOOK_AGAIN
        self._gate.connection.keep(self._tell_if_filling())

    async def _tell_if_filling(self) -> None:
        """Count the ids, because more entries were seen: a tenth of them may be over, and are cut later."""
        with contextlib.suppress(DedupError):  # the next call after a while looks again
            fill = (await self.stats()).fill
            if fill > FILLING:
                self._tell(fill)

    def _tell(self, fill: float) -> None:
        self._tell_from = asyncio.get_running_loop().time() + _HOUR
        name, namespace = self._form.settings.name, self._gate.settings.namespace
        self._gate.connection.report(LedgerFilling(namespace, name, round(fill, 3)))


def _some_buckets(form: LedgerForm) -> Sequence[int]:
    """Return the numbers of the buckets from which the ledger's ids are estimated."""
    most = _SAMPLE_DENSE if form.dense else _SAMPLE
    if form.buckets <= most:
        return range(form.buckets)
    if form.dense:  # evenly: its ids are in a stretch of the buckets
        return [number * form.buckets // most for number in range(most)]
    return sample(range(form.buckets), most)
