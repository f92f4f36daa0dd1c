"""Django Ninja: `idempotent` for operations. It runs after authentication, throttles and the check of the input.

    @api.post("/orders", auth=Bearer())
    @idempotent(principal=by_auth, required=True)
    def order(request, body: Order): ...

Ninja authenticates inside of the view. The middleware and Django's own decorators run before that, find no caller,
and answer a request with a key 400. The settings are `FASTDEDUP` and `FASTDEDUP_HTTP`, the same as for
`fastdedup.integrations.django`. If the middleware is installed as well, leave these paths out of its `routes`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar, Unpack

from ..extras import needs

with needs(__name__, "Django Ninja", "'fastdedup[django]' django-ninja"):
    from ninja.decorators import decorate_view
    from ninja.utils import contribute_operation_callback

from ..errors import ConfigError
from ..web.request import Named, Principal, Request, by_header, by_host, everyone, name_of_caller
from ..web.rules import UUID, KeySettings
from .django.bridge import over_bridge
from .django.capture import claim_of
from .django.convert import SOURCE
from .django.decorators import Operation
from .django.inside import begun, ended
from .django.tokens import by_user, name_of
from .django.views import check_settings

__all__ = ["UUID", "by_auth", "by_header", "by_host", "by_user", "claim_of", "everyone", "idempotent"]

Function = TypeVar("Function", bound=Callable[..., Any])
_PAGINATED = "_ninja_is_paginated"
"""The attribute of a function that Ninja's pagination is around."""


def by_auth(request: Request) -> Named:
    """Return the caller that Ninja's authentication has found, `request.auth`: the principal.

    It is text, a number, a UUID, or a model's object with a primary key. An operation without authentication finds no
    caller: it answers a request with a key 400, `principal-required`.

    Raises:
        ConfigError: `authenticate()` returned a value that names no caller, such as True.
    """
    auth = getattr(request.source[SOURCE], "auth", None)
    try:
        return name_of_caller(auth, "principal")
    except ConfigError:
        if hasattr(auth, "pk"):
            return name_of(auth)
        raise ConfigError(
            f"by_auth needs an authenticate() that returns text, a number, a UUID or a model's object, got "
            f"{type(auth).__name__}: return who calls, or give a principal= of your own"
        ) from None


def idempotent(
    *, principal: Principal | str | None = None, **settings: Unpack[KeySettings]
) -> Callable[[Function], Function]:
    """Decorate an operation, sync or async: a POST or PATCH request with an Idempotency-Key takes effect once.

    Write it below `@api.post(...)`. The response that Ninja makes of the result is stored, and replayed to the same
    caller. Input that Ninja refuses claims no key, and an exception releases it, also HttpError. With ATOMIC_REQUESTS
    the transaction ends before the response is stored.

    Args:
        principal: names the caller whom a key belongs to, see `by_auth` and, with `django_auth`, `by_user`; by
            default `FASTDEDUP_HTTP["principal"]`. In the function, `request.source["django.request"]` is Django's
            request, with its `auth`.
        settings: see `fastdedup.web.rules.Rule`. The settings of `FASTDEDUP_HTTP` for all routes apply here, too.

    Raises:
        ConfigError: a setting cannot be used or is unknown, the decorator is above `@api.post(...)` or below
            `@paginate`, or the operation is an asynchronous generator.
    """
    operation = Operation(principal, dict(settings))

    def decorate(function: Function) -> Function:
        check_settings(operation.check, function)
        if inspect.isasyncgenfunction(function):
            raise ConfigError(
                f"an operation that streams cannot be repeated, got the generator {function.__name__}()"
            )
        if hasattr(function, "_ninja_operation"):
            raise ConfigError(
                f"@idempotent must be below Ninja's decorator: {function.__name__}() is an operation already, "
                "which would run without it"
            )
        claims = over_bridge(function, functools.partial(begun, operation))
        with suppress(NameError):  # a name that is known to type checkers only: Ninja says so itself
            # Ninja would look up annotations that are text among the names of this module.
            claims.__signature__ = inspect.signature(function, eval_str=True)  # type: ignore[attr-defined]
        # Around Ninja's function that makes a response of a result.
        settles = decorate_view(lambda run: over_bridge(run, functools.partial(ended, operation)))
        contribute_operation_callback(claims, functools.partial(_refuse_pagination, function))
        return settles(claims)  # type: ignore[return-value]

    return decorate


def _refuse_pagination(function: Any, operation: Any) -> None:
    """Refuse `@paginate` above `@idempotent` when Ninja registers the operation: it would cut a replayed response."""
    if hasattr(operation.view_func, _PAGINATED) and not hasattr(function, _PAGINATED):
        raise ConfigError(f"@paginate must be below @idempotent: {function.__name__}() has it above")
