"""`/v1/ledgers/…`: the requests about ledgers, whose names stand in the path."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

from ..namespaces import Namespaces
from ..wire_verbs import VERBS
from .verbs import Client, Handler, HttpAnswer

PREFIX: Final = "/v1/ledgers/"
_PATHS: Final = frozenset(verb.path for verb in VERBS if verb.of_ledger)


def route_path(path: str) -> str:
    """Return the path of the route that answers this path."""
    if not path.startswith(PREFIX):
        return path
    name, slash, verb = path.removeprefix(PREFIX).partition("/")
    route = f"{PREFIX}{{name}}{slash}{verb}"
    return route if name and route in _PATHS else path


def named(handler: Handler) -> Handler:
    """Return a handler that adds the ledger's name to the request."""

    async def handle(namespaces: Namespaces, ask: Any, client: Client) -> HttpAnswer:
        name = client.request.path.removeprefix(PREFIX).partition("/")[0]
        return await handler(namespaces, SimpleNamespace(ledger=name, namespace=None, **dict(ask)), client)

    return handle
