"""One endpoint of an ASGI application under the gate, for the decorators of Starlette and Litestar.

Main path: `EndpointGate.serve` → `AsgiGate.guarded`, the same as the middleware's.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from ...gateway import Dedup
from ...keys import fingerprint
from ...web.policy import PublishedPolicy, docs_at
from ...web.record_keys import SCOPE
from ...web.request import Request
from ...web.route_claims import RouteClaims
from ...web.rules import Rule, declared, make_rules
from .guarded import AsgiGate
from .lifespan import ASGIApp, Receive, Scope, Send

_ANY = "/*"
"""The rule's path if the framework does not tell the route: then the request's path is in the record's key."""


def _with_path(rule: Rule) -> Rule:
    """Return a rule that compares the path unchanged: `/orders` and `/orders/` may be two routes."""
    own = rule.fingerprint

    def mark(request: Request) -> Any:
        value, path = own(request), request.path.encode("utf-8", "surrogatepass")
        return None if value is None else fingerprint(value) + path

    return replace(rule, fingerprint=mark)


class EndpointGate(AsgiGate):
    """The rules of an endpoint: one for each route that leads to it.

    Args:
        dedup: the application's `Dedup`.
        docs: the address of the documentation, which every error links to.
        settings: see `fastdedup.web.rules.Rule`.

    Raises:
        ConfigError: a setting cannot be used, or there is no principal.
    """

    def __init__(self, dedup: Dedup, docs: str | None, settings: dict[str, Any]) -> None:
        rules = make_rules([_ANY], settings)  # so that mistakes show at the decorator
        super().__init__(dedup)
        self._dedup = dedup
        self._settings = settings
        self._web_keys = dedup.scoped(SCOPE)  # kept: its figures then stand at 0 before the first request
        self._docs = PublishedPolicy(rules, dedup.settings, docs).docs
        self.claims_at = cache(self._made)
        """Returns the claims of a route, for requests of any method. An application has a fixed number of routes."""

    async def serve(
        self, app: ASGIApp, route: str | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Serve a request of an endpoint; `route` is the endpoint's declared path."""
        claims = self.claims_at(route)
        if scope["type"] != "http" or scope["method"].upper() not in claims.rule.methods:
            return await app(scope, receive, send)
        return await self.guarded(app, claims, self.docs_at(scope), scope, receive, send)

    def _made(self, route: str | None) -> RouteClaims:
        rule = make_rules([_ANY if route is None else declared(route)], self._settings)[0]
        return RouteClaims(self._dedup, _with_path(rule) if route is None else rule)

    def docs_at(self, scope: Scope) -> str | None:
        """Return the documentation's address: a path of this application's is below its mount."""
        return docs_at(self._docs, scope.get("root_path", ""))
