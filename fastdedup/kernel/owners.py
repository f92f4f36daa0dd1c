"""The owners of claims: an owner is either text that the caller chose, or ten random bytes that are generated here.

Inside the library an owner is a *field*, in the form of a record: a length byte, then the bytes.
Length 0 stands for ten random bytes, whose text is 20 hexadecimal digits. So an owner that went
out as text and came back (for example through an HTTP client) becomes the same field again.

An owner that is drawn for a gate with a `holder` begins with notes, which `inspect` and `list` show: text of up to 48
bytes, then "~" and 14 random characters, such as `billing@web-1:4711~VpG0s1...`. The notes cost a record their own
bytes and 5 more, and nothing if there are none. Every version reads such a record: it is an owner like any other.
The holder is the first note. A claim that is made within a trace has a last note `t=` after it: the
ids of the trace and of the claim's span, 24 bytes as 32 characters. `;t=` and these take 35 of the 48 bytes, so of
the holder beside them only the last 13 bytes are kept. `notes_of` and `trace_of` read them back.
"""

from __future__ import annotations

import os
import re
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from ..errors import InvalidKeyError
from ..forking import in_each_child

RANDOM_BYTES: Final = 10
"""80 bits are enough: owners need to differ only among the claimants of one key."""
MAX_OWNER_BYTES: Final = 63
_DRAWN: Final = re.compile(r"[0-9a-f]{20}")
_NOTED: Final = re.compile(r"([^~]{1,48})~[A-Za-z0-9_-]{14}")
_NOTE_BYTES: Final = 48
TRACE_BYTES: Final = 24
"""The id of a trace, 16 bytes, and that of a span, 8 bytes."""
_TRACED: Final = re.compile(rb"[^~]{0,13};t=([A-Za-z0-9_-]{32})~[A-Za-z0-9_-]{14}")
_ROOM_BESIDE_TRACE: Final = _NOTE_BYTES - 35
AT_ONCE: Final = 512
_SPLIT: Final = struct.Struct(f"{1 + RANDOM_BYTES}s" * AT_ONCE).unpack

drawn_ahead: Final[deque[bytes]] = deque()
"""The owner fields that are generated and not used yet."""
next_drawn: Final[Callable[[], bytes]] = drawn_ahead.popleft
"""Return a fresh owner field without a Python call; IndexError if `draw_owner` must draw more."""


def draw_owner() -> bytes:
    """Return a fresh owner field."""
    # A deque, not an iterator: a signal's error ends an iterator for good, and threads break it.
    while True:
        try:
            return next_drawn()
        except IndexError:
            drawn_ahead.extend(_draw_many())


def _draw_many() -> tuple[bytes, ...]:
    # One system call draws many, because a call of urandom costs as much as the rest of a claim.
    drawn = bytearray(os.urandom((1 + RANDOM_BYTES) * AT_ONCE))
    drawn[:: 1 + RANDOM_BYTES] = bytes(AT_ONCE)  # the length byte of each
    return _SPLIT(drawn)


# A forked child inherits the unused owners; two processes must never share an owner.
in_each_child(drawn_ahead.clear)


def owner_field(owner: Any) -> bytes:
    """Turn an owner's text into its field.

    Raises:
        InvalidKeyError: the owner is not text, is empty, or has more than 63 bytes of UTF-8.
    """
    if not isinstance(owner, str):
        raise InvalidKeyError(f"an owner must be text, got {type(owner).__name__}")
    if _DRAWN.fullmatch(owner):
        return b"\0" + bytes.fromhex(owner)
    data = owner.encode(errors="ignore")
    if data.decode() != owner:  # the message of Python's own error would contain the owner
        raise InvalidKeyError("an owner must be text that UTF-8 can encode, got a lone surrogate")
    if not 0 < len(data) <= MAX_OWNER_BYTES:
        raise InvalidKeyError(f"an owner must have 1 to {MAX_OWNER_BYTES} bytes of UTF-8, got {len(data)}")
    return bytes((len(data),)) + data


def owner_text(field: bytes) -> str:
    """Turn an owner's field into its text."""
    return field[1:].hex() if field[0] == 0 else field[1:].decode(errors="replace")


class Noted:
    """Generates owners that begin with notes, for gates whose records name their holder.

    Args:
        notes: returns the notes of a claim that is made now, the holder first; empty ones are left out. Called for
            each owner, so that a forked process and each trace have their own.
    """

    def __init__(self, notes: Callable[[], Sequence[str]]) -> None:
        self._notes = notes

    def draw(self) -> bytes:
        """Return a fresh owner field. Notes beyond 48 bytes are cut off: they are for reading only."""
        text = ";".join([note for note in self._notes() if note]).replace("~", "-")
        data = text.encode(errors="replace")[:_NOTE_BYTES].decode(errors="ignore").encode()
        return _with_notes(data) if data else draw_owner()


def draw_traced(drawn: bytes, trace: bytes) -> bytes:
    """Return a fresh owner field with the 24 bytes of a trace and a span, after the end of a drawn owner's holder."""
    holder = drawn[1:-15].partition(b";")[0] if drawn[0] else b""
    name = holder[-_ROOM_BESIDE_TRACE:].decode(errors="ignore").encode()
    return _with_notes(name + b";t=" + urlsafe_b64encode(trace))


def _with_notes(notes: bytes) -> bytes:
    # 10 random bytes as 14 characters: base64 has 16, of which the last two are padding.
    owner = notes + b"~" + urlsafe_b64encode(draw_owner()[1:])[:14]
    return bytes((len(owner),)) + owner


def is_drawn(field: bytes) -> bool:
    """True for an owner that the library generated, with notes or without."""
    return field[0] == 0 or _NOTED.fullmatch(owner_text(field)) is not None


def notes_of(owner: str) -> dict[str, str]:
    """Return the notes in an owner's text by their names, the first one as "holder"; empty for any other owner."""
    found = _NOTED.fullmatch(owner)
    if found is None:
        return {}
    holder, *others = found[1].split(";")
    notes = {note.partition("=")[0]: note.partition("=")[2] for note in others}
    return {"holder": holder} | notes if holder else notes


def trace_of(field: bytes) -> bytes:
    """Return the ids of the trace and the span in which an owner was drawn, 24 bytes; empty for any other owner.

    An owner that a caller chose may look the same, and name any trace: do not trust it more than its caller.
    """
    found = _TRACED.fullmatch(field, 1)
    if found is None:
        return b""
    trace = urlsafe_b64decode(found[1])
    return trace if any(trace[:16]) and any(trace[16:]) else b""


def veiled(field: bytes) -> bytes:
    """Return an owner's trace without its holder and its random end, for readers that must not settle its claim."""
    if not trace_of(field):
        return b""
    owner = field[-50:-14] + b"A" * 14  # from ";t=" to "~", and another end
    return bytes((len(owner),)) + owner
