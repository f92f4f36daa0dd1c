"""One-time forms: the messages for people whose form is not acted upon."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from html import escape
from typing import Any, TypeVar
from urllib.parse import SplitResult, quote, urlsplit

from ..errors import UnavailableError
from ..model import Outcome, State
from .answers import AnsweredClaim, replay, stored_by
from .problems import ProblemType, respond, whole_seconds
from .request import EVERYONE, Request, name_of_caller
from .response import DEGRADED, Response

C = TypeVar("C", bound=AnsweredClaim)
FIELD = "one_time_token"
HEADER = "X-One-Time-Token"
"""The header for forms that a script sends."""
SAFE_METHODS = ("GET", "HEAD", "OPTIONS", "TRACE")
"""The methods that show a form; the others send it."""
CONTENT_TYPES = ("application/x-www-form-urlencoded", "multipart/form-data")
"""The content types of a form that a browser sends."""
_NOBODY = ("nobody",)
"""The subject of a person without a name. None would match every token, also another person's."""
WAIT = 10.0
"""Seconds that a second click waits for the first click's page."""
_BUSY_RETRY = 2.0
_SOON = 1.0
_STYLE = (
    "body{font:17px/1.6 system-ui,sans-serif;max-width:34rem;margin:15vh auto;padding:0 1.5rem;"
    "color-scheme:light dark}"
    "a{display:inline-block;margin-top:1rem;padding:.6rem 1.2rem;border-radius:.5rem;background:#2457d6;color:#fff;"
    "text-decoration:none}"
)


class Refusal(StrEnum):
    """Why a form is not acted upon."""

    MISSING = "missing"
    """It has no token."""
    EXPIRED = "expired"
    """Its token was never issued, or expired before the form was sent."""
    FOREIGN = "foreign"
    """Its token was issued to another person, or before they signed out. It was not sent before: nothing was done."""
    DONE = "done"
    """It was sent before, and its page cannot be shown: it was not stored, or they signed in or out since."""
    CHANGED = "changed"
    """Its token was used before, with other contents."""
    BUSY = "busy"
    """It was sent before, and that request still runs."""
    UNAVAILABLE = "unavailable"
    """The store does not answer, so whether it was sent before is unknown. Nothing was done."""


_PAGES = {
    Refusal.MISSING: (
        400,
        "This form is incomplete",
        "It came without its one-time token. Please use a fresh form.",
    ),
    Refusal.EXPIRED: (410, "This form has expired", "Nothing was done. Please use a fresh form."),
    Refusal.FOREIGN: (
        403,
        "This form belongs to another session",
        "You have signed in or out since it was opened. Nothing was done. Please use a fresh form.",
    ),
    Refusal.DONE: (
        409,
        "This form was sent before",
        "What was sent first was done; its page cannot be shown again. To do it once more use a fresh form.",
    ),
    Refusal.CHANGED: (
        422,
        "This form was sent before, with other contents",
        "What you sent first was done; what you changed since was not. To send something else use a fresh form.",
    ),
    Refusal.BUSY: (
        409,
        "This form is still being processed",
        "It was sent before, and takes longer than usual. Please wait a moment, then send it once more: it is "
        "done only once.",
    ),
    Refusal.UNAVAILABLE: (
        503,
        "Please try again in a moment",
        "We cannot make sure at the moment that this is done only once, so nothing was done.",
    ),
}

_OF_OUTCOME = {
    Outcome.UNKNOWN: Refusal.EXPIRED,
    Outcome.IN_PROGRESS: Refusal.BUSY,
}
"""Why a form is refused whose token was neither acquired nor can be replayed; another subject's: `_OF_STATE`."""
_OF_STATE = {
    None: Refusal.EXPIRED,
    State.ISSUED: Refusal.FOREIGN,
    State.RELEASED: Refusal.FOREIGN,
    State.PROCESSING: Refusal.BUSY,
    State.SUCCEEDED: Refusal.DONE,
    State.FAILED: Refusal.DONE,
}
_NOT_ACCEPTED = (
    "What was sent first was answered with an error; its page cannot be shown again. To send it once more use a "
    "fresh form."
)


class FormRefused(Exception):
    """A form that is not acted upon. Catch it to show the form anew, with `message` and a fresh token.

    Attributes:
        reason: a `Refusal`.
        status: the HTTP status.
        title, message: the text for a person.
        retry_after: seconds after which the same form may be sent again, or None.
    """

    def __init__(self, reason: Refusal, *, retry_after: float | None = None) -> None:
        self.reason = reason
        self.status, self.title, self.message = _PAGES[reason]
        self.retry_after = retry_after
        super().__init__(f"{reason}: {self.title}")

    def response(self, request: Request) -> Response:
        """Return a page with the message and a link back to the form.

        For htmx (HX-Request) the message alone, to be swapped into the page; for other scripts a problem.
        """
        if request.header("hx-request") == "true":
            return self._html(notice(self.title, self.message))
        if "text/html" not in (request.header("accept") or ""):
            problem = ProblemType(f"form-{self.reason}", self.status, self.title, self.message)
            return respond(problem, retry_after=self.retry_after)
        return self._html(self._page(_origin(request)))

    def _html(self, text: str) -> Response:
        body = text.encode()
        headers = [(b"content-type", b"text/html; charset=utf-8"), (b"content-length", b"%d" % len(body))]
        if self.retry_after is not None:
            headers.append((b"retry-after", whole_seconds(self.retry_after)))
        return Response(self.status, [*headers, (b"cache-control", b"no-store")], body)

    def _page(self, back: str) -> str:
        return (
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(self.title)}</title>'
            f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
            f"<h1>{escape(self.title)}</h1><p>{escape(self.message)}</p>"
            f'<a href="{escape(back)}">Open a fresh form</a></html>'
        )


def notice(title: str, message: str) -> str:
    """Return the part of a page that says why a form was refused."""
    return f'<div class="one-time-notice" role="alert"><strong>{escape(title)}</strong><p>{escape(message)}</p></div>'


def hidden_input(field: str, token: str) -> str:
    """Return the input of a form that has its token.

    `autocomplete="off"`, because otherwise a browser that reloads the page puts the former token back.
    """
    return f'<input type="hidden" name="{escape(field)}" value="{escape(token)}" autocomplete="off">'


def sent_token(token: str | None) -> str:
    """Return the token that a form was sent with.

    Raises:
        FormRefused: it has none, or an empty one: that was rendered while the store was unavailable.
    """
    if token is None:
        raise FormRefused(Refusal.MISSING)
    if not token:
        raise FormRefused(Refusal.UNAVAILABLE, retry_after=_SOON)
    return token


@dataclass(slots=True)
class SentForm:
    """The state of one request's form."""

    subject: Callable[..., Any]
    """Returns the subject of its tokens."""
    field: str
    token: str = ""
    """The token that the form was sent with."""
    again: bool = False
    """True if that token stays good and is rendered again: with a new one, sending again would order twice."""
    refused: FormRefused | None = None

    def refuse(self, error: FormRefused) -> None:
        """Note why the form is not acted upon; its token stays good if the same form may be sent again."""
        self.refused = error
        self.again = error.retry_after is not None and bool(self.token)

    def rendered(self, issue: Callable[[], str]) -> str:
        """Return the token for the form that is rendered: a new token, unless the form's own can be used again.

        It is empty while the store is unavailable and the policy refuses. Then the page is still shown, and the form
        that is sent is refused, and may be sent again.
        """
        if self.again:
            return self.token
        try:
            return issue()
        except UnavailableError:
            return ""


def issued_subject(found: object) -> str | None:
    """Return the subject for which a token is issued; None for all callers.

    Raises:
        ConfigError: the application's function returned a value of another type than text, a number or a UUID.
    """
    name = name_of_caller(found, "subject")
    return None if name is EVERYONE else name


def redeemed_subject(subject: str | None) -> str | tuple[str]:
    """Return the subject for which a form redeems its token, of what `issued_subject` returned."""
    return _NOBODY if subject is None else subject


def contents(fields: str, files: Iterable[tuple[str, str | None, str | None, str]]) -> bytes:
    """Return a form's contents for its fingerprint.

    Args:
        fields: the fields in the encoding of a URL, without those that differ in each page.
        files: the name, the file's name, its type and the digest of its content, for each file.
    """
    lines = [f"{name!r} {filename!r} {kind!r} {digest}" for name, filename, kind, digest in files]
    return "\n".join((fields, *lines)).encode("utf-8", "surrogateescape")


async def admit_form(
    redeeming: Awaitable[C],
    mark: bytes,
    docs: str | None,
    leave_session: Callable[[], object],
    *,
    person: bool,
) -> C | Response:
    """Return the claim that a form has acquired by its token, or the first response if it was sent before.

    Args:
        redeeming: what `RouteClaims.redeem` returned, or its counterpart for synchronous code.
        mark: the fingerprint of the form.
        docs: the address of the documentation.
        leave_session: called for a form that was sent before: the answer must not set the cookie of the session,
            because the first answer may have made another session since.
        person: True if a person sees the answer; False for a script, which gets a problem.

    Raises:
        FormRefused: the token is another person's or unknown, the first form still runs, had other contents, or its
            page cannot be shown again; or the store does not answer.
    """
    try:
        claim = await redeeming
    except UnavailableError as error:
        raise unavailable(error) from None
    except FormRefused as error:
        if error.reason in (Refusal.DONE, Refusal.BUSY):
            leave_session()
        raise
    if claim.outcome is Outcome.ACQUIRED:
        return claim
    if claim.outcome is Outcome.IN_PROGRESS:
        leave_session()  # it is refused now, and the first one may still make another session
    first = _first_response(claim, mark, docs, person=person)
    leave_session()
    return first


def _first_response(claim: AnsweredClaim, mark: bytes, docs: str | None, *, person: bool) -> Response:
    """Return the first response for a form that was sent before. Arguments as for `admit_form`.

    Raises:
        FormRefused: the first form still runs, had other contents, or its page cannot be shown again; or the token is
            unknown.
    """
    if claim.outcome not in (Outcome.SUCCEEDED, Outcome.FAILED):
        raise _refused(_OF_OUTCOME[claim.outcome])
    stored = stored_by(claim)
    check_contents(stored, mark)
    if person and (stored is None or not stored.whole):
        raise _refused(Refusal.DONE, failed=claim.outcome is Outcome.FAILED)
    response = replay(stored, docs)
    return response.marked(DEGRADED) if claim.degraded else response


def refusal_of_another(state: State | None) -> FormRefused:
    """Return the refusal for a token of another subject, by the state of its record; None: there is none by now.

    The form's own view may have ended the session that was the subject: then what was done is said to be done. What
    it was answered is not shown, because the sender may also be another person.
    """
    return _refused(_OF_STATE[state], failed=state is State.FAILED)


def _refused(reason: Refusal, *, failed: bool = False) -> FormRefused:
    error = FormRefused(reason, retry_after=_BUSY_RETRY if reason is Refusal.BUSY else None)
    if failed:
        error.message = _NOT_ACCEPTED
    return error


def unavailable(error: UnavailableError) -> FormRefused:
    """Return the refusal for an outage: neither the store nor the policy answers."""
    return FormRefused(Refusal.UNAVAILABLE, retry_after=error.retry_after)


def check_contents(stored: Response | None, mark: bytes) -> None:
    """Raise FormRefused if a used token comes again with other contents."""
    if stored is not None and stored.request and stored.request != mark:
        raise FormRefused(Refusal.CHANGED)


def _origin(request: Request) -> str:
    """Return the form's address: the page that it came from if that is ours, else the address it was sent to."""
    referer = _split(request.header("referer") or "")
    ours = referer.netloc and referer.netloc == request.header("host")
    path = referer.path if ours else quote(request.path, errors="replace")
    # Two slashes at the start would lead to another server.
    return "/" + path.lstrip("/\\") + (f"?{referer.query}" if ours and referer.query else "")


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:  # such as http://[
        return urlsplit("")
