"""Puts a gate on a `FakeStore`: a new one, or for a while one that the application has made.

The application's modules, decorators, middlewares and scopes hold a gate, or what was made of it, since they were
imported. So another object in its place would reach some of them. All of them hold the same connection: that is what
changes here, in place. A synchronous gate makes its connection for each process, so there it is what makes it.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, reduce
from types import ModuleType
from typing import Any

from ..checks import named
from ..core.connection import Connection
from ..core.observers import Watchers
from ..core.settings import Settings
from ..errors import ConfigError, UsageError
from ..events import OnEvent
from ..fallback.local import LocalLRU
from ..gateway import Dedup
from ..sync.gateway import Dedup as SyncDedup
from .loops import EachLoop
from .store import FakeStore


def fake_dedup(store: FakeStore | None = None, **settings: Any) -> Dedup:
    """Return a gate on a store for tests. It opens by itself, in each event loop that uses it.

    Args:
        store: the store; a new one by default.
        settings: as for `fastdedup.Dedup`; the namespace is "test" by default.

    Raises:
        ConfigError: the store is no `FakeStore`, or a setting is not valid.
    """
    store = _checked(store)
    dedup = Dedup(store, **{"namespace": "test", **settings})
    _put_in(dedup.gate.connection, store)
    _begin_anew(dedup.settings, store)
    return dedup


def fake_sync_dedup(store: FakeStore | None = None, **settings: Any) -> SyncDedup:
    """Return a `fastdedup.sync.Dedup` on a store for tests. Arguments as for `fake_dedup`."""
    store = _checked(store)
    dedup = SyncDedup(store, **{"namespace": "test", **settings})
    _put_in(dedup.per_process.template.gate.connection, store)
    _begin_anew(dedup.settings, store)
    return dedup


def _checked(store: Any) -> FakeStore:
    """Return the store, a new one where none is given."""
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

    Whatever was made of such a gate follows, wherever it was imported: its scopes, decorated functions, tokens,
    machines, ledgers, middlewares. Its settings stay. It opens by itself, in each event loop that uses it.

    Args:
        gates: a gate, `fastdedup.Dedup` or `fastdedup.sync.Dedup`; or where it is, as "app.payments.dedup".
        store: the store; a new one by default.

    Raises:
        ConfigError: there is no gate at that place; the store is no `FakeStore`.
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
    swap = _swapped_sync(gate, store) if isinstance(gate, SyncDedup) else _swapped(gate, store)
    with _policy_anew(gate.settings, store), swap:
        yield


@contextmanager
def _swapped(dedup: Dedup, store: FakeStore) -> Iterator[None]:
    connection: Any = dedup.gate.connection
    if isinstance(connection, EachLoop) and connection.is_on(store):  # a scope of one that is swapped already
        yield
        return
    if not isinstance(connection, EachLoop):
        _check_closed(dedup, connection)
        connection.recent.forget_all()  # what the real store has told
    former, kept, watched = connection.__class__, connection.__dict__, _watched(connection.watchers)
    ours = _put_in(connection, store)
    if ours.watchers.counters is not None:
        ours.count_anew()
    try:
        yield
    finally:
        if connection.__dict__ is not ours.__dict__:
            raise UsageError("swaps of one gate must end in the reverse order of their beginnings")
        ours.end()
        is_watched = ours.watchers.counters is not None
        connection.__class__, connection.__dict__ = former, kept
        _watch_as_before(connection.watchers, watched)
        if is_watched:
            _go_on_counting(connection)


@contextmanager
def _swapped_sync(dedup: SyncDedup, store: FakeStore) -> Iterator[None]:
    per_process = dedup.per_process
    _check_sync_closed(dedup)
    kept = per_process.__dict__
    # What was made of the former gate is made again of this one, as in another process.
    per_process.__dict__ = per_process.remade(partial(_gate_like, per_process.template, store)).__dict__
    try:
        yield
    finally:
        per_process.close()
        is_watched = _is_watched(per_process.template)
        per_process.__dict__ = kept
        if is_watched and not _is_watched(per_process.template):
            per_process.on_made(lambda made: _go_on_counting(made.gate.connection))


# Who watches a gate sees the test's figures while the swap lasts, and afterwards those from before it.


def _is_watched(dedup: Dedup) -> bool:
    return dedup.gate.watchers.counters is not None


def _watched(watchers: Watchers) -> tuple[Any, ...]:
    return watchers.counters, watchers.tracing, watchers.context, watchers.span_key


def _watch_as_before(watchers: Watchers, watched: tuple[Any, ...]) -> None:
    watchers.counters, watchers.tracing, watchers.context, watchers.span_key = watched


def _go_on_counting(connection: Any) -> None:
    """Count where nobody did before the swap: who has watched the gate in it will ask for figures again."""
    if connection.watchers.counters is not None:
        return
    if isinstance(connection, EachLoop):
        connection.count_anew()  # its application may have opened it
    else:
        connection.count()


def _check_closed(dedup: Dedup, connection: Connection) -> None:
    if connection.is_open:
        raise UsageError(
            f"{dedup!r} is open in an event loop that still exists: swap it before the application opens it, "
            "or close it first"
        )


def _check_sync_closed(dedup: SyncDedup) -> None:
    connection: Any = dedup.per_process.template.gate.connection
    if isinstance(connection, EachLoop):
        return  # a gate of a test: it opens by itself
    if dedup.per_process.is_open:
        raise UsageError(
            f"{dedup!r} is open, since its first use or open(): swap it before, or call close() first, and open() "
            "after the swap where it is used again"
        )


def _put_in(connection: Any, store: FakeStore) -> EachLoop:
    """Turn a connection, in place, into one that each event loop has of its own."""
    make = partial(
        _connection_on,
        store,
        connection.timeout,
        connection.max_pending,
        connection.on_event,
        connection.name,
        connection.own_policy,
    )
    ours = EachLoop(make, store, connection.watchers, connection.expected)
    connection.__dict__ = ours.__dict__
    connection.__class__ = EachLoop
    return ours


def _connection_on(
    store: FakeStore,
    timeout: float,
    max_pending: int,
    on_event: OnEvent | None,
    name: str,
    own_policy: object,
) -> Connection:
    connection = Connection(
        store,
        timeout=timeout,
        max_pending=max_pending,
        replicas=0,
        on_shortfall="report",
        known_duplicates=0.0,  # it lasts for real time, which a test's clock does not move
        lease=1.0,
        on_event=on_event,
        namespace=name,
    )
    connection.own_policy = own_policy
    return connection


def _gate_like(model: Dedup, store: FakeStore) -> Dedup:
    """Return a gate on a store for tests, with the settings of another."""
    of: Any = model.gate.connection
    fake = Dedup(
        store, timeout=of.timeout, max_pending=of.max_pending, on_event=of.on_event, namespace=of.name
    )
    fake.gate.connection.own_policy = of.own_policy
    _put_in(fake.gate.connection, store)
    return fake.with_settings(model.settings)


# A policy keeps what it has learned of the store, and its journal goes to the store that is next opened.


@contextmanager
def _policy_anew(settings: Settings, store: FakeStore) -> Iterator[None]:
    policy = settings.on_unavailable
    if not isinstance(policy, LocalLRU):
        yield
        return
    kept = policy.__dict__
    _begin_anew(settings, store)
    try:
        yield
    finally:
        policy.__dict__ = kept


def _begin_anew(settings: Settings, store: FakeStore) -> None:
    """Let a policy begin as new, by the store's clock."""
    policy = settings.on_unavailable
    if isinstance(policy, LocalLRU):
        policy.__dict__ = policy.anew(store.clock).__dict__


# A gate's place


def _found(place: str) -> Any:
    """Return what is at "package.module.name".

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
        raise  # the application's own import of something else
