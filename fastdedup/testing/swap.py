"""Puts a gate on a `FakeStore`: a new gate, or for a while one that the application has made.

The application's modules, decorators, middlewares and scopes hold the gate, or objects made from it, since they were
imported. So another gate in its place would reach only some of them. All of them hold the same `Connections`: these
get a stand-in. A synchronous gate has an asyncio `Dedup` behind it, whose connections get one.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial, reduce
from types import ModuleType
from typing import Any

from ..checks import named
from ..errors import ConfigError, UsageError
from ..fallback.local import LocalLRU
from ..gateway import Dedup
from ..sync.gateway import Dedup as SyncDedup
from .loops import EachLoop
from .store import FakeStore


def fake_dedup(store: FakeStore | None = None, **settings: Any) -> Dedup:
    """Return a gate on a store for tests. It opens by itself, in each event loop that uses it.

    Args:
        store: the store; a new one by default.
        settings: those of `fastdedup.Dedup`; the namespace is "test" by default.

    Raises:
        ConfigError: the store is not a `FakeStore`, or a setting is not valid.
    """
    store = _checked(store)
    dedup = Dedup(store, **{"namespace": "test", **settings})
    _begin(dedup, store)
    return dedup


def fake_sync_dedup(store: FakeStore | None = None, **settings: Any) -> SyncDedup:
    """Return a `fastdedup.sync.Dedup` on a store for tests. Arguments: see `fake_dedup`."""
    store = _checked(store)
    dedup = SyncDedup(store, **{"namespace": "test", **settings})
    _begin(dedup.per_process.template, store)
    store.clock.before_move.insert(0, partial(_catch_up, dedup))
    return dedup


def _begin(dedup: Dedup, store: FakeStore) -> None:
    gate = dedup.gate.connections
    gate.stand_in = EachLoop(gate.common, store)
    if isinstance(policy := dedup.settings.on_unavailable, LocalLRU):
        policy.begin_anew(store.clock)


def _checked(store: Any) -> FakeStore:
    """Return the store, a new one if none is given."""
    if store is None:
        return FakeStore()
    if not isinstance(store, FakeStore):
        raise ConfigError(
            f"the store of a test must be a FakeStore, got {named(store)}; a gate that has a URL is put on one by "
            "swapped(gate)"
        )
    return store


@contextmanager
def swapped(*gates: str | Dedup | SyncDedup, store: FakeStore | None = None) -> Iterator[FakeStore]:
    """Put an application's gates on a store for tests, until the `with` ends; yield the store.

    All objects made from such a gate follow, in every module that has imported them: its scopes, decorated functions,
    tokens, machines, ledgers, middlewares. Its settings stay. It opens by itself, in each event loop that uses it.

    Args:
        gates: a gate, `fastdedup.Dedup` or `fastdedup.sync.Dedup`; or its place, such as "app.payments.dedup".
        store: the store; a new one by default.

    Raises:
        ConfigError: there is no gate at that place; the store is not a `FakeStore`.
        UsageError: a gate is open, in an event loop that still exists or in the thread of `fastdedup.sync`.
    """
    store = _checked(store)
    with ExitStack() as stack:
        for gate in gates:
            found = _found(gate) if isinstance(gate, str) else gate
            stack.enter_context(_on(found, store))
        stack.callback(store.outage.stop)
        yield store


@contextmanager
def _on(gate: Any, store: FakeStore) -> Iterator[None]:
    if not isinstance(gate, Dedup | SyncDedup):
        raise ConfigError(
            f"swapped() takes a Dedup or a fastdedup.sync.Dedup, or its place, got {named(gate)}"
        )
    policy = gate.settings.on_unavailable
    # Otherwise it would keep its knowledge of the store, and the next opened store would get its journal.
    apart = policy.apart(store.clock) if isinstance(policy, LocalLRU) else nullcontext()
    with apart, _swapped_sync(gate, store) if isinstance(gate, SyncDedup) else _swapped(gate, store):
        yield


@contextmanager
def _swapped(dedup: Dedup, store: FakeStore) -> Iterator[None]:
    gate = dedup.gate.connections
    former = gate.stand_in
    if isinstance(former, EachLoop) and former.store is store:  # a scope of a gate that is swapped already
        yield
        return
    if former is None and gate.is_open:
        raise UsageError(
            f"{dedup!r} is open in an event loop that still exists: swap it before the application opens it, "
            "or close it first"
        )
    with gate.common.apart():
        ours = gate.stand_in = EachLoop(gate.common, store)
        try:
            yield
        finally:
            if gate.stand_in is not ours:
                raise UsageError("swaps of one gate must end in the reverse order of their beginnings")
            ours.end()
            gate.stand_in = former


@contextmanager
def _swapped_sync(dedup: SyncDedup, store: FakeStore) -> Iterator[None]:
    per_process = dedup.per_process
    gate = per_process.template.gate
    if per_process.is_open and gate.connections.stand_in is None:
        raise UsageError(
            f"{dedup!r} is open, since its first use or open(): swap it before, or call close() first, and open() "
            "after the swap if it is used again"
        )
    was_counted = gate.observers.counters is not None
    catch_up = partial(_catch_up, dedup)
    with _swapped(per_process.template, store), per_process.apart():
        store.clock.before_move.insert(0, catch_up)
        try:
            yield
        finally:
            store.clock.before_move.remove(catch_up)
    if gate.observers.counters is not None and not was_counted:
        per_process.on_made(lambda made: made.gate.connections.count())


def _catch_up(dedup: SyncDedup, _: float) -> None:
    """Let the background thread begin the renewals of blocks before time passes."""
    if dedup.per_process.is_open:
        with suppress(UsageError):  # the clock is moved in that thread, by `on_event`
            dedup.bound.run(lambda _: asyncio.sleep(0))


# A gate's place


def _found(place: str) -> Any:
    """Return the object at "package.module.name".

    Raises:
        ConfigError: there is no such module or name.
    """
    parts = place.replace(":", ".").split(".")
    if not all(parts):
        raise _nothing_at(place)
    for size in range(len(parts) - 1, 0, -1):
        module = _imported(".".join(parts[:size]))
        if module is not None:
            try:
                return reduce(getattr, parts[size:], module)
            except AttributeError as error:
                raise ConfigError(f"there is no {place!r}: {error}") from None
    raise _nothing_at(place)


def _nothing_at(place: str) -> ConfigError:
    return ConfigError(f"there is no {place!r}: write it as 'package.module.dedup'")


def _imported(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            return None
        raise  # the application's own import of another module failed
