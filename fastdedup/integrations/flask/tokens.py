"""The one-time tokens of forms: the state of a request's form, and what templates render of it."""

from __future__ import annotations

import flask
from markupsafe import Markup

from ...web.forms import SentForm, hidden_input, issued_subject, notice
from .exchange import exchange
from .names import Subject
from .state import current

_FORM = "_fastdedup_form"


def form_of() -> SentForm:
    """Return the state of the current request's form; if its view is not decorated, the state of the settings."""
    form = flask.g.get(_FORM)
    return open_form(None, None) if form is None else form


def open_form(subject: Subject | None, name: str | None) -> SentForm:
    """Set the subject and the field of the tokens of the current request's form, and return the form's state."""
    state = current()
    form = SentForm(subject or state.subject, name or state.field)
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
    return Markup(hidden_input(form.field, form.rendered(lambda: issue_token(ttl))))


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


def subject_of(form: SentForm) -> str | None:
    """Return the subject of a form's token, or None for all callers.

    Raises:
        ConfigError: the subject function returned a value of another type.
    """
    return issued_subject(form.subject())
