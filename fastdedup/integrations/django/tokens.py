"""The one-time tokens of forms: the subject of a token, and the token of a form that is rendered.

Main path: `token_for`, which the template tag and `OneTimeFormMixin` call.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.contrib.sessions.backends import signed_cookies
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, QueryDict

from ...flows import drive
from ...web.forms import SentForm, issued_subject
from ...web.request import Request, by_header, everyone
from ..http.background_claims import run_in_background
from .bridge import AWAITING, BLOCKING, Bridge
from .capture import hold_of
from .config import function, gate, http
from .convert import SOURCE

__all__ = ["by_header", "by_user", "everyone", "session_subject"]

Subject = Callable[[HttpRequest], Any]
"""A function, sync or async, that returns the subject of a token: text, a number, a UUID, or None for all callers."""
_FORM = "_fastdedup_form"
_SESSION_ID = "_fastdedup"


@dataclasses.dataclass(slots=True)
class Form(SentForm):
    """The state of one request's form in Django."""

    elsewhere: bool = False
    """True if it was sent before, in another session: a page with a new token would need this request's session."""
    data: QueryDict | None = None
    """The form's contents, if it was refused."""
    prepared: list[str] = dataclasses.field(default_factory=list)
    """The tokens that were issued before rendering."""


def form_of(request: HttpRequest) -> Form:
    """Return the state of a request's form; if its view is not decorated, the state that the settings give."""
    form = getattr(request, _FORM, None)
    if form is None:
        given = http()
        form = open_form(request, given.subject, given.field)
    return form


def open_form(request: HttpRequest, subject: Subject | str | None, name: str) -> Form:
    """Set the subject and the field of the tokens of a request's form, and return the form's state."""
    form = Form(session_subject if subject is None else function(subject, "subject"), name)
    setattr(request, _FORM, form)
    return form


def session_subject(request: HttpRequest) -> str:
    """Return the session and the user as the subject: no other session can use the token, and signing out ends it.

    Raises:
        ImproperlyConfigured: there is no session.
    """
    if not hasattr(request, "session"):
        raise ImproperlyConfigured(
            "one-time tokens need django.contrib.sessions' SessionMiddleware, or a subject= of your own"
        )
    # First, because finding the user may end the session.
    user = getattr(getattr(request, "user", None), "pk", None)
    session = request.session
    name = session.get(_SESSION_ID)  # reads the session first: after that an expired session has no key
    if isinstance(session, signed_cookies.SessionStore):
        if name is None:  # here the session's key is its contents, which change
            name = session[_SESSION_ID] = secrets.token_urlsafe(16)
    else:
        if session.session_key is None:
            session.create()
        name = session.session_key
    return f"{name} {'-' if user is None else user}"


def leave_session(request: HttpRequest) -> None:
    """Let SessionMiddleware save no session and send no cookie: the form's first answer may have made another one."""
    if hasattr(request, "session"):
        vars(request.session)["is_empty"] = lambda: True  # an empty session is not saved
    # Without a cookie in the request, the middleware does not delete the browser's cookie either.
    request.COOKIES.pop(settings.SESSION_COOKIE_NAME, None)


def by_user(request: Request) -> str | None:
    """Return the signed-in user as the principal: the user's model and primary key.

    A request with a key but without such a user is answered 400, `principal-required`. If a framework authenticates
    inside of the view, the middleware and `idempotent` run before it and find no user: use the decorator of
    `fastdedup.integrations.drf` or `.ninja`.
    """
    return name_of(getattr(request.source[SOURCE], "user", None))


def name_of(account: Any) -> str | None:
    """Return a name for the object that stands for a caller, such as a user; None if it does not name a caller.

    Objects of two models may have the same primary key, so the model is part of the name.
    """
    key = getattr(account, "pk", None)
    if key in (None, "") or getattr(account, "is_authenticated", True) is False:
        return None
    kind = account.__class__  # a SimpleLazyObject tells the class of the user that it stands for
    model = getattr(getattr(kind, "_meta", None), "concrete_model", None) or kind
    return f"{model.__module__}.{model.__qualname__} {key}"


def issue_token(request: HttpRequest, ttl: float | None = None) -> str:
    """Return a new token for the sender of this request.

    Args:
        request: the request for the page that shows the form.
        ttl: seconds in which the form can be sent; by default the `Dedup`'s `token_ttl`.

    Raises:
        UnavailableError: the store does not answer, and the policy does not either.
    """
    return drive(_issue(BLOCKING, request, ttl))


async def aissue_token(request: HttpRequest, ttl: float | None = None) -> str:
    """Return a new token, for async views; see `issue_token`. The next form of this request shows this token.

    A template is rendered in the event loop's thread. Without this call, `{% one_time_token %}` blocks the loop until
    the store answers, usually for less than a millisecond, and cannot read a session or user from the database.
    """
    token = await _issue(AWAITING, request, ttl)
    form_of(request).prepared.append(token)
    return token


def token_for(request: HttpRequest, ttl: float | None = None) -> str:
    """Return the token for a form that is being rendered; see `SentForm.rendered`.

    If it is empty, the form that is sent is shown once more, with a token if the store answers by then.
    """
    form = form_of(request)
    return form.rendered(lambda: form.prepared.pop(0) if form.prepared else issue_token(request, ttl))


def reopen(request: HttpRequest) -> None:
    """Call this in a view if the form has not taken effect, whatever the response: its token can be used again.

    For example after a declined card. `OneTimeFormMixin` does the same for a form that is not valid.
    """
    hold, form = hold_of(request), form_of(request)
    if hold is not None:
        hold.recorder.undone = True
        form.again = bool(form.token)


def reopen_invalid(request: HttpRequest) -> None:
    """Take note that a form has errors: unless its view redirects, its token can be used again."""
    hold, form = hold_of(request), form_of(request)
    if hold is not None:
        hold.recorder.invalid = True
        form.again = bool(form.token)


async def subject_of(bridge: Bridge, request: HttpRequest) -> str | None:
    """Return the subject of a request's tokens.

    Raises:
        ConfigError: the subject function returned a value of another type.
    """
    return issued_subject(await bridge.call(form_of(request).subject, request))


async def _issue(bridge: Bridge, request: HttpRequest, ttl: float | None) -> str:
    who = await subject_of(bridge, request)
    bound = gate().bind(lambda one: one.tokens)
    background, tokens = bound.get()
    seconds = bound.per_process.seconds
    return await run_in_background(background, lambda: tokens.issue(who, ttl), seconds, blocks=bridge.blocks)
