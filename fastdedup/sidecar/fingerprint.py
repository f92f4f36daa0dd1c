"""Reads the fingerprints that clients send, over HTTP and over RESP."""

from __future__ import annotations

from ..errors import ConfigError


def fingerprint_of(data: bytes) -> bytes:
    """Return the 16 bytes of a fingerprint that is written as 32 hexadecimal digits.

    Raises:
        ConfigError: it is not written so.
    """
    try:
        mark = bytes.fromhex(data.decode("ascii"))
    except ValueError:
        mark = b""
    if len(mark) != 16 or len(data) != 32:
        raise ConfigError(
            f"FP must be 32 hexadecimal digits (16 bytes), got {data[:32].decode(errors='replace')!r}"
        )
    return mark
