"""The checked settings of a ledger: `LedgerSettings`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from ..checks import Seconds, check_count, check_flag, check_seconds, milliseconds, shown
from ..errors import ConfigError
from ..keys import check_namespace
from .forms import DENSE_WIDTH, LedgerForm

_EXACT: Final = 7
_NARROW: Final = 4
_WIDTHS: Final = (3, 4, 7, 16)
LEAST_WINDOW: Final = 0.1
MOST_CAPACITY: Final = 40_000_000_000

Write = Literal["set", "append"]


@dataclass(frozen=True, slots=True)
class LedgerSettings:
    """The settings of one ledger.

    Attributes:
        name: the ledger's name.
        window_ms: milliseconds for which an id is remembered.
        capacity: ids in one window that it is planned for.
        width: bytes of a digest.
        write: how a bucket is written.
        allows_eviction: the ledger may be in a store that evicts keys.
    """

    name: str
    window_ms: int
    capacity: int
    width: int
    write: Write
    allows_eviction: bool

    @property
    def dense(self) -> bool:
        """True if the ids are integers, of which the ledger keeps a bit each."""
        return self.width == DENSE_WIDTH

    def new_form(self) -> LedgerForm:
        """Return a new form for a ledger with these settings."""
        return LedgerForm.drawn(capacity=self.capacity, width=self.width, window_ms=self.window_ms)

    def check(self, form: LedgerForm) -> None:
        """Raise ConfigError if a ledger was created with other settings than these."""
        if form.dense != self.dense:
            raise ConfigError(
                f"the ledger {self.name!r} was created with dense={form.dense}, this one has dense={self.dense}: "
                "with that it would forget all ids; use its settings, or another name"
            )
        ours_fits = self.capacity == form.capacity or self.capacity in form.capacities
        for name, ours, theirs in (
            ("capacity", self.capacity, self.capacity if ours_fits else form.capacity),
            ("width", self.width, form.width),
            ("window", self.window_ms / 1000, form.window_ms / 1000),
        ):
            if ours != theirs:
                raise ConfigError(
                    f"the ledger {self.name!r} was created with {name}={theirs:.15g}, this one has {name}="
                    f"{ours:.15g}: with that it would forget all ids; use its settings, or another name"
                    + ("; resize() gives it another capacity" if name == "capacity" else "")
                )


def check_settings(
    name: str,
    *,
    window: Seconds,
    capacity: int,
    exact: bool,
    width: int | None,
    write: Write,
    dense: bool,
    allow_eviction: bool,
) -> LedgerSettings:
    """Return the settings that a caller gave for a ledger.

    Raises:
        ConfigError: a setting is not valid, or contradicts another one.
    """
    name = check_namespace(name, "a ledger's name")
    check_seconds(window, "window", least=LEAST_WINDOW)
    check_capacity(capacity)
    for flag, value in (("exact", exact), ("dense", dense), ("allow_eviction", allow_eviction)):
        check_flag(value, flag)
    if write not in ("set", "append"):
        raise ConfigError(f"write must be 'set' or 'append', got {shown(write)}")
    return LedgerSettings(
        name,
        milliseconds(window, "window"),
        capacity,
        check_width(exact, width, dense, write),
        write,
        allow_eviction,
    )


def check_capacity(capacity: Any) -> None:
    """Raise ConfigError if no ledger can have this capacity."""
    check_count(capacity, "capacity", most=MOST_CAPACITY)


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
    if type(width) is not int or width not in _WIDTHS:
        raise ConfigError(
            f"width must be 16 (as a UUID), 7 (the default), 4 or 3 (narrow), got {shown(width)}"
        )
    if exact and width < _EXACT:
        raise ConfigError(
            f"width={width} takes some new ids for duplicates: pass exact=False to say that this is fine, or width=7"
        )
    return width
