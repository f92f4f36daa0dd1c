"""`/v1/ledgers/…`: the handlers of ledgers, whose names stand in the path."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any

from ..counters import outcome_of_fault
from ..ledgers import ServedLedger
from ..namespaces import Namespaces
from ..verbs import id_audit
from . import models
from .verbs import Client, Handler, HttpAnswer

PREFIX = "/v1/ledgers/"
LEDGER = PREFIX + "{name}"
FIRST, SEEN, FORGET = (f"{LEDGER}/{verb}" for verb in ("first", "seen", "forget"))
_BELOW = frozenset({"first", "seen", "forget"})

Asked = Callable[[Namespaces, ServedLedger, Any, Client], Awaitable[HttpAnswer]]


def route_path(path: str) -> str:
    """Return the path of the route that answers this path."""
    if not path.startswith(PREFIX):
        return path
    name, _, verb = path.removeprefix(PREFIX).partition("/")
    if not name or (verb and verb not in _BELOW) or path.endswith("/"):
        return path
    return f"{LEDGER}/{verb}" if verb else LEDGER


def _counted(verb: str, handler: Asked) -> Handler:
    """Return a handler that finds the ledger, and counts its answers."""

    async def count(namespaces: Namespaces, ask: Any, client: Client) -> HttpAnswer:
        since = perf_counter()
        served = namespaces.ledgers.find(client.request.path.removeprefix(PREFIX).partition("/")[0])
        outcome = "ok"
        try:
            return await handler(namespaces, served, ask, client)
        except Exception as fault:
            outcome = outcome_of_fault(fault)
            raise
        finally:
            namespaces.counters.observe(served.namespace, verb, outcome, perf_counter() - since)

    return count


async def _first(
    namespaces: Namespaces, served: ServedLedger, ask: models.FirstRequest, client: Client
) -> HttpAnswer:
    namespaces.access.charge("first", len(ask.ids) - 1)
    # Where the client hangs up, nobody reads the answer: the call is cancelled, and nothing stays remembered.
    return HttpAnswer(200, {"first": await client.unless_gone(served.first(ask.ids, ask.owner))})


async def _seen(
    namespaces: Namespaces, served: ServedLedger, ask: models.IdsRequest, client: Client
) -> HttpAnswer:
    return HttpAnswer(200, {"seen": await served.seen(ask.ids)})


async def _forget(
    namespaces: Namespaces, served: ServedLedger, ask: models.ForgetIdsRequest, client: Client
) -> HttpAnswer:
    heard = id_audit(namespaces, served.namespace, client.peer, ask.reason)
    return HttpAnswer(200, {"forgotten": await served.forget(ask.ids, heard)})


async def _stats(namespaces: Namespaces, served: ServedLedger, ask: None, client: Client) -> HttpAnswer:
    async def read() -> Any:
        async with namespaces.turns.reads.turn(namespaces.access.path, client.peer):
            return await served.facts()

    # If the client hangs up, its read gives its turn to the next one.
    return HttpAnswer(200, await client.unless_gone(read()))


first = _counted("first", _first)
"""Answers `POST /v1/ledgers/{name}/first`."""
seen = _counted("seen", _seen)
"""Answers `POST /v1/ledgers/{name}/seen`."""
forget = _counted("forget_id", _forget)
"""Answers `POST /v1/ledgers/{name}/forget`."""
stats = _counted("ledger", _stats)
"""Answers `GET /v1/ledgers/{name}`."""
