"""How a script's arguments are packed for it, and read back by a sidecar. `arguments.py` has a row for each verb.

A sidecar gets arguments from another process: malformed ones are refused here, because a script would write them
into a record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple

from ...checks import MAX_SECONDS
from ...kernel.operations import Op
from ...kernel.owners import RANDOM_BYTES
from ...kernel.records import holding_bytes, read_proof, read_tail
from ...kernel.terms import Mode

Keys = Sequence[bytes]
Read = Callable[[bytes], Any]

MAX_MS: Final = round(MAX_SECONDS * 1000)
_COUNTS: Final = ("no", "one", "two", "three", "four", "five", "six", "seven")
_MODES: Final = {mode.value.encode(): mode for mode in Mode}


class Argument(NamedTuple):
    """An argument of a script.

    Attributes:
        value: returns the argument of an operation: text, bytes or a whole number.
        read: turns the argument's bytes back. ValueError or LookupError: no store sends these.
    """

    value: Callable[[Any], Any]
    read: Read


class Arguments:
    """The arguments of one verb's script.

    Operations that have something in common stand in a run: the number of its operations, what they share, and what
    each of them has alone. If nothing is shared, there are no runs.

    Args:
        make: makes an operation of what `share` has returned, of its key, and of what it has alone.
        each: what an operation has alone.
        shared: what operations of a run share; None without runs.
        by: what is equal for operations of a run.
        share: returns what `make` takes first, of the run's first key and of what is shared.
    """

    def __init__(
        self,
        make: Callable[..., Op],
        *each: Argument,
        shared: Sequence[Argument] | None = None,
        by: Callable[[Any], Any] | None = None,
        share: Callable[..., Sequence[Any]] = lambda key, *values: values,
    ) -> None:
        self.heads = None if shared is None else len(shared)
        self.each = len(each)
        self._make = make
        self._values = [one.value for one in each]
        self._reads = [one.read for one in each]
        self._shared_values = [one.value for one in shared or ()]
        self._shared_reads = [one.read for one in shared or ()]
        self._by = by
        self._share = share

    @property
    def most(self) -> int:
        """The arguments that one operation takes at most."""
        return self.each + (0 if self.heads is None else 1 + self.heads)

    def pack(self, ops: Sequence[Any]) -> list[str | bytes | int]:
        """Return ARGV, without the floor and the limit that every script takes first."""
        if self.heads is None:
            return self._pack_each(ops)
        if len(ops) == 1:
            return self._pack_run(ops)
        args: list[str | bytes | int] = []
        for _, run in groupby(ops, self._by):
            args += self._pack_run(list(run))
        return args

    def _pack_run(self, ops: Sequence[Any]) -> list[str | bytes | int]:
        first = ops[0]
        return [len(ops), *[value(first) for value in self._shared_values], *self._pack_each(ops)]

    def _pack_each(self, ops: Sequence[Any]) -> list[str | bytes | int]:
        if len(ops) == 1:
            return [value(ops[0]) for value in self._values]
        if len(self._values) == 1:
            return list(map(self._values[0], ops))
        return list(chain.from_iterable(zip(*[map(value, ops) for value in self._values], strict=True)))

    def read(self, keys: Keys, args: Sequence[bytes]) -> Iterator[Op]:
        """Yield the operations on these keys. ValueError or LookupError: the arguments are malformed."""
        if self.heads is None:
            if len(args) != self.each * len(keys):
                text = f"each key must have {_COUNTS[self.each]} arguments"
                raise ValueError(text if self.each else "there must be no arguments")
            yield from map(self._make, keys, *self._columns(args))
            return
        at = start = 0
        while at < len(args):
            count = number(args[at], 1, len(keys) - start)
            begins = at + 1 + self.heads
            ends = begins + count * self.each
            if ends > len(args):
                raise ValueError("a run is longer than its arguments")
            values = [read(arg) for read, arg in zip(self._shared_reads, args[at + 1 : begins], strict=True)]
            make = partial(self._make, *self._share(keys[start], *values))
            yield from map(make, keys[start : start + count], *self._columns(args[begins:ends]))
            at, start = ends, start + count

    def _columns(self, args: Sequence[bytes]) -> list[Iterator[Any]]:
        return [map(read, args[at :: self.each]) for at, read in enumerate(self._reads)]


# Types of arguments


def number(data: bytes, least: int, most: int) -> int:
    """Read a whole number, in digits alone. ValueError: it is none, or out of these bounds."""
    digits = data[1:] if least < 0 and data[:1] == b"-" else data
    if not digits.isdigit() or len(digits) > 16 or not least <= (found := int(data)) <= most:
        raise ValueError("a number is out of bounds")
    return found


def between(least: int, most: int) -> Read:
    """Return what reads a number within these bounds."""
    return lambda data: number(data, least, most)


millis: Final = between(1, MAX_MS)
both_millis: Final = between(1, 2 * MAX_MS)
"""How long a claim's record lives: its lease, and its ttl after that."""


def either(yes: bytes, no: bytes, text: str) -> Read:
    """Return what reads one value as True and another one as False; `text` says what is wrong with any other."""

    def read(data: bytes) -> bool:
        if data not in (yes, no):
            raise ValueError(text)
        return data == yes

    return read


def claim_tail(data: bytes) -> tuple[bytes, bytes | None]:
    """Read a claim's owner and fingerprint: nearly always a drawn owner alone."""
    return (data, None) if len(data) == 1 + RANDOM_BYTES and not data[0] else read_tail(data)


def plain(name: str, read: Read = bytes) -> Argument:
    """Return the argument that is an attribute of the operation."""
    return Argument(attrgetter(name), read)


HOLDING: Final = Argument(lambda op: holding_bytes(op.owner, op.fence), read_proof)
PAYLOAD: Final = plain("payload")
TAIL: Final = plain("tail", claim_tail)
TERMS: Final = (
    Argument(lambda op: op.terms.header[0], millis),
    Argument(lambda op: op.terms.header[1], both_millis),
    Argument(lambda op: op.terms.header[2], _MODES.__getitem__),
    Argument(lambda op: op.terms.header[3], lambda data: data == b"1"),
)
