"""The events for an audit: a record was removed, or records were listed, by whom and why."""

from __future__ import annotations

import getpass
import os
import socket
from functools import cache
from typing import Any

from ..checks import MOST_REASON
from ..errors import ConfigError
from ..events import KeyForgotten, RecordsListed
from .gate import Gate
from .holder import holder_name


def check_reason(reason: Any) -> str:
    """Return the reason for forgetting or listing; "" if none was given.

    Raises:
        ConfigError: the reason is not text, or too long.
    """
    if reason is None:
        return ""
    if not isinstance(reason, str) or len(reason) > MOST_REASON:
        raise ConfigError(f"reason must be text of at most {MOST_REASON} characters")
    return reason


def tell_forgotten(gate: Gate, kind: str, key: str, found: bool | None, reason: str) -> None:
    """Report that a record, or an id of a ledger, was forgotten. `reason`: from `check_reason`."""
    gate.connection.report(KeyForgotten(gate.settings.namespace, kind, key, found, caller_name(), reason))


def tell_listed(gate: Gate, prefix: str, found: int, reason: str) -> None:
    """Report that records were listed. `reason`: from `check_reason`."""
    gate.connection.report(RecordsListed(gate.settings.namespace, prefix, found, caller_name(), reason))


def caller_name() -> str:
    """Return the caller's name for an audit: the user, the host and the process."""
    return holder_name(_user(), socket.gethostname(), os.getpid())


@cache
def _user() -> str:
    try:
        return getpass.getuser()[:20]
    except (OSError, KeyError, ImportError):  # a container may have no name for its user
        return f"uid{os.getuid()}" if hasattr(os, "getuid") else ""
