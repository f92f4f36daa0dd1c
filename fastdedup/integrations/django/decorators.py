"""`@idempotent`: a view's requests with an Idempotency-Key happen once. `@one_time_form` is in `one_time`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, Unpack

from django.http import HttpRequest, HttpResponse

from ...errors import ConfigError
from ...web.request import Principal, everyone
from ...web.rules import KeySettings, Rule, make_rules
from .bridge import Bridge
from .config import function, http, within_limits
from .middleware import keyed
from .one_time import one_time_form
from .settling import Guards
from .views import check_settings, wrap

__all__ = ["idempotent", "one_time_form"]

View = TypeVar("View", bound=Callable[..., Any])


def idempotent(
    *, principal: Principal | str | None = None, **settings: Unpack[KeySettings]
) -> Callable[[View], View]:
    """Decorate a view: POST and PATCH requests with an Idempotency-Key happen once, and are replayed to the others.

        @idempotent(principal=by_user, required=True, wait=5.0)
        def charge(request): ...

    For views that the middleware does not cover; where it does, that is enough. Classes:
    `@method_decorator(idempotent(...), name="dispatch")`. A response settles the key as in the middleware; an
    exception releases it, Http404 and PermissionDenied too. With ATOMIC_REQUESTS the view's transaction ends
    before its response is stored.

    Args:
        principal: whom a key belongs to, see `IdempotencyMiddleware`; `FASTDEDUP_HTTP["principal"]` by default.
        settings: see `fastdedup.web.rules.Rule`. What `FASTDEDUP_HTTP` says for all routes holds here, too.

    Raises:
        ConfigError: a setting cannot be used, or is an unknown one.
    """
    check, _ = make_rules(
        ["/", "/"], {"principal": everyone, **settings}
    )  # mistakes are told where they are made
    operation = _Operation(principal, dict(settings))

    def decorate(view: View) -> View:
        check_settings(check, view)
        return wrap(view, operation.handle)  # type: ignore[return-value] # it is called as the view is

    return decorate


class _Operation:
    """A decorated view's rules: one for each route that leads to it, which are few."""

    def __init__(self, principal: Principal | str | None, settings: dict[str, Any]) -> None:
        self._principal = principal
        self._settings = settings
        # Mutable, by route; and the settings that it was made of, which tests override.
        self._guards: dict[str, Guards] = {}
        self._shared: dict[str, Any] = {}

    async def handle(self, bridge: Bridge, request: HttpRequest, view: Callable[[], Any]) -> HttpResponse:
        """Answer a request."""
        guards = self._guards_of(_route(request))
        if request.method not in guards.rule.methods:
            return await bridge.view(view)
        return await keyed(bridge, guards, guards.rule, request, view)

    def _guards_of(self, route: str) -> Guards:
        given = http()
        if given.shared != self._shared:
            self._guards, self._shared = {}, given.shared
        guards = self._guards.get(route)
        if guards is None:
            named = {} if self._principal is None else {"principal": function(self._principal, "principal")}
            rule = within_limits(_rule(route, {**given.shared, **self._settings, **named}))
            guards = self._guards[route] = Guards(rule, given.docs)
        return guards


def _rule(route: str, settings: dict[str, Any]) -> Rule:
    if "principal" not in settings:
        raise ConfigError(
            'idempotent(principal=...) is missing, and so is FASTDEDUP_HTTP["principal"]: a function that names whom '
            "a key belongs to, such as fastdedup.integrations.django.by_user"
        )
    return make_rules([route], settings)[0]


def _route(request: HttpRequest) -> str:
    """The path as it is declared, whatever stands in its place: its fingerprint tells those apart."""
    match = getattr(request, "resolver_match", None)
    # A * would make many paths of it: it stands for itself here, as in a regular expression.
    return str(request.path) if match is None else "/" + match.route.lstrip("/").replace("*", "%2A")
