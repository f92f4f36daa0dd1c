"""Checks the dependency by which FastAPI names a caller: `principal=` of `Claimed`, `subject=` of `OneTimeToken`."""

from __future__ import annotations

from contextlib import suppress
from inspect import Parameter, signature
from typing import Any

from ...errors import ConfigError
from ...web.request import Request


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


def _parameters_of(dependency: Any) -> list[Parameter]:
    """Return a dependency's parameters; none if it does not show them."""
    for evaluated in (True, False):  # an annotation's text may name a type that is not known here
        with suppress(Exception):
            return list(signature(dependency, eval_str=evaluated).parameters.values())
    return []
