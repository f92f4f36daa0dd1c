"""What a process knows of a ledger's form, and which forms and settings there can be."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final, Literal, cast

from ..checks import shown
from ..errors import ConfigError
from .ledgers import DENSE_WIDTH, NONCE_BYTES, LedgerForm, LedgerTerms, places_of
from .operations import StoredForm

_EXACT: Final = 7
_NARROW: Final = 4
_WIDTHS: Final = (3, 4, 7, 16)
LEAST_WINDOW: Final = 0.1
MOST_CAPACITY: Final = 40_000_000_000
_LOOK_AGAIN: Final = 10.0
"""Seconds after which the ledger's form is read again: a store that lost its data gets the same form again."""
_RELY_MS: Final = 30_000
"""Milliseconds for which the scripts let a client rely on a form that it has read."""

Write = Literal["set", "append"]


class LedgerView:
    """What one process knows of a ledger's form, and relies on for half a minute."""

    __slots__ = ("_is_told", "addresses", "form", "terms", "text", "until")

    def __init__(self, wire: bytes, form: LedgerForm, found: StoredForm, write: Write, now: float) -> None:
        self.form = form
        self.text = found.text
        self.addresses = places_of(wire, form)
        self.terms = LedgerTerms(form, write, found.now_ms + _RELY_MS)
        self.until = now + _LOOK_AGAIN
        self._is_told = not found.degraded

    def distrust(self) -> None:
        """Let the form be read again before the next call: the store may have come back without its data."""
        if self._is_told:  # a policy's form is taken by no store
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


def nonce_of(name: bytes) -> bytes:
    """Return the nonce of a call by its owner field."""
    if name[0]:
        return blake2b(name, digest_size=NONCE_BYTES).digest()
    return name[1 : 1 + NONCE_BYTES]
