"""`IdempotencyMiddleware` for Django, sync and async. Main path: `__call__` → `_guarded` → `capture.run`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest, UnreadablePostError

from ...errors import ConfigError
from ...flows import drive
from ...sync import Claim
from ...web.admit import admit
from ...web.policy import PublishedPolicy, docs_at
from ...web.recorder import is_held
from ...web.response import Response
from ...web.rules import RouteTable
from ..http.background_claims import Make
from .bridge import AWAITING, BLOCKING, Bridge
from .capture import hold_of, run
from .config import gate, http
from .convert import body_of, is_claimed_outside, key_fields, reply, request_of
from .settling import DjangoClaims, Hold

__all__ = ["IdempotencyMiddleware", "claimed", "keyed"]

ReadBody = Callable[[HttpRequest, int], bytes]
"""A function that returns a request's body, of at most so many bytes."""


class IdempotencyMiddleware:
    """Makes requests with an Idempotency-Key happen once, and replays the first response to the others.

        MIDDLEWARE = [..., "django.contrib.auth.middleware.AuthenticationMiddleware",
                      "fastdedup.integrations.django.middleware.IdempotencyMiddleware"]
        FASTDEDUP_HTTP = {"principal": "fastdedup.integrations.django.by_user", "routes": ["/api/*"]}

    Put it after the middleware that authenticates, and after GZipMiddleware. `FASTDEDUP_HTTP` has `routes` (paths and
    `Route`s, every path by default), `docs` (the address of the policy: a path, which is then served here, or a URL),
    and the settings of all routes, see `fastdedup.web.rules.Rule`; `principal` is required. Functions may be dotted
    paths. They get a `fastdedup.web.request.Request`; Django's own request, with its `user`, is its
    `source["django.request"]`. Sync functions are called in a thread that may use the database.

    Cookies that a view sets are not replayed unless `drop_headers` is empty. Exceptions, and the 500 that
    Django makes of them, release the key. Under ASGI a view whose client leaves is finished all the same;
    `on_disconnect="cancel"` is for async views: a sync view runs in a thread, which cannot be stopped.

    Raises:
        ImproperlyConfigured: a setting is missing or cannot be used.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self._async = iscoroutinefunction(get_response)
        if self._async:
            markcoroutinefunction(self)
        given = http()
        try:
            rules = given.rules()
            self._policy = PublishedPolicy(rules, gate().settings, given.docs)
            self._table = RouteTable(rules, lambda rule: DjangoClaims(rule, given.docs))
            for _, claims in self._table.entries:
                claims.present()
        except ConfigError as error:
            raise ImproperlyConfigured(f"settings.FASTDEDUP_HTTP cannot be used: {error}") from error

    def __call__(self, request: HttpRequest) -> Any:
        """Answer one request; in async mode, return a coroutine that does."""
        if self._async:
            return self._handle(AWAITING, request)
        return drive(self._handle(BLOCKING, request))

    async def _handle(self, bridge: Bridge, request: HttpRequest) -> HttpResponse:
        claims = self._table.find(request.method, request.path_info)
        if claims is not None:
            return await keyed(bridge, claims, request, lambda: self.get_response(request))
        if request.path_info == self._policy.path and request.method in ("GET", "HEAD"):
            return reply(self._policy.page(request.headers.get("Accept")))
        return await bridge.view(lambda: self.get_response(request))


async def keyed(
    bridge: Bridge, claims: DjangoClaims, request: HttpRequest, view: Callable[[], Any]
) -> HttpResponse:
    """Answer a request of an operation that takes keys."""
    got = await claimed(bridge, claims, request)
    if isinstance(got, Hold):
        return await run(bridge, got, request, view)
    return await bridge.view(view) if got is None else got


async def claimed(
    bridge: Bridge,
    claims: DjangoClaims,
    request: HttpRequest,
    read: ReadBody = body_of,
    make: Make | None = None,
) -> Hold | HttpResponse | None:
    """Claim a request's key. Return the claim, or the answer to a request whose view does not run.

    Returns None for a request without a key, and for a request that is claimed already. `make` claims in another way.
    """
    rule, docs = claims.rule, docs_at(claims.docs, request.META.get("SCRIPT_NAME", ""))

    async def claim(key: str) -> Claim | None:
        asked = request_of(request, read(request, rule.max_request))
        # A request that a middleware has claimed, Django's or an outer one, is not claimed again.
        hold = hold_of(request)
        if is_claimed_outside(request) or (hold is not None and is_held(hold.recorder)):
            return None
        principal = await bridge.call(rule.principal, asked)
        if rule.asks_application:
            name, mark = await bridge.call(rule.identify, asked, principal, key)
        else:
            name, mark = rule.identify(asked, principal, key)
        if make is not None:
            return await make(key, (name, mark))
        return await claims.claim(name, mark, blocks=bridge.blocks)

    try:
        got = await admit(key_fields(request), claim, rule, docs)
    except UnreadablePostError:  # the client left before it had sent the request: nothing has happened
        return HttpResponseBadRequest()
    if isinstance(got, Response):
        return reply(got)
    return None if got is None else claims.hold(got, request.path, docs)
