"""Checks what a dependency of FastAPI gets: a dependency that names the caller, a `Dedup`, a rule, a request.

`guarding` makes the dependency itself.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from inspect import Parameter, signature
from typing import Any, Final, NoReturn

from ...checks import check_dedup, is_async, takes, wrong_type
from ...errors import ConfigError
from ...extras import needs
from ...gateway import Dedup
from ...web.request import Request
from ...web.rules import Rule
from .guarded import key_fields
from .threads import is_awaited

with needs("fastdedup.integrations.fastapi", "FastAPI", "'fastdedup[web]'"):
    from fastapi import Request as HttpRequest
    from fastapi import WebSocketException, params
    from fastapi.requests import HTTPConnection

Chooser = Callable[[HttpRequest], Dedup]
"""A function that chooses a `Dedup` for a request, for applications with several."""
_POLICY_VIOLATION = 1008
"""The code that RFC 6455 has for a client that asks for what the server does not do."""
GUARDS: Final = "_fastdedup_guards"
"""The attribute of a dependency that guards its operation: the published facts of its keys, or None for tokens."""


class _Guard(params.Depends):
    """What `Claimed()` returns. If somebody writes `Depends(Claimed())`, FastAPI asks it for a signature."""

    __call__: Any = None

    @property
    def __signature__(self) -> NoReturn:
        raise ConfigError(
            "Claimed(), Commits() and OneTimeToken() are dependencies already: write Annotated[Claim, Claimed(...)] "
            "or dependencies=[Claimed(...)], without Depends(...) around it"
        )


def guarding(dependency: Any, facts: dict[str, Any] | None = None, **options: Any) -> Any:
    """Return `Depends(dependency)`, for a dependency that guards its operation. `facts`: see `GUARDS`."""
    setattr(dependency, GUARDS, facts)
    return _Guard(dependency, **options)


def check_caller(what: str, dependency: Any) -> None:
    """Check that FastAPI can call a dependency; `what`: the setting's name.

    FastAPI takes a parameter that it does not know for one of the query or the body, and answers each request 422.

    Raises:
        ConfigError: it cannot be called, is a function for the middlewares such as `by_header("x-api-key")`, or has a
            parameter `request` without a type.
    """
    if not callable(dependency):
        raise ConfigError(
            f"{what}= must be a dependency that names the caller, got {dependency!r}; use `everyone` if all "
            "callers share"
        )
    for parameter in _parameters_of(dependency):
        if parameter.annotation is Request:
            raise ConfigError(
                f"{what}= must be a dependency of FastAPI, got a function for fastdedup's middlewares and "
                "decorators, such as by_header(...) or everyone of another integration: give a function with "
                "FastAPI's own parameters, such as `x_api_key: Annotated[str, Header()]`, or `everyone` of "
                "fastdedup.integrations.fastapi"
            )
        untyped = parameter.annotation is Parameter.empty and parameter.default is Parameter.empty
        if untyped and parameter.name == "request":
            raise ConfigError(
                f"{what}= takes a request without a type, and FastAPI would look for it in the query: write a "
                "function with `request: fastapi.Request`"
            )


def by_dependency(request: object) -> None:
    """Stand for a dependency in a rule: FastAPI calls that, and the rule does not."""


def check_chooser(dedup: Any) -> None:
    """Check `dedup=`: a `Dedup`, a function of the request that returns one, or None.

    Raises:
        ConfigError: it is something else.
    """
    if dedup is None or isinstance(dedup, Dedup):
        return
    if not callable(dedup) or is_async(dedup) or not takes(dedup, 1):
        raise wrong_type(
            dedup, "dedup=", "fastdedup.Dedup, or a plain function of the request that returns one"
        )


def check_rule(rule: Rule, limit: int, endpoint: Any) -> None:
    """Check the rule of an operation; `limit`: the longest body of the application, in bytes.

    Raises:
        ConfigError: it allows a longer body, or cancels an endpoint that runs in a thread.
    """
    if rule.max_request > limit:
        raise ConfigError(
            f"max_request={rule.max_request} is over the {limit} of Idempotency(...): lower it, or raise that one"
        )
    if rule.on_disconnect == "cancel" and not is_awaited(endpoint):
        name = getattr(endpoint, "__name__", type(endpoint).__name__)
        raise ConfigError(
            f"on_disconnect='cancel' needs an async handler: {name}() runs in a thread, which cannot "
            "be cancelled and would go on beside the retry"
        )


def chosen(dedup: Dedup | Chooser | None, request: HttpRequest) -> Dedup | None:
    """Return the `Dedup` that is given as `dedup=`, or that a function given there chooses; None without one.

    Raises:
        ConfigError: the function has returned something else.
    """
    if dedup is None or isinstance(dedup, Dedup):
        return dedup
    return check_dedup(dedup(request), Dedup, "what the function given as dedup= returns")


def _parameters_of(dependency: Any) -> list[Parameter]:
    """Return a dependency's parameters; none if it does not show them."""
    for evaluated in (True, False):  # an annotation's text may name a type that is not known here
        with suppress(Exception):
            return list(signature(dependency, eval_str=evaluated).parameters.values())
    return []


def unless_websocket(connection: HTTPConnection) -> HttpRequest | None:
    """Return the request, or None for a WebSocket, which has no response to store: see `IdempotencyMiddleware`.

    A router's or an application's dependencies are those of its WebSockets, too.

    Raises:
        WebSocketException: it has an Idempotency-Key, which must not be ignored.
    """
    if isinstance(connection, HttpRequest):
        return connection
    if key_fields(connection.scope):
        raise WebSocketException(_POLICY_VIOLATION, "a WebSocket takes no Idempotency-Key")
    return None


def http_request(connection: HTTPConnection, dependency: str) -> HttpRequest:
    """Return the request.

    Raises:
        ConfigError: it is a WebSocket.
    """
    if isinstance(connection, HttpRequest):
        return connection
    raise ConfigError(f"{dependency}() is for HTTP: a WebSocket has no response that could be stored")
