"""`FastDedup`: gives a Flask application its `Dedup`, and captures its responses. Main path: `FastDedup.init_app`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Unpack
from wsgiref.types import WSGIApplication

import flask

from ...checks import named, wrong_type
from ...errors import ConfigError
from ...sync import Dedup
from ...web.forms import FIELD, FormRefused
from ...web.policy import PublishedPolicy
from ...web.request import everyone
from ...web.response import Response
from ...web.rules import KeySettings, Rule, make_rules
from ..http.wsgi_request import request_of
from .exchange import FlaskExchange, reply
from .names import Subject, session_subject
from .state import BELOW, MARK, NAME, AppState, Decorated, current, route_of
from .tokens import one_time_notice, one_time_token


class FastDedup:
    """Gives an application's `idempotent` and `one_time_form` their `Dedup`; for each application, `init_app` once.

        gate = FastDedup(principal=by_session("user_id"))
        gate.init_app(app, Dedup("redis://localhost:6379/0", namespace="shop"))

    Templates get `one_time_token()` and `one_time_notice()`.

    Args:
        app: the application, or None to call `init_app` later.
        dedup: a `fastdedup.sync.Dedup`; by default `app.config["FASTDEDUP"]`, which is one, or has its arguments.
        docs: the address of the policy: a path such as `/idempotency`, which is then served here, or a URL of your
            own. Every error links to it.
        subject: a function that returns the subject of a form's token; by default `session_subject`.
        field: the name of a form's field for its token.
        settings: what all views under `idempotent` share, see `fastdedup.web.rules.Rule`; also `principal`.

    Raises:
        ConfigError: a setting cannot be used, or the application has a `FastDedup` already.
    """

    def __init__(
        self,
        app: flask.Flask | None = None,
        dedup: Dedup | None = None,
        *,
        docs: str | None = None,
        subject: Subject = session_subject,
        field: str = FIELD,
        principal: Any = None,
        **settings: Unpack[KeySettings],
    ) -> None:
        named = {} if principal is None else {"principal": principal}
        make_rules(["/"], {"principal": everyone, **settings, **named})  # so that a mistake shows here
        if not callable(subject) or not isinstance(field, str) or not field:
            raise ConfigError(f"subject must be a function and field a name, got {subject!r} and {field!r}")
        self._docs = docs
        self._subject = subject
        self._field = field
        self._settings: dict[str, Any] = {**settings, **named}
        if app is not None:
            self.init_app(app, dedup)

    def init_app(self, app: flask.Flask, dedup: Dedup | None = None) -> None:
        """Set an application up. Raises ConfigError as the class does."""
        if not isinstance(app, flask.Flask):
            raise wrong_type(app, "app in FastDedup(app, dedup)", "flask.Flask")
        if NAME in app.extensions:
            raise ConfigError(f"the application {app.name!r} has a FastDedup already")
        gate = _dedup_of(app.config.get("FASTDEDUP") if dedup is None else dedup)
        docs = PublishedPolicy([], gate.settings, self._docs).path
        state = AppState(gate, self._docs, self._subject, self._field, self._settings)
        app.extensions[NAME] = state
        app.wsgi_app = _captured(app.wsgi_app)  # type: ignore[method-assign] # Flask's own way for middleware
        app.before_request_funcs.setdefault(None, []).insert(0, _read_first)
        if FormRefused not in app.error_handler_spec[None][None]:
            app.register_error_handler(FormRefused, _form_refused)
        app.add_template_global(one_time_token)
        app.add_template_global(one_time_notice)
        if docs is not None:
            app.add_url_rule(docs, "fastdedup_policy", _policy)


def _captured(app: WSGIApplication) -> Any:
    """Return an application that puts an exchange into each request's environ, for a view to claim in."""
    return lambda environ, start_response: FlaskExchange(start_response).run(app, environ)


def _dedup_of(given: Any) -> Dedup:
    if isinstance(given, Dedup):
        return given
    if not isinstance(given, dict):
        raise ConfigError(
            f"dedup must be a fastdedup.sync.Dedup, got {named(given)}: give it to init_app(app, dedup), or set "
            'app.config["FASTDEDUP"] = {"url": "redis://localhost:6379/0", "namespace": "shop"}'
        )
    return Dedup(**given)


def _decorated(endpoint: str | None, method: str) -> Decorated | None:
    """Return the rules of a view, of which a class may have one for each method."""
    view = flask.current_app.view_functions.get(endpoint or "")
    handler = getattr(getattr(view, "view_class", None), method.lower(), None)
    found: Decorated | None = getattr(view, MARK, None) or getattr(handler, MARK, None)
    return found


def _read_first() -> None:
    """Read the body of a claimed request before another before_request function reads it as a form.

    Raises:
        ConfigError: the view's decorator stands in the wrong place.
    """
    request = flask.request
    decorated = _decorated(request.endpoint, request.method)
    if decorated is None:
        _check_order(request.endpoint)
        return
    exchange = request.environ.get("fastdedup.flask")
    if exchange is None:
        return
    limit = decorated.limit(current())
    if limit is not None:
        exchange.read(request.environ, limit)


def _check_order(endpoint: str | None) -> None:
    """Check that no decorator of ours is above the one of a view's route: the view would run without it.

    A view may have one route without the decorator if another route leads to the decorated view.
    """
    views = flask.current_app.view_functions
    view = views.get(endpoint or "")
    above = getattr(view, BELOW, None)
    if above is not None and not any(getattr(each, MARK, None) is above for each in views.values()):
        raise ConfigError(
            f"a decorator of fastdedup must be below @app.route: the route of {endpoint!r} leads to the view "
            "without the decorator"
        )


def _form_refused(error: FormRefused) -> flask.Response:
    return reply(error.response(request_of(flask.request.environ, b"")))


def _policy() -> flask.Response:
    state = current()
    if state.policy is None:
        state.policy = PublishedPolicy(_rules(state), state.dedup.settings, state.docs)
    page: Response = state.policy.page(flask.request.headers.get("accept"))
    return reply(page)


def _rules(state: AppState) -> list[Rule]:
    """Return the published rules of all views that take keys."""
    found: dict[str, Rule] = {}
    for route in flask.current_app.url_map.iter_rules():
        for method in sorted(route.methods or ()):
            decorated = _decorated(route.endpoint, method)
            rule = None if decorated is None else decorated.rule(state, route_of(route))
            if rule is not None and method in rule.methods:
                before = found.get(rule.path)
                methods = (*before.methods, method) if before else (method,)
                found[rule.path] = replace(rule, methods=methods)
    return list(found.values())
