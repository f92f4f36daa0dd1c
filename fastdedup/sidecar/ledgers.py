"""The ledgers that a sidecar serves to every language: those that its settings name. Both wires ask here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, TypeVar, cast

from ..claim import Claim
from ..claiming import claim_call
from ..core.gate import lost_error
from ..core.options import ClaimOptions
from ..errors import ConfigError, InvalidKeyError, ShortfallError, UnavailableError
from ..gateway import Dedup
from ..kernel.codes import Code
from ..kernel.operations import OwnerOp
from ..kernel.owners import owner_field
from ..ledger.client import Ledger
from ..ledger.ids import listed_bytes, number_in, record_wire
from ..ledger.operations import LedgerPlace
from ..model import LedgerStats
from .ephemeral import EphemeralClaims
from .releases import Holding, Undoable

MAX_IDS = 1000
"""The ids that one call may have."""
_TRIES = 3
_AT_ONCE = 100
"""The ids that one call looks up, or forgets, at once."""

Changing = TypeVar("Changing", bound=OwnerOp)


class UnknownLedgerError(ConfigError):
    """The sidecar's settings name no such ledger, or the client's socket may not use it."""


class LedgerSettingsError(ConfigError):
    """The sidecar's settings for this ledger cannot be used; the client can do nothing about that."""


class ServedLedger:
    """A ledger of the sidecar.

    Args:
        dedup: its namespace's.
        ledger: the ledger.
    """

    def __init__(self, dedup: Dedup, ledger: Ledger) -> None:
        self.dedup = dedup
        self.name = ledger.name
        self._ledger = ledger

    @property
    def namespace(self) -> str:
        """The namespace that it belongs to."""
        return self.dedup.settings.namespace

    async def first(self, ids: Sequence[Any], owner: str | None) -> Undoable:
        """Remember ids; errors are those of `Ledger.first_many`. If it is cancelled, it forgets its ids again."""
        with _settings_are_ours():
            data = listed_bytes(self._ids(ids), dense=self._ledger.dense)
            answers, forget = await self._ledger.first_undoable(data, owner)
        return Undoable(answers, (forget,) if owner is None and any(answers) else ())

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
                found = await self._ledger.forget_bytes(data, "")
            finally:
                heard(f"{self.name}/{data.decode(errors='backslashreplace')}", found)
            return found

        with _settings_are_ours():
            return await _each(forgotten, self._ids(ids))

    def _ids(self, ids: Sequence[Any]) -> Sequence[Any]:
        """Return ids as the ledger takes them: RESP has no integers among its arguments."""
        if len(ids) > MAX_IDS:
            raise InvalidKeyError(
                f"a call takes at most {MAX_IDS} ids, got {len(ids)}: send them in several calls"
            )
        return list(map(number_in, ids)) if self._ledger.dense else ids

    # Claims whose success it remembers

    async def claim(self, options: ClaimOptions, key: str, mark: bytes | None) -> Claim:
        """Claim a key; arguments and errors as for `claim_call`."""
        call = claim_call(self.dedup.gate, options.but(remember=self._ledger), key, mark)
        with _settings_are_ours():
            return await call

    async def held(self, key: str, owner: str) -> Holding:
        """Return a claim's `Dedup`, store key and owner field."""
        field = owner_field(owner)
        with _settings_are_ours():
            return self.dedup, self._wire(key, await self._ledger.place_of(key)), field

    async def change(
        self, ephemeral: EphemeralClaims, key: str, make: Callable[[bytes, LedgerPlace], Changing]
    ) -> Changing:
        """Change an owner's claim; return the operation that did. Errors as for `Gate.change`.

        Args:
            ephemeral: the EPHEMERAL claims, of which it may be one.
            key: the claim's.
            make: returns the operation for its record's store key, and for the place of its id.
        """
        with _settings_are_ours():
            place = await self._ledger.place_of(key)
            for _ in range(_TRIES):
                op, former = make(self._wire(key, place), place), place
                try:
                    code = await self.dedup.gate.run(op)
                except ShortfallError:  # it was done
                    ephemeral.changed(self.dedup, op)
                    raise
                if code is Code.OK:
                    return op
                found = Code.STALE if code is Code.LOST else cast(Code, code)
                place = await self._ledger.place_of(key, found)
                if code is Code.LOST and place.bucket == former.bucket:
                    break
        raise lost_error(key, op)

    def _wire(self, key: str, place: LedgerPlace) -> bytes:
        gate = self.dedup.gate
        return record_wire(place.bucket, gate.claims.wire(key), gate.settings.namespace)

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
        wanted, where = as_text(name), None if namespace is None else as_text(namespace)
        found = self._ledgers.get(wanted)
        if found is None:
            shown = wanted[:64]
            others = f", only: {', '.join(sorted(self._ledgers))}" if self._ledgers else ""
            raise UnknownLedgerError(
                f"this socket serves no ledger '{shown}'{others}; to serve it, write a table "
                f"[ledgers.{shown}] with window and capacity into the sidecar's settings"
            )
        if where is not None and where != found.namespace:
            raise UnknownLedgerError(
                f"the ledger '{wanted}' belongs to the namespace '{found.namespace}', got '{where[:64]}'"
            )
        return found


def make_ledgers(settings: Mapping[str, Mapping[str, Any]], dedups: Mapping[str, Dedup]) -> Ledgers:
    """Return ledgers by their settings, which are those of `Dedup.ledger`, and `namespace`."""
    made = []
    for name, options in settings.items():
        dedup = dedups[options["namespace"]]
        own = {key: value for key, value in options.items() if key != "namespace"}
        made.append(ServedLedger(dedup, dedup.ledger(name, **own)))
    return Ledgers(made)


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
    facts = asdict(stats)
    return {
        "ledger": facts.pop("name"),
        "namespace": namespace,
        **facts,
        "window": round(stats.window * 1000),
    }


def as_text(name: str | bytes) -> str:
    """Return the name of a ledger or a namespace as text."""
    return name if isinstance(name, str) else name.decode(errors="replace")
