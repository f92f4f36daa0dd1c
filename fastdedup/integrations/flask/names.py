"""Names of callers by Flask's session: the principal of a key, and the subject of a form's token."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from flask import session

from ...errors import ConfigError
from ...web.request import Named, Request

Subject = Callable[[], Any]
"""A function that returns the subject of a token: text, a number, a UUID, or None for all callers."""
_SESSION_ID = "_fastdedup"
_LOGIN = "_user_id"
"""The entry in which Flask-Login keeps the user."""


def by_session(name: str) -> Callable[[Request], Named]:
    """Tell callers apart by an entry of the session, such as the user's number.

    A request with a key whose session has no such entry is answered 400, `principal-required`.
    """
    if not isinstance(name, str) or not name:
        raise ConfigError(f"by_session() takes the name of an entry of the session, got {name!r}")

    def principal(request: Request) -> Named:
        found: Named = session.get(name)
        return found

    return principal


def session_subject() -> str:
    """Return the session, and Flask-Login's user if there is one: no other session can use the token.

    Clearing the session ends the token.
    """
    if _SESSION_ID not in session:
        session[_SESSION_ID] = secrets.token_urlsafe(16)
    return f"{session[_SESSION_ID]} {session.get(_LOGIN, '-')}"
