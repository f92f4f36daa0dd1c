"""The ledgers that a sidecar serves to every language: those that its settings name. Both wires ask here."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ..errors import ConfigError, InvalidKeyError, UnavailableError
from ..gateway import Dedup
from ..ledger import Ledger
from ..model import LedgerStats
from .counters import Counters

MAX_IDS = 1000
"""The ids that one call may have."""
_DECIMAL = re.compile("0|[1-9][0-9]{0,18}")
_AT_ONCE = 100
"""The ids that one call looks up, or forgets, at once."""


class UnknownLedgerError(ConfigError):
    """The sidecar's settings name no such ledger, or the client's socket may not use it."""


class LedgerSettingsError(ConfigError):
    """The sidecar's settings for this ledger cannot be used; the client can do nothing about that."""


class ServedLedger:
    """A ledger of the sidecar.

    Args:
        dedup: its namespace's.
        ledger: the ledger.
        counters: counts its answers.
    """

    def __init__(self, dedup: Dedup, ledger: Ledger, counters: Counters) -> None:
        self.dedup = dedup
        self.name = ledger.name
        self._ledger = ledger
        self._counters = counters

    @property
    def namespace(self) -> str:
        """The namespace that it belongs to."""
        return self.dedup.settings.namespace

    async def first(self, ids: Sequence[Any], owner: str | None) -> list[bool]:
        """Remember ids; errors as for `Ledger.first_many`. Where it is cancelled, nothing stays remembered."""
        with _settings_are_ours():
            answers = await self._ledger.first_many(self._ids(ids), owner=owner)
        self._counters.asked_ledger(self.namespace, self.name, answers)
        return answers

    async def seen(self, ids: Sequence[Any]) -> list[bool]:
        """Return whether each id is remembered."""
        with _settings_are_ours():
            return await _each(self._ledger.seen, self._ids(ids))

    async def forget(self, ids: Sequence[Any], heard: Callable[[str, bool | None], None]) -> list[bool]:
        """Remove ids; False for each that was not remembered. After an error some may be removed: ask again.

        `heard`: called with each id, and whether it was remembered.
        """

        async def forgotten(id: Any) -> bool:
            data = self._ledger.bytes_of(id)
            found: bool | None = None
            try:
                found = await self._ledger._forget(data)
            finally:
                heard(f"{self.name}/{data.decode(errors='backslashreplace')}", found)
            return found

        with _settings_are_ours():
            return await _each(forgotten, self._ids(ids))

    def _ids(self, ids: Sequence[Any]) -> Sequence[Any]:
        """Return ids as the ledger takes them: RESP has no integers among its arguments."""
        bounded = _bounded(ids)
        return list(map(_number, bounded)) if self._ledger.dense else bounded

    async def facts(self) -> dict[str, Any]:
        """Return what it holds, for JSON; times in milliseconds."""
        with _settings_are_ours():
            return _facts(self.namespace, await self._ledger.stats())


class Ledgers:
    """The ledgers that the clients of one socket may use, by name."""

    def __init__(self, ledgers: Iterable[ServedLedger] = ()) -> None:
        self._ledgers = {each.name: each for each in ledgers}

    def within(self, namespaces: Collection[str]) -> Ledgers:
        """Return those of these namespaces."""
        return Ledgers(each for each in self._ledgers.values() if each.namespace in namespaces)

    def find(self, name: str | bytes, namespace: str | bytes | None = None) -> ServedLedger:
        """Return a ledger; a namespace that the client names must be the ledger's.

        Raises:
            UnknownLedgerError: there is none of this name.
        """
        wanted, where = _text(name), None if namespace is None else _text(namespace)
        found = self._ledgers.get(wanted)
        if found is None:
            shown = wanted[:64]
            served = ", ".join(sorted(self._ledgers)) or "none"
            raise UnknownLedgerError(
                f"this socket serves no ledger '{shown}', only: {served}; to serve it, write a table "
                f"[ledgers.{shown}] with window and capacity into the sidecar's settings"
            )
        if where is not None and where != found.namespace:
            raise UnknownLedgerError(
                f"the ledger '{wanted}' belongs to the namespace '{found.namespace}', got '{where[:64]}'"
            )
        return found


def make_ledgers(
    settings: Mapping[str, Mapping[str, Any]], dedups: Mapping[str, Dedup], counters: Counters
) -> Ledgers:
    """Return ledgers by their settings, which are those of `Dedup.ledger`, and `namespace`."""
    made = []
    for name, options in settings.items():
        dedup = dedups[options["namespace"]]
        own = {key: value for key, value in options.items() if key != "namespace"}
        made.append(ServedLedger(dedup, dedup.ledger(name, **own), counters))
    return Ledgers(made)


def _bounded(ids: Sequence[Any]) -> Sequence[Any]:
    if len(ids) > MAX_IDS:
        raise InvalidKeyError(
            f"a call takes at most {MAX_IDS} ids, got {len(ids)}: send them in several calls"
        )
    return ids


def _number(id: Any) -> Any:
    """Return the integer that a decimal text stands for; anything else as it is, which the ledger refuses."""
    text = id.decode("ascii", "replace") if isinstance(id, bytes) else id
    return int(text) if isinstance(text, str) and _DECIMAL.fullmatch(text) else text


async def _each(ask: Callable[[Any], Awaitable[bool]], ids: Sequence[Any]) -> list[bool]:
    """Ask for each id, for some at once. The first error is raised when those that are under way have ended."""
    answers: list[bool] = []
    for at in range(0, len(ids), _AT_ONCE):
        found = await asyncio.gather(*map(ask, ids[at : at + _AT_ONCE]), return_exceptions=True)
        for each in found:
            if isinstance(each, BaseException):
                raise each
            answers.append(each)
    return answers


@contextmanager
def _settings_are_ours() -> Iterator[None]:
    """Around a call of a ledger: an error of its settings is no fault of the client's request."""
    try:
        yield
    except (InvalidKeyError, UnavailableError):
        raise
    except ConfigError as error:
        raise LedgerSettingsError(str(error)) from None


def _facts(namespace: str, stats: LedgerStats) -> dict[str, Any]:
    return {
        "ledger": stats.name,
        "namespace": namespace,
        "ids": stats.ids,
        "capacity": stats.capacity,
        "fill": stats.fill,
        "window": round(stats.window * 1000),
        "slots": stats.slots,
        "width": stats.width,
        "bytes": stats.bytes,
        "bytes_an_id": stats.bytes_an_id,
        "false_duplicates": stats.false_duplicates,
    }


def _text(name: str | bytes) -> str:
    return name if isinstance(name, str) else name.decode(errors="replace")
