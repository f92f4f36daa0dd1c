"""The RESP errors that answer a failed command."""

from __future__ import annotations

from typing import Final

from ...errors import ClaimLostError, DedupError, UnavailableError
from ...failures import log
from ..access import ForbiddenError
from ..verbs import without_addresses
from .frames import error

TOO_MUCH: Final = error(
    "UNAVAILABLE", "1000 requests take too much memory (limits.requests_in_all): send fewer at once"
)
SHUTTING_DOWN: Final = error("UNAVAILABLE", "1000 the sidecar is shutting down; connect again")


def error_reply(fault: Exception) -> bytes:
    """Return an exception as a RESP error."""
    if isinstance(fault, UnavailableError):
        return error("UNAVAILABLE", f"{round(fault.retry_after * 1000)} {without_addresses(fault)}")
    if isinstance(fault, ClaimLostError):
        return error("CLAIMLOST", str(fault))
    if isinstance(fault, ForbiddenError):
        return error("NOPERM", str(fault))
    if isinstance(fault, DedupError):
        return error("ERR", str(fault))
    log.exception("a command failed", exc_info=fault)
    return error("ERR", "internal error; see the sidecar's log")


def unknown_command(name: bytes) -> bytes:
    """Return the RESP error for a command that a sidecar does not have, such as GET."""
    shown = name[:64].decode(errors="replace")
    return error("ERR", f"unknown command '{shown}': a sidecar has FD.CLAIM and others, not Redis' own")
