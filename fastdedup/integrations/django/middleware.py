"""`IdempotencyMiddleware` for Django, sync and async. Main path: `__call__` → `_guarded` → `capture.run`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest, UnreadablePostError

from ...errors import ConfigError
from ...web.answers import REFUSALS, answer, refusal
from ...web.policy import PublishedPolicy, docs_at
from ...web.rules import RouteTable, Rule
from .bridge import AWAITING, BLOCKING, Bridge, drive
from .capture import hold_of, run
from .config import gate, http
from .convert import body_of, is_claimed_outside, key_of, reply, request_of
from .settling import Guards, Hold

__all__ = ["IdempotencyMiddleware", "claimed", "keyed"]

ReadBody = Callable[[HttpRequest, int], bytes]
"""A function that returns a request's body, of at most so many bytes."""


class IdempotencyMiddleware:
    """Makes requests with an Idempotency-Key happen once, and replays the first response to the others.

        MIDDLEWARE = [..., "django.contrib.auth.middleware.AuthenticationMiddleware",
                      "fastdedup.integrations.django.middleware.IdempotencyMiddleware"]
        FASTDEDUP_HTTP = {"principal": "fastdedup.integrations.django.by_user", "routes": ["/api/*"]}

    Put it after the middleware that authenticates, and after GZipMiddleware. `FASTDEDUP_HTTP` has `routes` (paths and
    `Route`s, every path by default), `docs` (where the policy is published: a path, which is then served here,
    or a URL), and what holds for all routes, see `fastdedup.web.rules.Rule`; `principal` is required. Functions
    may be dotted paths. They get a `fastdedup.web.request.Request`; Django's own, with its `user`, is its
    `source["django.request"]`. Sync functions are called where they may use the database.

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
            self._table = RouteTable(rules, lambda rule: Guards(rule, given.docs))
            for _, guards in self._table.entries:
                guards.bound()
        except ConfigError as error:
            raise ImproperlyConfigured(f"settings.FASTDEDUP_HTTP cannot be used: {error}") from error

    def __call__(self, request: HttpRequest) -> Any:
        """Answer one request; in async mode, return a coroutine that does."""
        if self._async:
            return self._handle(AWAITING, request)
        return drive(self._handle(BLOCKING, request))

    async def _handle(self, bridge: Bridge, request: HttpRequest) -> HttpResponse:
        guards = self._table.find(request.method, request.path_info)
        if guards is not None:
            return await keyed(bridge, guards, guards.rule, request, lambda: self.get_response(request))
        if request.path_info == self._policy.path and request.method in ("GET", "HEAD"):
            return reply(self._policy.page(request.headers.get("Accept")))
        return await bridge.view(lambda: self.get_response(request))


async def keyed(
    bridge: Bridge, guards: Guards, rule: Rule, request: HttpRequest, view: Callable[[], Any]
) -> HttpResponse:
    """Answer a request of an operation that takes keys."""
    got = await claimed(bridge, guards, rule, request)
    if isinstance(got, Hold):
        return await run(bridge, got, request, view)
    return await bridge.view(view) if got is None else got


async def claimed(
    bridge: Bridge, guards: Guards, rule: Rule, request: HttpRequest, read: ReadBody = body_of
) -> Hold | HttpResponse | None:
    """Claim a request's key. Return the claim, or the answer to a request whose view does not run.

    Returns None for a request without a key, and for a request that is claimed already.
    """
    docs = docs_at(guards.docs, request.META.get("SCRIPT_NAME", ""))
    try:
        key = key_of(request)
        rule.check_key(key)
        asked = None if key is None else request_of(request, read(request, rule.max_request))
        # A request that a middleware has claimed, Django's or an outer one, is not claimed again.
        if asked is None or key is None or hold_of(request) is not None or is_claimed_outside(request):
            return None
        principal = await bridge.call(rule.principal, asked)
        if rule.asks_application:
            name, mark = await bridge.call(rule.identify, asked, principal, key)
        else:
            name, mark = rule.identify(asked, principal, key)
        got = await guards.ask(bridge, lambda guard: guard.claim(name, mark), path=asked.path, docs=docs)
    except UnreadablePostError:  # the client left before it had sent the request: nothing has happened
        return HttpResponseBadRequest()
    except REFUSALS as error:
        return reply(refusal(error, rule, docs))
    return got.hold or reply(answer(got.claim, rule, docs))
