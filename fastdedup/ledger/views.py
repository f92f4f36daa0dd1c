"""What a process knows of a ledger's form, and which forms and settings there can be."""

from __future__ import annotations

from hashlib import blake2b
from math import ceil
from typing import Any, Final, Literal, cast

from ..checks import shown
from ..errors import ConfigError
from ..kernel.operations import StoredForm
from .forms import DENSE_WIDTH, LedgerForm
from .ids import CALL_BYTES, MAX_PATIENCE, NONCE_BYTES, TICK_MS, places_of
from .operations import FOREVER_MS, LedgerTerms

_EXACT: Final = 7
_NARROW: Final = 4
_WIDTHS: Final = (3, 4, 7, 16)
LEAST_WINDOW: Final = 0.1
MOST_CAPACITY: Final = 40_000_000_000


class Pace:
    """How often the ledger's form is read, and how long a new one is announced before.

    Attributes:
        look_again: seconds after which the form is read again: a store that lost its data gets the same form again.
        rely_ms: milliseconds for which the scripts let a client rely on a form that it has read.
        announce_ms: milliseconds between the announcement of a resizing and its switch. That is longer than `rely_ms`
            and `skew_ms` together, so that each client knows of it.
        skew_ms: milliseconds by which two nodes' clocks may differ, and by which an announcement may be late.
    """

    __slots__ = ("announce_ms", "look_again", "rely_ms", "skew_ms")

    def __init__(self) -> None:
        self.look_again = 10.0
        self.rely_ms = 30_000
        self.announce_ms = 45_000
        self.skew_ms = 7_000


PACE: Final = Pace()
"""The pace of all ledgers of this process."""

Write = Literal["set", "append"]


def over_ms(form: LedgerForm) -> int:
    """Return the server's time from which no id lives that the former form remembers."""
    return form.switch_ms + form.window_ms * 102 // 100 + PACE.skew_ms


class FormerView:
    """Where the ids lie that a ledger remembered before it was resized; nobody remembers more of them there."""

    __slots__ = ("addresses", "form", "terms")

    def __init__(self, wire: bytes, form: LedgerForm, switch_ms: int) -> None:
        self.form = form
        self.addresses = places_of(wire, form)
        self.terms = LedgerTerms(form, "set", FOREVER_MS)
        self.terms.from_ms = switch_ms


class LedgerView:
    """What one process knows of a ledger's form, and relies on for half a minute.

    Args:
        wire: the ledger's store key.
        whole: the form, with the former one where it is being resized.
        found: the store's answer, which has its text.
        write: the ledger's.
        now: by time.monotonic(), which costs no system call, as the running loop's time does.
        switched: ids are remembered by the form, and no longer by its former one. By the store's time where it is
            None.

    Attributes:
        whole: as given.
        form: the form by which ids are remembered now.
        former: what is asked before, for the ids that the ledger remembered until the switch; else None.
        is_told: the store has told it, and not a policy.
    """

    __slots__ = (
        "addresses",
        "form",
        "former",
        "is_told",
        "now_ms",
        "switched",
        "terms",
        "text",
        "until",
        "whole",
    )

    def __init__(
        self,
        wire: bytes,
        whole: LedgerForm,
        found: StoredForm,
        write: Write,
        now: float,
        switched: bool | None = None,
    ) -> None:
        self.whole = self.form = whole
        self.text = found.text
        self.now_ms = found.now_ms
        self.former: FormerView | None = None
        self.switched = found.now_ms >= whole.switch_ms if switched is None else switched
        self.until = now + PACE.look_again
        until_ms = found.now_ms + PACE.rely_ms
        if whole.former is not None and not self.switched:
            self.form = whole.former
            until_ms = min(until_ms, whole.switch_ms - 1)
            self.until = min(self.until, now + max(whole.switch_ms - found.now_ms, 0) / 1000)
        elif whole.former is not None and found.now_ms < over_ms(whole):
            self.former = FormerView(wire, whole.former, whole.switch_ms)
        self.addresses = places_of(wire, self.form)
        self.terms = LedgerTerms(self.form, write, until_ms)
        self.is_told = not found.degraded

    @property
    def resizing(self) -> bool:
        """True from the announcement of another capacity until no id lives that the former form remembers."""
        return self.whole.former is not None and self.now_ms < over_ms(self.whole)

    def distrust(self) -> None:
        """Let the form be read again before the next call: the store may have come back without its data."""
        if self.is_told:  # a policy's form is taken by no store
            self.until = 0.0


def form_in(stored: StoredForm, name: str) -> LedgerForm:
    """Return the form that a store holds. Raises ConfigError where this version does not know it."""
    form = LedgerForm.read(stored.text)
    if form is None:
        raise ConfigError(
            f"the form of the ledger {name!r} cannot be read: a newer version of fastdedup founded it, or "
            "another program wrote its key; upgrade, or remove the key"
        )
    return form


def check_width(exact: Any, width: Any, dense: Any = False, write: Any = "set") -> int:
    """Return the bytes of a digest.

    Raises:
        ConfigError: there is no such width, or it contradicts `exact` or `dense`.
    """
    if dense:
        if width is not None or not exact or write != "set":
            raise ConfigError("dense=True keeps a bit for each id: width, exact and write do not go with it")
        return DENSE_WIDTH
    if width is None:
        return _EXACT if exact else _NARROW
    if isinstance(width, bool) or width not in _WIDTHS:
        raise ConfigError(
            f"width must be 16 (as a UUID), 7 (the default), 4 or 3 (narrow), got {shown(width)}"
        )
    if exact and width < _EXACT:
        raise ConfigError(
            f"width={width} takes some new ids for duplicates: pass exact=False to say that this is fine, or width=7"
        )
    return cast(int, width)


def nonce_of(name: bytes, patience: int = 0) -> bytes:
    """Return the nonce of a call by its owner field. `patience`: ticks that it waits, see `NONCE_BYTES`."""
    call = blake2b(name, digest_size=NONCE_BYTES).digest() if name[0] else name[1:]
    return call[:CALL_BYTES] + bytes((patience,))


def patience_of(timeout: float) -> int:
    """Return for how many ticks a call may be taken back that got no reply: two timeouts, in seconds."""
    return min(ceil(2000 * timeout / TICK_MS), MAX_PATIENCE)
