"""`@idempotent`: a view's requests with an Idempotency-Key take effect once. `@one_time_form` is in `one_time`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, Unpack

from django.http import HttpRequest, HttpResponse

from ...errors import ConfigError
from ...web.request import Principal, everyone
from ...web.rules import KeySettings, Rule, declared, make_rules
from .bridge import Bridge
from .config import function, http
from .middleware import keyed
from .one_time import one_time_form
from .settling import DjangoClaims
from .views import check_settings, wrap

__all__ = ["Operation", "idempotent", "one_time_form"]

View = TypeVar("View", bound=Callable[..., Any])
_CONTRIBUTE = "_ninja_contribute_to_operation"
"""The attribute of a function with callbacks that Ninja calls when it registers the function."""


def idempotent(
    *, principal: Principal | str | None = None, **settings: Unpack[KeySettings]
) -> Callable[[View], View]:
    """Decorate a view: a POST or PATCH request with an Idempotency-Key takes effect once.

    Its response is stored, and replayed to duplicates:

        @idempotent(principal=by_user, required=True, wait=5.0)
        def charge(request): ...

    Use it for views that the middleware does not cover. Classes:
    `@method_decorator(idempotent(...), name="dispatch")`. A response settles the key as in the middleware; an
    exception releases it, also Http404 and PermissionDenied. With ATOMIC_REQUESTS the view's transaction ends
    before its response is stored.

    Args:
        principal: names the caller whom a key belongs to, see `IdempotencyMiddleware`; by default
            `FASTDEDUP_HTTP["principal"]`.
        settings: see `fastdedup.web.rules.Rule`. The settings of `FASTDEDUP_HTTP` for all routes apply here, too.

    Raises:
        ConfigError: a setting cannot be used or is unknown, or the function is an operation of Django Ninja.
    """
    operation = Operation(principal, dict(settings))

    def decorate(view: View) -> View:
        check_settings(operation.check, view)
        decorated: Any = wrap(view, operation.handle)
        others = getattr(view, _CONTRIBUTE, ())
        setattr(decorated, _CONTRIBUTE, [*others, _refuse_operation])
        return decorated  # type: ignore[no-any-return] # it is called as the view is

    return decorate


def _refuse_operation(operation: Any) -> None:
    """Refuse a Ninja operation when Ninja registers it: it returns no HttpResponse, and authenticates later."""
    raise ConfigError(
        f"{operation.view_func.__name__}() is an operation of Django Ninja: decorate it with "
        "fastdedup.integrations.ninja.idempotent"
    )


class Operation:
    """The rules of a decorated view: a rule for each route that leads to it.

    Raises:
        ConfigError: a setting cannot be used, or is unknown.
    """

    def __init__(self, principal: Principal | str | None, settings: dict[str, Any]) -> None:
        # Also so that a mistake raises at the decorator that has it.
        self.check: Rule = make_rules(["/"], {"principal": everyone, **settings})[0]
        self._principal = principal
        self._settings = settings
        self._route_claims = cache(self._made)  # an application has a fixed number of routes
        # Mutable: the settings that they were made of, which tests override.
        self._shared: dict[str, Any] = {}

    async def handle(self, bridge: Bridge, request: HttpRequest, view: Callable[[], Any]) -> HttpResponse:
        """Answer a request."""
        claims = self.claims_of(request)
        if claims is None:
            return await bridge.view(view)
        return await keyed(bridge, claims, request, view)

    def claims_of(self, request: HttpRequest) -> DjangoClaims | None:
        """Return the claims of a request's route, or None if its method takes no key."""
        claims = self.claims_at(request)
        return claims if request.method in claims.rule.methods else None

    def claims_at(self, request: HttpRequest) -> DjangoClaims:
        """Return the claims of a request's route, whatever its method."""
        shared = http().shared
        if shared != self._shared:
            self._route_claims, self._shared = cache(self._made), shared
        return self._route_claims(_route(request))

    def _made(self, route: str) -> DjangoClaims:
        given = http()
        named = {} if self._principal is None else {"principal": function(self._principal, "principal")}
        return DjangoClaims(_rule(route, {**given.shared, **self._settings, **named}), given.docs)


def _rule(route: str, settings: dict[str, Any]) -> Rule:
    if "principal" not in settings:
        raise ConfigError(
            'idempotent(principal=...) and FASTDEDUP_HTTP["principal"] are both missing: give a function that names '
            "the caller whom a key belongs to, such as fastdedup.integrations.django.by_user"
        )
    return make_rules([route], settings)[0]


def _route(request: HttpRequest) -> str:
    """Return the declared path. The request's own path is part of the fingerprint."""
    match = getattr(request, "resolver_match", None)
    return str(request.path) if match is None else declared(match.route)
