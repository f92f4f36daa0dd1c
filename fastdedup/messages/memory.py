"""How long a message that is done must be known: longer than its broker takes to deliver it again."""

from __future__ import annotations

from typing import Any

from ..errors import ConfigError


def check_ledger(remember: Any, kind: type[Any], home: Any, namespace: str) -> None:
    """Check that a gate can remember its messages in this ledger.

    Args:
        remember: the value of the setting; None for no ledger.
        kind: the ledgers of the gate's kind, of asyncio or of synchronous code.
        home: what all ledgers of the gate share.
        namespace: the gate's.

    Raises:
        ConfigError: it is not a ledger of this gate.
    """
    if remember is not None and (not isinstance(remember, kind) or not remember.is_of(home, namespace)):
        raise ConfigError(f"remember must be a ledger of the gate's, made by its ledger(), got {remember!r}")


def seconds_known(dedup: Any, remember: Any) -> float:
    """Return the seconds for which a gate knows a message that is done. `remember`: its ledger, or None."""
    seconds: float = dedup.settings.ttl if remember is None else remember.window
    return seconds


def check_memory(
    known: float,
    seconds: float,
    setting: str,
    keeps: str = "the gate keeps its key",
    option: str = "ttl= of the Dedup",
) -> None:
    """Check that a key is known for as long as the broker may take to deliver its message again.

    Args:
        known: seconds for which it is known.
        seconds: how long the broker waits for an ack.
        setting: the broker's own name for that.
        keeps: who knows it, and what.
        option: the setting of `known`.

    Raises:
        ConfigError: the key is forgotten first, so the work would be done again.
    """
    if known < seconds:
        raise ConfigError(
            f"the broker may deliver a message again after {seconds:.15g} s ({setting}), and {keeps} for "
            f"{known:.15g} s only: set {option} above {setting}"
        )


def check_broker(ttl: float, broker: Any, package: str, setting: str) -> None:
    """Check like `check_memory`, for a broker object that has its timeout in milliseconds.

    Args:
        ttl: seconds for which the gate knows a key; see `seconds_known`.
        broker: the broker; a broker of another package has no such timeout, and passes.
        package: the package of the broker's class.
        setting: the broker's attribute.
    """
    is_known = any(f"{each.__module__}.".startswith(f"{package}.") for each in type(broker).__mro__)
    if is_known and (after_ms := getattr(broker, setting, None)) is not None:
        check_memory(ttl, after_ms / 1000, setting)
