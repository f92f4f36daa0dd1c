"""`@commits`: a view's work, an inbox's row and the response commit in one transaction.

Main path: `FlaskCommits.handle` → the view → `FlaskExchange`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, Unpack

import flask

from ...errors import ConfigError
from ...flows import drive, step
from ...sync.sql import BlockedGate, Inbox
from ...web.request import Principal
from ...web.response import Response
from ...web.rules import KeySettings
from ..http.committing import Committed, CommittedWork, RouteCommits, Steps
from ..http.wsgi_request import whole_path
from ..wsgi import WsgiClaims
from .exchange import FlaskExchange, exchange, is_claimed, reply
from .keys import FlaskOperation
from .state import AppState, View, current

_STEPS = Steps()


def commits(
    inbox: Inbox,
    *,
    begin: Any = None,
    principal: Principal | None = None,
    **settings: Unpack[KeySettings],
) -> Callable[[View], View]:
    """Decorate a view: its work, an inbox's row and the response commit in one transaction.

        @app.post("/payments")
        @commits(inbox, begin=Session.begin, principal=by_session("user_id"), required=True)
        def pay(committed):
            committed.session.add(Payment(...))
            return {"paid": 1}, 201

    The view gets a `Committed` by the name `committed`. The response is sent after the COMMIT, and a retry gets it
    from the row. A returned response that the rule does not keep, and an error, roll back, also one that an error
    handler answers. For the whole table see `docs/committing-endpoint.md`.

    Args:
        inbox: the inbox, of `fastdedup.sync.sql`.
        begin: begins the transaction, like `Session.begin`; by default the inbox's.
        principal: see `idempotent`.
        settings: see `fastdedup.web.rules.Rule`; `unstored` has no effect.

    Raises:
        ConfigError: a setting cannot be used, or there is no `begin`.
    """
    named = {} if principal is None else {"principal": principal}
    return FlaskCommits(inbox, begin, {**settings, **named}).decorate


class FlaskCommits(FlaskOperation):
    """The rules of a view that commits with its response: a rule for each route that leads to it.

    Raises:
        ConfigError: a setting cannot be used, or there is no `begin`.
    """

    def __init__(self, inbox: Inbox, begin: Any, settings: dict[str, Any]) -> None:
        super().__init__(settings)
        inbox.beginning(begin)

        @cache  # an application has a fixed number of routes
        def route_of(claims: WsgiClaims, state: AppState) -> RouteCommits:
            return RouteCommits(claims, state.web_keys, inbox, begin, BlockedGate)

        self._route_of = route_of

    def handle(self, view: Callable[..., Any]) -> Any:
        """Answer a request."""
        state, held = current(), exchange()
        route = self._route_of(self.claims_of(state), state)
        docs = state.docs_at(flask.request.environ)
        got = _begin(route, held, docs)
        if isinstance(got, Response):
            if not held.holds:
                return held.answer(got)
            return held.instead(held.mend(got)) if held.recorder.replayed else reply(got)
        assert held.committing is not None
        response = drive(held.committing.run(partial(step(view), committed=got)))
        return reply(response) if isinstance(response, Response) else response


def _begin(route: RouteCommits, held: FlaskExchange, docs: str | None) -> Committed[Any] | Response:
    """Claim the request's key at the gate, and begin its transaction; or return the answer in the view's place."""
    environ, claims = flask.request.environ, route.claims
    if is_claimed():
        raise ConfigError(
            "IdempotencyMiddleware has claimed this request already: leave its route to commits()"
        )
    if held.committing is not None:
        raise ConfigError("this request has a transaction already: let one commits() lead to a view, not two")
    work = CommittedWork(route, docs, whole_path(environ), environ["REQUEST_METHOD"], _STEPS)
    got = claims.admit(environ, docs, held.body_of, work.claim)
    if isinstance(got, Response):
        return got
    if got is not None:
        held.hold(environ, got, claims.rule, docs)
        work.hold(got, held.recorder)
    elif work.gate_wire is not None:
        held.work_under(work.gate_wire, held)
    held.committing = work
    return drive(work.begin())
