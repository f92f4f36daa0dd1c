"""The settings of a ledger's creation: its capacity, its window, its secret, and the values that follow from these.

`lua/_ledger.lua` and `lua/_dense.lua` describe the layout. Every process finds the same buckets by the same form.
"""

from __future__ import annotations

import secrets
from typing import Any, Final

import orjson

SLOTS: Final = 100
"""Parts of a window: an id is kept for the window and up to one part more."""
_PLANNED: Final = 112
_PLANNED_WIDE: Final = 136
_PLANNED_NARROW: Final = 160
"""Entries in a bucket of a full ledger: with fewer, keys cost more memory; with more, each id costs more time."""
_PLANNED_WIDE_BEFORE: Final = 128
"""The same number if the form does not have it: of ledgers that version 0.1.0 created, which are exact else."""
_MOST_PLANNED: Final = 1000
DENSE_WIDTH: Final = 9
"""Bytes of a digest in a dense ledger, in which it is the id itself; see `_dense.lua`."""
_CHUNKS: Final = 512
"""Chunks that a dense ledger's capacity has: more would cost more memory for keys, fewer more for nonces."""
_CHUNK: Final = (1024, 8192)
"""The least and the most ids of a chunk."""
_SPREAD: Final = 16
"""The factor by which the ids of one window may be further apart than a dense ledger's capacity."""
IN_STEP: Final = 16
"""Neighbouring chunks whose nonces are known together; so many slots of a Cluster have a dense ledger's buckets."""
STRAYS: Final = 10_000
"""The most ids of a dense ledger's bucket outside its cells. They take 10 bytes each."""
_GENERATIONS: Final = 63
_MOST_CAPACITIES: Final = 8
"""The most former capacities that are accepted from clients that do not know the present one."""
_SECRET_BYTES: Final = 32
FILLING: Final = 0.8
"""Share of the capacity from which a ledger counts as filling."""


def _planned(width: int) -> int:
    """Return the entries in a bucket of a new ledger."""
    if width < 7:
        return _PLANNED_NARROW
    return _PLANNED_WIDE if width == 16 else _PLANNED


def _planned_before(width: int) -> int:
    return _PLANNED_WIDE_BEFORE if width == 16 else _PLANNED


class LedgerForm:
    """The settings of a ledger's creation. Their text is in the store; the secret in it must not be shown.

    Attributes:
        capacity: ids that it is planned for in one window.
        width: bytes of a digest.
        window_ms: for how long an id is remembered.
        buckets: the number of its buckets.
        planned: entries in a bucket once the ledger holds its capacity; not for a dense ledger.
        chunk: neighbouring ids that share a bucket, in a dense ledger; else 0.
        capacities: its capacities before it was resized.
        generation: distinguishes the buckets of this form from those of the form before; 0 if it was never resized.
        former: the form that it had before, while ids remembered by that may live; else None.
        switch_ms: the server's time from which ids are remembered by this form and no longer by the former one.
    """

    def __init__(
        self, *, capacity: int, width: int, window_ms: int, secret: bytes, planned: int | None = None
    ) -> None:
        self.capacities: tuple[int, ...] = ()
        self.generation = 0
        self.former: LedgerForm | None = None
        self.switch_ms = 0
        self.capacity = capacity
        self.width = width
        self.window_ms = window_ms
        self.secret = secret
        self.planned = _planned(width) if planned is None else planned
        self.chunk = 0
        if width == DENSE_WIDTH:
            least, most = _CHUNK
            self.chunk = min(most, max(least, 1 << (-(-capacity // _CHUNKS) - 1).bit_length()))
            self.buckets = IN_STEP * -(-_SPREAD * capacity // (IN_STEP * self.chunk))
        else:
            self.buckets = -(-capacity // self.planned)

    @property
    def dense(self) -> bool:
        """True if the ids are integers, of which it keeps a bit each."""
        return self.width == DENSE_WIDTH

    @property
    def filling_from(self) -> float:
        """Entries in a bucket from which the ledger counts as filling; see `LedgerTerms.seen_fill`."""
        return FILLING * (STRAYS if self.dense else self.capacity / self.buckets)

    def fill_of(self, entries: float) -> float:
        """Return how full the ledger is, by the entries in a bucket."""
        return entries / STRAYS if self.dense else entries * self.buckets / self.capacity

    def __repr__(self) -> str:
        return f"<LedgerForm capacity={self.capacity} width={self.width} window_ms={self.window_ms}>"

    @classmethod
    def drawn(cls, *, capacity: int, width: int, window_ms: int) -> LedgerForm:
        """Return a form with a new secret."""
        secret = secrets.token_bytes(_SECRET_BYTES)
        return cls(capacity=capacity, width=width, window_ms=window_ms, secret=secret)

    def resized(self, capacity: int, switch_ms: int) -> LedgerForm:
        """Return the form of another capacity that takes this one's place at that time."""
        form = LedgerForm.drawn(capacity=capacity, width=self.width, window_ms=self.window_ms)
        form.capacities = (*self.capacities, self.capacity)[-_MOST_CAPACITIES:]
        form.generation = self.generation % _GENERATIONS + 1
        form.former, form.switch_ms = self, switch_ms
        return form

    def settled(self) -> LedgerForm:
        """Return the same form without its former one, which has ended."""
        form = LedgerForm(
            capacity=self.capacity,
            width=self.width,
            window_ms=self.window_ms,
            secret=self.secret,
            planned=self.planned,
        )
        form.capacities, form.generation = self.capacities, self.generation
        return form

    def text(self) -> bytes:
        """Return the text that the store keeps.

        A version without resizing refuses the text of a resized ledger. A version that would look in other buckets
        finds no "slots", and refuses it too.
        """
        is_as_before = self.planned == _planned_before(self.width)
        own = {
            "capacity": self.capacity,
            "width": self.width,
            "window_ms": self.window_ms,
            **({"slots": SLOTS} if is_as_before else {"plan": {"slots": SLOTS, "entries": self.planned}}),
            "secret": self.secret.hex(),
        }
        if not self.generation:
            return orjson.dumps(own)
        present = {**own, "capacities": self.capacities, "generation": self.generation}
        if self.former is None:
            return orjson.dumps({"present": present})
        former = orjson.loads(self.former.text())
        return orjson.dumps({"present": present, "former": former, "switch_ms": self.switch_ms})

    @classmethod
    def read(cls, text: bytes) -> LedgerForm | None:
        """Read a form's text; None if it is not the text of a form that this version knows."""
        try:
            return cls._read(orjson.loads(text))
        except (ValueError, TypeError, KeyError):
            return None

    @classmethod
    def _read(cls, found: Any) -> LedgerForm | None:
        form = cls._read_one(found.get("present", found)) if isinstance(found, dict) else None
        if form is None or "former" not in found:
            return form
        former, switch_ms = cls._read(found["former"]), found["switch_ms"]
        if former is None or type(switch_ms) is not int or switch_ms <= 0:
            return None
        form.former, form.switch_ms = former, switch_ms
        return form if (form.width, form.window_ms) == (former.width, former.window_ms) else None

    @classmethod
    def _read_one(cls, found: Any) -> LedgerForm | None:
        capacity, width, window_ms = (found[name] for name in ("capacity", "width", "window_ms"))
        capacities, generation = found.get("capacities", []), found.get("generation", 0)
        secret = bytes.fromhex(found["secret"])
        numbers = [capacity, width, window_ms, *capacities]
        plan = found.get("plan") or {"slots": found["slots"], "entries": _planned_before(width)}
        planned = plan["entries"]
        fits = plan["slots"] == SLOTS and len(secret) == _SECRET_BYTES
        fits = fits and type(planned) is int and 0 < planned <= _MOST_PLANNED
        fits = fits and type(generation) is int and 0 <= generation <= _GENERATIONS
        if not fits or not all(type(number) is int and number > 0 for number in numbers) or width > 16:
            return None
        form = cls(capacity=capacity, width=width, window_ms=window_ms, secret=secret, planned=planned)
        form.capacities, form.generation = tuple(capacities), generation
        return form
