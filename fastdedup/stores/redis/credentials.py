"""Asks the user's `credentials` for a login. No error here shows what `credentials` returned or said."""

from __future__ import annotations

import asyncio
import inspect
import os
from typing import Any

from redis.credentials import CredentialProvider

from ...checks import named
from ...errors import DedupError, UnavailableError
from ..base import Credentials
from .errors import MistakeError

_PATIENCE = 10.0
"""Seconds that `credentials` may take. No caller waits as long: a caller has the deadline of its operation."""


async def ask(credentials: Credentials) -> dict[str, str]:
    """Return redis-py's options for the login that `credentials` gives now.

    Raises:
        UnavailableError: `credentials` took too long, or the system failed: a file could not be read, for example.
        MistakeError: `credentials` raised another error, or returned no login.
    """
    try:
        async with asyncio.timeout(_PATIENCE):
            answer = await _answer(credentials)
    except DedupError:
        raise
    except TimeoutError:
        fault: DedupError = UnavailableError(f"credentials gave no answer within {_PATIENCE:g} s")
    except Exception as error:  # noqa: BLE001 -- any error of the user's code
        fault = _fault(error)
    else:
        problem = _problem(answer)
        if not problem:
            return _options(*answer)
        del answer  # a traceback's local variables may be logged
        fault = MistakeError(
            f"credentials returned {problem}: it must return (user name, password) as text, with None for the "
            "URL's user or else the default user"
        )
    # Outside of the except clause: the error, and the frames that it holds, may know the password.
    raise fault


async def _answer(credentials: Credentials) -> Any:
    answer = _question(credentials)()
    return await answer if inspect.isawaitable(answer) else answer


def _question(credentials: Any) -> Any:
    if not hasattr(credentials, "get_credentials"):
        return credentials
    later = getattr(type(credentials), "get_credentials_async", None)
    # The method of redis-py's base class logs a warning, and calls `get_credentials`.
    if later is None or later is CredentialProvider.get_credentials_async:
        return credentials.get_credentials
    return credentials.get_credentials_async


def _fault(error: Exception) -> DedupError:
    kind = type(error).__name__
    if isinstance(error, OSError):
        # The system's own text for the number: the error's text may be the user's, and hold the password.
        reason = os.strerror(error.errno) if error.errno else "without a known reason"
        return UnavailableError(f"credentials raised {kind}: {reason}")
    return MistakeError(
        f"credentials raised {kind}; its text is not repeated, because it may hold the password"
    )


def _problem(answer: Any) -> str:
    """Return what is wrong with an answer, or ""."""
    if not isinstance(answer, tuple | list):
        return named(answer)
    if not 1 <= len(answer) <= 2:
        return f"{len(answer)} values"
    user, password = (None, *answer)[-2:]
    if user is not None and not isinstance(user, str):
        return f"a user name of type {type(user).__name__}"
    if not isinstance(password, str):
        return f"a password of type {type(password).__name__}"
    return "" if password else "an empty password"


def _options(*login: str | None) -> dict[str, str]:
    options = {"password": login[-1]} | ({"username": login[0]} if len(login) == 2 else {})
    return {name: value for name, value in options.items() if value}
