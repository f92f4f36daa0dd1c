"""Signing in: a signed cookie that any worker can check. Here a name is enough to sign in."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from dataclasses import dataclass

COOKIE = "halcyon_session"
MAX_NAME = 40


@dataclass(frozen=True, slots=True)
class Session:
    """One visit of one person, from signing in to signing out."""

    id: str
    name: str

    @property
    def subject(self) -> str:
        """The subject of this visit's forms. Signing in again makes another subject, also for the same name."""
        return f"{self.id}:{self.name}"


def new_session(name: str) -> Session:
    """Begin a visit."""
    return Session(secrets.token_urlsafe(12), name)


def sealed(session: Session, secret: str) -> str:
    """Return the cookie's value."""
    body = base64.urlsafe_b64encode(json.dumps([session.id, session.name]).encode()).decode()
    return f"{body}.{_signature(body, secret)}"


def opened(value: str, secret: str) -> Session | None:
    """Return the session of a cookie's value; None if the signature is not valid."""
    body, _, signature = value.partition(".")
    if not hmac.compare_digest(_signature(body, secret).encode(), signature.encode()):
        return None
    return Session(*json.loads(base64.urlsafe_b64decode(body)))


def _signature(body: str, secret: str) -> str:
    return hmac.new(secret.encode(), body.encode(), hashlib.sha256).hexdigest()
