"""One-time forms: the messages for people whose form is not acted upon."""

from __future__ import annotations

from enum import StrEnum
from html import escape
from urllib.parse import SplitResult, quote, urlsplit

from ..errors import UnavailableError
from ..model import Outcome
from .problems import ProblemType, respond, whole_seconds
from .request import Request
from .response import Response

FIELD = "one_time_token"
HEADER = "X-One-Time-Token"
"""The header for forms that a script sends."""
NOBODY = ("nobody",)
"""The subject of a person without a name. None would match every token, also another person's."""
WAIT = 10.0
"""Seconds that a second click waits for the first click's page."""
_BUSY_RETRY = 2.0
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
    """Its token was issued to another person, or before they signed out."""
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
    Outcome.MISMATCH: Refusal.FOREIGN,
    Outcome.IN_PROGRESS: Refusal.BUSY,
}


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
        """Return a page with the message and a link back to the form; for clients other than browsers, a problem."""
        if "text/html" not in (request.header("accept") or ""):
            problem = ProblemType(f"form-{self.reason}", self.status, self.title, self.message)
            return respond(problem, retry_after=self.retry_after)
        body = self._page(_origin(request)).encode()
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


def refusal_of(outcome: Outcome) -> FormRefused:
    """Return the refusal for the outcome of a token that was neither acquired nor can be replayed."""
    reason = _OF_OUTCOME[outcome]
    return FormRefused(reason, retry_after=_BUSY_RETRY if reason is Refusal.BUSY else None)


def unavailable(error: UnavailableError) -> FormRefused:
    """Return the refusal for an outage: neither the store nor the policy answers."""
    return FormRefused(Refusal.UNAVAILABLE, retry_after=error.retry_after)


def check_contents(stored: Response | None, mark: bytes) -> None:
    """Raise FormRefused where a used token comes again with other contents."""
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
