"""The one-time tokens of forms: the subject of a token, and the token of a form that is rendered.

Main path: `token_for`, which the template tag and `OneTimeFormMixin` call.
"""

from __future__ import annotations

import dataclasses
import secrets
import uuid
from collections.abc import Callable
from typing import Any

from django.contrib.sessions.backends import signed_cookies
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, QueryDict

from ...errors import ConfigError, UnavailableError
from ...web.request import Request, by_header, everyone
from .bridge import AWAITING, BLOCKING, Bridge, drive
from .capture import hold_of
from .config import function, gate, http
from .convert import SOURCE

__all__ = ["by_header", "by_user", "everyone", "session_subject"]

Subject = Callable[[HttpRequest], Any]
"""A function, sync or async, that names whom a token is issued to: text, a number, a UUID, or None for everybody."""
_FORM = "_fastdedup_form"
_SESSION_ID = "_fastdedup"


@dataclasses.dataclass(slots=True)
class Form:
    """The state of one request's form."""

    subject: Subject
    field: str
    token: str = ""
    """The token that the form was sent with."""
    again: bool = False
    """True where that token stays good and is rendered again: with a new one, sending again would order twice."""
    data: QueryDict | None = None
    """The form's contents, where it was refused."""
    prepared: list[str] = dataclasses.field(default_factory=list)
    """The tokens that were issued before rendering."""


def form_of(request: HttpRequest) -> Form:
    """Return what is known of a request's form; by the settings, where its view is not decorated."""
    form = getattr(request, _FORM, None)
    if form is None:
        given = http()
        form = open_form(request, given.subject, given.field)
    return form


def open_form(request: HttpRequest, subject: Subject | str | None, name: str) -> Form:
    """Say whose tokens a request's form has, and in which field."""
    form = Form(session_subject if subject is None else function(subject, "subject"), name)
    setattr(request, _FORM, form)
    return form


def session_subject(request: HttpRequest) -> str:
    """Name the session and the user: a token dies with signing in or out, and is no use to anybody else.

    Raises:
        ImproperlyConfigured: there is no session.
    """
    if not hasattr(request, "session"):
        raise ImproperlyConfigured(
            "one-time tokens need django.contrib.sessions' SessionMiddleware, or a subject= of your own"
        )
    user = _user_of(request)  # first, as it may end the session
    session = request.session
    name = session.get(_SESSION_ID)  # reading it loads it: a key that has expired is not one any more
    if isinstance(session, signed_cookies.SessionStore):
        if name is None:  # its key is its contents
            name = session[_SESSION_ID] = secrets.token_urlsafe(16)
    else:
        if session.session_key is None:
            session.create()
        name = session.session_key
    return f"{name} {'-' if user is None else user}"


def by_user(request: Request) -> str | None:
    """A principal: the user who is signed in. Those who are not share their keys, as if there were one of them."""
    user = _user_of(request.source[SOURCE])
    return None if user is None else str(user)


def issue_token(request: HttpRequest, ttl: float | None = None) -> str:
    """Return a new token for whoever sent this request.

    Args:
        request: of the page that shows the form.
        ttl: seconds in which the form can be sent; by default the `Dedup`'s `token_ttl`.

    Raises:
        UnavailableError: the store does not answer, and the policy does not either.
    """
    return drive(_issue(BLOCKING, request, ttl))


async def aissue_token(request: HttpRequest, ttl: float | None = None) -> str:
    """Do as `issue_token`, from an async view; the next form rendered for this request shows this token.

    A template is rendered in the event loop's thread. Without this, `{% one_time_token %}` blocks the loop for an
    answer of the store, usually for less than a millisecond, and cannot read a session or user from the database.
    """
    token = await _issue(AWAITING, request, ttl)
    form_of(request).prepared.append(token)
    return token


def token_for(request: HttpRequest, ttl: float | None = None) -> str:
    """Return the token for a form that is being rendered: a new one, unless the one that came stays good.

    While the store is unavailable, and the policy refuses to do without: an empty one. The page is shown, and
    when the form is sent, it is shown once more, with a token if there is one by then.
    """
    form = form_of(request)
    if form.again:
        return form.token
    if form.prepared:
        return form.prepared.pop(0)
    try:
        return issue_token(request, ttl)
    except UnavailableError:
        return ""


def reopen(request: HttpRequest) -> None:
    """Say, in a view, that nothing was done for this form, whatever the response: its token stays good.

    For a declined card, say. `OneTimeFormMixin` does so itself for a form that is not valid.
    """
    hold, form = hold_of(request), form_of(request)
    if hold is not None:
        hold.undone = True
        form.again = bool(form.token)


def reopen_invalid(request: HttpRequest) -> None:
    """Say that a form has errors: unless its view redirects, nothing was done."""
    hold, form = hold_of(request), form_of(request)
    if hold is not None:
        hold.invalid = True
        form.again = bool(form.token)


async def subject_of(bridge: Bridge, request: HttpRequest) -> str | None:
    """Return whom tokens are issued to.

    Raises:
        ConfigError: the function returned something else than a name.
    """
    who = await bridge.call(form_of(request).subject, request)
    if who is None or isinstance(who, str):
        return who
    if isinstance(who, int | uuid.UUID) and not isinstance(who, bool):
        return str(who)
    raise ConfigError(f"a subject is text, a number, a UUID or None, not {type(who).__name__}")


async def _issue(bridge: Bridge, request: HttpRequest, ttl: float | None) -> str:
    who = await subject_of(bridge, request)
    bound = gate().bind(lambda one: one.tokens)
    background, tokens = bound.get()
    return await bridge.run(background, lambda: tokens.issue(who, ttl), bound.per_process.seconds)


def _user_of(request: HttpRequest) -> Any:
    return getattr(getattr(request, "user", None), "pk", None)
