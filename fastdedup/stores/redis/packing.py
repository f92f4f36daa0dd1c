"""Puts commands into the bytes of the Redis protocol.

Not by `hiredis.pack_command`, which prints the length of each argument: that was a sixth of a compiled claim.
"""

from __future__ import annotations

from collections.abc import Sequence

_HEADS = [b"\r\n$%d\r\n" % size for size in range(1024)]
"""What ends an argument and begins the next one, by the next one's size."""


def pack(*command: str | bytes | int) -> bytes:
    """Return one command, packed."""
    return pack_parts(command)


def pack_parts(command: Sequence[object], head: bytes = b"", heads: int = 0) -> bytes:
    """Return one command of many arguments, packed. `head`: its first `heads` arguments, packed before.

    Raises:
        TypeError: one of them is not text, bytes or a whole number.
    """
    out = [b"*%d" % (heads + len(command)), head]
    for part in command:
        if isinstance(part, bytes):
            data = part
        elif isinstance(part, str):
            data = part.encode()
        elif isinstance(part, int):
            data = b"%d" % part
        else:
            raise TypeError(f"an argument is text, bytes or a whole number, not {part!r}")
        size = len(data)
        out.append(_HEADS[size] if size < 1024 else b"\r\n$%d\r\n" % size)
        out.append(data)
    out.append(b"\r\n")
    return b"".join(out)
