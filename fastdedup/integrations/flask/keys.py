"""`@idempotent`: a view's requests with an Idempotency-Key take effect once. Main path: `FlaskOperation.handle`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

import flask

from ...web.request import Principal, everyone
from ...web.response import Response
from ...web.rules import KeySettings, Rule, declared, make_rules
from ..wsgi import WsgiClaims
from .exchange import exchange, is_claimed
from .state import AppState, Decorated, View, current, route_of


def idempotent(
    *, principal: Principal | None = None, **settings: Unpack[KeySettings]
) -> Callable[[View], View]:
    """Decorate a view: a POST or PATCH request with an Idempotency-Key takes effect once.

        @app.post("/orders")
        @idempotent(principal=by_session("user_id"), required=True, wait=5.0)
        def order(): ...

    Write it below the decorator of the route, and below those that authorize. Classes: decorate a method of a
    MethodView, or list it in `decorators`. Async views work as in Flask itself. The response settles the key, also
    one that an error handler makes. An exception without an error handler releases the key.

    Args:
        principal: a plain function that names the caller whom a key belongs to. It runs in the request's context, so
            it may use `session`, `g` and `flask.request`; by default the one of `FastDedup`.
        settings: see `fastdedup.web.rules.Rule`. The settings of `FastDedup` apply here, too.

    Raises:
        ConfigError: a setting cannot be used or is unknown.
    """
    named = {} if principal is None else {"principal": principal}
    return FlaskOperation({**settings, **named}).decorate


class FlaskOperation(Decorated):
    """The rules of a decorated view: a rule for each route that leads to it.

    Raises:
        ConfigError: a setting cannot be used, or is unknown.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        make_rules(["/"], {"principal": everyone, **settings})  # so that a mistake raises at the decorator
        self._settings = settings

    def limit(self, state: AppState) -> int | None:
        """Return how many bytes of the current request's body are read; None if it claims no key."""
        if "HTTP_IDEMPOTENCY_KEY" not in flask.request.environ:
            return None
        rule = self.claims_of(state).rule
        return rule.max_request if flask.request.method in rule.methods and not is_claimed() else None

    def rule(self, state: AppState, route: str) -> Rule:
        """Return the rule of a route. Raises ConfigError if there is no principal."""
        return make_rules([declared(route)], {**state.settings, **self._settings})[0]

    def claims_of(self, state: AppState) -> WsgiClaims:
        """Return the claims of the current request's route."""
        return state.claims(self, route_of(flask.request.url_rule))

    def claims_at(self, state: AppState, route: str) -> WsgiClaims:
        """Return the claims of a route."""
        return WsgiClaims(state.dedup, self.rule(state, route))

    def handle(self, view: Callable[[], Any]) -> Any:
        """Answer a request."""
        state, environ = current(), flask.request.environ
        claims = self.claims_of(state)
        if flask.request.method not in claims.rule.methods or is_claimed():
            return view()
        held = exchange()
        docs = state.docs_at(environ)
        got = claims.admit(environ, docs, held.body_of)
        if got is None:
            return view()
        if isinstance(got, Response):
            return held.answer(got)
        held.hold(environ, got, claims.rule, docs)
        return view()
