"""The one-time tokens of forms: the state of a request's form, and what templates render of it."""

from __future__ import annotations

from dataclasses import dataclass

import flask
from markupsafe import Markup

from ...errors import UnavailableError
from ...web.forms import FormRefused, hidden_input, issued_subject, notice
from .exchange import exchange
from .names import Subject
from .state import current

_FORM = "_fastdedup_form"


@dataclass(slots=True)
class FlaskForm:
    """The state of one request's form."""

    subject: Subject
    field: str
    token: str = ""
    """The token that the form was sent with."""
    again: bool = False
    """True if that token stays good and is rendered again: with a new one, sending again would order twice."""
    refused: FormRefused | None = None


def form_of() -> FlaskForm:
    """Return the state of the current request's form; if its view is not decorated, the state of the settings."""
    form = flask.g.get(_FORM)
    return open_form(None, None) if form is None else form


def open_form(subject: Subject | None, name: str | None) -> FlaskForm:
    """Set the subject and the field of the tokens of the current request's form, and return the form's state."""
    state = current()
    form = FlaskForm(subject or state.subject, name or state.field)
    setattr(flask.g, _FORM, form)
    return form


def issue_token(ttl: float | None = None) -> str:
    """Return a new token for the sender of the current request, such as for `hx-headers`.

    Args:
        ttl: seconds in which the form can be sent; by default the `Dedup`'s `token_ttl`.

    Raises:
        UnavailableError: the store does not answer, and the policy does not either.
    """
    return current().dedup.tokens.issue(subject_of(form_of()), ttl)


def one_time_token(ttl: float | None = None) -> Markup:
    """Render a hidden input with a token: a new token, unless the form that was sent may be sent again.

    The token is empty while the store is unavailable. The page is still shown, and when the form is sent, it gets the
    refusal of an outage.

    Args:
        ttl: seconds in which the form can be sent; by default the `Dedup`'s `token_ttl`.
    """
    form = form_of()
    return Markup(hidden_input(form.field, form.token if form.again else _issued(ttl)))


def one_time_notice() -> Markup:
    """Render why the form was refused; nothing if it was not refused."""
    refused = form_of().refused
    return Markup() if refused is None else Markup(notice(refused.title, refused.message))


def reopen() -> None:
    """Call this in a view if the form has not taken effect, whatever the response: its token can be used again.

    For example after a declined card, or if a field is not valid.
    """
    held, form = exchange(), form_of()
    if held.holds:
        held.recorder.undone = True
    form.again = held.holds and bool(form.token)


def subject_of(form: FlaskForm) -> str | None:
    """Return the subject of a form's token, or None for all callers.

    Raises:
        ConfigError: the subject function returned a value of another type.
    """
    return issued_subject(form.subject())


def _issued(ttl: float | None) -> str:
    try:
        return issue_token(ttl)
    except UnavailableError:
        return ""
