"""A process's knowledge of a ledger's form."""

from __future__ import annotations

from typing import Final

from ..errors import ConfigError
from ..kernel.replies import StoredForm
from .forms import LedgerForm
from .ids import places_of
from .operations import FOREVER_MS, LedgerTerms
from .settings import Write


class Pace:
    """How often a ledger's form is read, and how long before its switch a new one is announced.

    Attributes:
        look_again: seconds after which the form is read again: a store that lost its data gets the same form again.
        rely_ms: milliseconds for which the scripts let a client rely on a form that it has read.
        announce_ms: milliseconds between the announcement of a resizing and its switch. That is longer than `rely_ms`
            and `skew_ms` together, so that each client knows of it.
        skew_ms: milliseconds by which two nodes' clocks may differ, and by which an announcement may be late.
    """

    look_again = 10.0
    rely_ms = 30_000
    announce_ms = 45_000
    skew_ms = 7_000


PACE: Final = Pace()
"""The pace of all ledgers of this process."""


def over_ms(form: LedgerForm) -> int:
    """Return the server's time from which the former form remembers no id any more."""
    return form.switch_ms + form.window_ms * 102 // 100 + PACE.skew_ms


class FormerView:
    """The places of the ids that a ledger remembered before it was resized. No id is added there any more.

    `since`: when the last one was added at the latest, by time.monotonic().
    """

    def __init__(self, wire: bytes, form: LedgerForm, switch_ms: int, since: float) -> None:
        self.form = form
        self.since = since
        self.addresses = places_of(wire, form)
        self.terms = LedgerTerms(form, "set", FOREVER_MS)
        self.terms.from_ms = switch_ms


class LedgerView:
    """One process's knowledge of a ledger's form, which it uses for half a minute.

    Args:
        wire: the ledger's store key.
        whole: the form, with the former one if the ledger is being resized.
        found: the store's answer, which has its text.
        write: the ledger's.
        now: by time.monotonic(), which costs no system call, unlike the running loop's time.
        switched: ids are remembered by the form, and no longer by its former one.

    Attributes:
        whole: the argument.
        form: the form by which ids are remembered now.
        former: the places that are asked first, for ids that the ledger remembered until the switch; else None.
        until: by time.monotonic(), when the form is read again.
        is_told: the form comes from the store, and not from a policy.
    """

    def __init__(
        self,
        wire: bytes,
        whole: LedgerForm,
        found: StoredForm,
        write: Write,
        now: float,
        switched: bool,
    ) -> None:
        self.whole = self.form = whole
        self.text = found.text
        self.now_ms = found.now_ms
        self.former: FormerView | None = None
        self.switched = switched
        self.until = now + PACE.look_again
        until_ms = found.now_ms + PACE.rely_ms
        if whole.former is not None and not self.switched:
            self.form = whole.former
            until_ms = min(until_ms, whole.switch_ms - 1)
            self.until = min(self.until, now + max(whole.switch_ms - found.now_ms, 0) / 1000)
        elif whole.former is not None and found.now_ms < over_ms(whole):
            since = now - (found.now_ms - whole.switch_ms) / 1000
            self.former = FormerView(wire, whole.former, whole.switch_ms, since)
        self.addresses = places_of(wire, self.form)
        self.terms = LedgerTerms(self.form, write, until_ms)
        self.is_told = not found.degraded
        self._filling_from = self.form.filling_from

    @property
    def resizing(self) -> bool:
        """True from the announcement of another capacity until the former form remembers no id any more."""
        return self.whole.former is not None and self.now_ms < over_ms(self.whole)

    @property
    def seems_to_fill(self) -> bool:
        """True if the buckets that were written lately are as full as those of a ledger that fills."""
        return self.terms.seen_fill > self._filling_from

    def distrust(self) -> None:
        """Let the form be read again before the next call: the store may have come back without its data."""
        if self.is_told:  # a policy's form is taken by no store
            self.until = 0.0


def form_in(stored: StoredForm, name: str) -> LedgerForm:
    """Return the form that a store holds. Raises ConfigError if this version cannot read it."""
    form = LedgerForm.read(stored.text)
    if form is None:
        raise ConfigError(
            f"the form of the ledger {name!r} cannot be read: a newer version of fastdedup created it, or "
            "another program wrote its key; upgrade, or remove the key"
        )
    return form
