"""`@one_time_form`: a form takes effect once. Main path: `OneTimeView.handle` → `_answered`."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Unpack, overload
from urllib.parse import urlencode
from wsgiref.types import WSGIEnvironment

import flask
from werkzeug.datastructures import FileStorage

from ...errors import ConfigError
from ...flows import drive
from ...web.answers import refusal
from ...web.forms import (
    CONTENT_TYPES,
    HEADER,
    SAFE_METHODS,
    WAIT,
    FormRefused,
    SentForm,
    admit_form,
    contents,
    sent_token,
)
from ...web.request import BadBody, RequestTooLarge, everyone
from ...web.response import Response
from ...web.rules import ClaimSettings, Rule
from ..http.wsgi_request import request_of
from ..wsgi import WsgiClaims
from .exchange import FlaskExchange, exchange, reply
from .names import Subject
from .state import AppState, Decorated, View, current
from .tokens import open_form, subject_of

_CSRF = "csrf_token"
"""The field of Flask-WTF, which differs in each page."""


@overload
def one_time_form(view: View, /) -> View: ...


@overload
def one_time_form(
    *,
    subject: Subject | None = None,
    field: str | None = None,
    wait: float | None = WAIT,
    **settings: Unpack[ClaimSettings],
) -> Callable[[View], View]: ...


def one_time_form(
    view: Any = None,
    /,
    *,
    subject: Subject | None = None,
    field: str | None = None,
    wait: float | None = WAIT,
    **settings: Unpack[ClaimSettings],
) -> Any:
    """Decorate a view whose form takes effect once: GET passes, any other method redeems the form's token.

        @app.route("/order", methods=["GET", "POST"])
        @one_time_form
        def order(): ...                                  # the template has {{ one_time_token() }} in its form

    The same form again (a second click, a refresh, a duplicated tab) gets the first response. Any other form that
    cannot be accepted raises FormRefused. A short page answers it, unless an `errorhandler(FormRefused)` of yours
    shows the form anew. A script sends the token in the header X-One-Time-Token.

    Args:
        view: the view, if the decorator is used without arguments.
        subject: a function that returns the subject of its tokens; by default the one of `FastDedup`.
        field: the form's field; by default the one of `FastDedup`.
        wait: seconds that a second click waits for the first click's page.
        settings: see `fastdedup.web.rules.Rule`.

    Raises:
        ConfigError: a setting cannot be used.
    """
    form = OneTimeView(Rule("/", everyone, wait=WAIT if wait is None else wait, **settings), subject, field)
    return form.decorate if view is None else form.decorate(view)


class OneTimeView(Decorated):
    """The rules of a view with a one-time form, whose key is its token alone."""

    def __init__(self, rule: Rule, subject: Subject | None, field: str | None) -> None:
        self._rule = rule
        self._subject = subject
        self._field = field

    def limit(self, state: AppState) -> int | None:
        """Return how many bytes of the current request's body are read; None if it sends no form."""
        return None if flask.request.method in SAFE_METHODS else self._rule.max_request

    def claims_at(self, state: AppState, route: str) -> WsgiClaims:
        """Return the claims of a form's tokens."""
        return WsgiClaims(state.dedup, self._rule)

    def handle(self, view: Callable[[], Any]) -> Any:
        """Answer a request. Raises FormRefused."""
        state, environ = current(), flask.request.environ
        form = open_form(self._subject, self._field)
        if flask.request.method in SAFE_METHODS:
            return view()
        held = exchange()
        if held.holds:
            raise ConfigError(
                "a view can have idempotent() or one_time_form(), not both: one response cannot settle two claims"
            )
        docs = state.docs_at(environ)
        try:
            return self._answered(state, held, form, view, docs)
        except (RequestTooLarge, BadBody) as error:
            return reply(refusal(error, self._rule, docs))
        except FormRefused as error:
            form.refuse(error)
            raise

    def _answered(
        self, state: AppState, held: FlaskExchange, form: SentForm, view: Callable[[], Any], docs: str | None
    ) -> Any:
        request, claims = flask.request, state.claims(self, "")
        body = held.body_of(request.environ, self._rule.max_request)
        form.token = sent_token(request.headers.get(HEADER) or request.form.get(form.field))
        mark = self._mark(request.environ, form.field, body)
        subject = subject_of(form)
        person = HEADER not in request.headers
        redeeming = claims.redeem(form.token, subject)
        got = drive(admit_form(redeeming, mark, docs, held.leave_session, person=person))
        if isinstance(got, Response):
            return held.instead(got)
        held.hold(request.environ, got, self._rule, docs, mark)
        return view()

    def _mark(self, environ: WSGIEnvironment, field: str, body: bytes) -> bytes:
        if flask.request.mimetype in CONTENT_TYPES:
            fields = [pair for pair in flask.request.form.items(multi=True) if pair[0] not in (_CSRF, field)]
            files = (
                (name, file.filename, file.content_type, _digest(file))
                for name, file in flask.request.files.items(multi=True)
            )
            body = contents(urlencode(fields), files)
        return self._rule.mark(request_of(environ, body))


def _digest(file: FileStorage) -> str:
    digest = blake2b(digest_size=16)
    while chunk := file.stream.read(65536):
        digest.update(chunk)
    file.stream.seek(0)  # the view reads the file from its start
    return digest.hexdigest()
