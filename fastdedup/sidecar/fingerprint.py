"""Reads the fingerprints that clients of both wires send."""

from __future__ import annotations

from ..errors import ConfigError


def fingerprint_of(data: bytes) -> bytes:
    """Read a fingerprint: 32 hexadecimal digits.

    Raises:
        ConfigError: none.
    """
    try:
        mark = bytes.fromhex(data.decode("ascii"))
    except ValueError:
        mark = b""
    if len(mark) != 16 or len(data) != 32:
        raise ConfigError(
            f"FP is 32 hexadecimal digits, 16 bytes, not {data[:32].decode(errors='replace')!r}"
        )
    return mark
