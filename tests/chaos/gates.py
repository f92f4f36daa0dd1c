"""The two gates of a worker's run. Only public names of fastdedup, so that workers can run another build of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastdedup import Dedup, LocalLRU, Reject

from .steps import TOKEN_TTL, TTL

LEASE = 0.4


def scopes_of(order: dict[str, Any], on_event: Callable[[Any], None]) -> dict[str, Dedup]:
    """Return the two gates of a worker's run: "reject", which opens and closes for both, and "local".

    `order`: url, namespace, timeout; `planted` names a bug, `known` the seconds of known duplicates,
            `options` are the gate's; with `by_slot` a Cluster refuses undeclared keys.
    """
    store, policy = order["url"], LocalLRU(maxsize=order.get("maxsize", 10_000))
    options = dict(order.get("options", {}))
    if options.pop("by_slot", False):
        from ..stores import refusing_store

        store = refusing_store(store, timeout=order["timeout"])
    if bug := order.get("planted"):
        from . import planted

        store, policy = planted.broken(bug, store, order["timeout"], policy)
    reject = Dedup(
        store,
        namespace=order["namespace"],
        lease=LEASE,
        ttl=TTL,
        failure_ttl=TTL,
        token_ttl=TOKEN_TTL,
        timeout=order["timeout"],
        known_duplicates=order.get("known", 0.0),
        on_unavailable=Reject(),
        on_event=on_event,
        **options,
    )
    return {"reject": reject, "local": reject.scoped("local", on_unavailable=policy)}
