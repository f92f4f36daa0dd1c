"""`@commits`: a view's work, an inbox's row and the response commit in one transaction of Django's.

Main path: `DjangoCommits.handle` → the view → `CommittedWork.end`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cache, partial
from typing import Any, TypeVar, Unpack

from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from ...downstream import claimed_work
from ...errors import ConfigError
from ...sql.drivers.django import are_of_a_test
from ...sync import Dedup
from ...sync.sql import BlockedGate, Inbox
from ...web.policy import docs_at
from ...web.record_keys import SCOPE
from ...web.request import Principal
from ...web.response import Response
from ...web.rules import KeySettings
from ..http.committing import CommittedWork, RouteCommits, Steps
from .bridge import Bridge, is_async
from .capture import mark_held, settle_by
from .config import gate
from .convert import reply, taken_from, tell_language
from .decorators import Operation
from .middleware import claimed
from .settling import DjangoClaims, Hold, give_back
from .views import check_settings, committing, wrap

View = TypeVar("View", bound=Callable[..., Any])
_STEPS = Steps()


def commits(
    inbox: Inbox,
    *,
    principal: Principal | str | None = None,
    using: str = "default",
    **settings: Unpack[KeySettings],
) -> Callable[[View], View]:
    """Decorate a view: its work, an inbox's row and the response commit in one transaction.

        @commits(inbox, principal=by_user, required=True)
        def pay(request):
            Payment.objects.create(...)
            return JsonResponse({"paid": 1}, status=201)

    The view runs in an outermost `transaction.atomic()` of its database, which commits before the response is sent.
    A retry gets the response from the row. A returned response that the rule does not keep, an exception, and
    `transaction.set_rollback(True)` roll back. For the whole table see `docs/committing-endpoint.md`.

    Args:
        inbox: the inbox, of `fastdedup.sync.sql`.
        principal: see `idempotent`.
        using: the database.
        settings: see `fastdedup.web.rules.Rule`; `unstored` has no effect.

    Raises:
        ConfigError: a setting cannot be used or is unknown; or the view is async, and Django's transactions are not.
    """
    operation = DjangoCommits(inbox, using, principal, dict(settings))

    def decorate(view: View) -> View:
        check_settings(operation.check, view)
        if is_async(view):
            raise ConfigError(
                f"commits() needs a view that is not async, got {view!r}: Django's transactions are not"
            )
        decorated: Any = wrap(view, operation.handle)
        return decorated  # type: ignore[no-any-return] # it is called as the view is

    return decorate


class DjangoCommits(Operation):
    """The rules of a view that commits with its response: a rule for each route that leads to it."""

    def __init__(
        self, inbox: Inbox, using: str, principal: Principal | str | None, settings: dict[str, Any]
    ) -> None:
        super().__init__(principal, settings)
        self._using = using

        @cache  # an application has a fixed number of routes
        def route_of(claims: DjangoClaims, dedup: Dedup) -> RouteCommits:
            return RouteCommits(claims, dedup.scoped(SCOPE), inbox, partial(begin, using), BlockedGate)

        self._route_of = route_of

    async def handle(self, bridge: Bridge, request: HttpRequest, view: Callable[[], Any]) -> HttpResponse:
        """Answer a request."""
        claims = self.claims_at(request)
        route = self._route_of(claims, gate())  # of the process's `Dedup`: tests have several
        docs = docs_at(claims.docs, request.META.get("SCRIPT_NAME", ""))
        work = CommittedWork(route, docs, request.path, request.method, _STEPS)
        got = await claimed(bridge, claims, request, make=work.claim)
        if got is not None and not isinstance(got, Hold):
            return got
        if work.gate_wire is None and "HTTP_IDEMPOTENCY_KEY" in request.META:
            raise ConfigError(
                "IdempotencyMiddleware has claimed this request already: leave its route to commits() alone"
            )
        if got is not None:
            mark_held(request, got)
            work.hold(got.public, got.recorder)
        try:
            with nullcontext() if work.gate_wire is None else claimed_work(work.gate_wire):
                response = await self._worked(bridge, work, request, view)
        except BaseException:
            if got is not None:
                with suppress(Exception):  # the view's own error matters more
                    await give_back(bridge, got)
            raise
        return response if got is None else await settle_by(bridge, got, response)

    async def _worked(
        self, bridge: Bridge, work: CommittedWork, request: HttpRequest, view: Callable[[], Any]
    ) -> HttpResponse:
        """Run the view in its transaction, and end that; return the response to send."""
        begun = await work.begin()
        if isinstance(begun, Response):
            return reply(begun)
        response: Any = await work.run(partial(_viewed, bridge, request, view))
        if isinstance(response, Response):
            return reply(response)
        if response.streaming:
            raise await work.refuse("it is a stream")
        if transaction.get_rollback(self._using):
            await work.roll_back()
        return await _ended(work, response)


async def _viewed(bridge: Bridge, request: HttpRequest, view: Callable[[], Any]) -> Any:
    """Return a view's response, rendered: rendering may ask the database."""
    response = await bridge.view(view)
    if not isinstance(response, HttpResponseBase):
        raise TypeError(f"a view must return an HttpResponse, got {response!r}")
    tell_language(request, response)
    return response.render() if callable(getattr(response, "render", None)) else response


async def _ended(work: CommittedWork, response: Any) -> Any:
    """Commit with a response, or roll back; return the response to send."""
    taken: Response = taken_from(response)
    sent = await work.end(taken)
    return response if sent is taken else reply(sent)


@contextmanager
def begin(using: str) -> Iterator[Any]:
    """Begin an outermost transaction of a database of Django's.

    An error of a function of `on_commit` is logged: the work is committed, so the client gets its response.

    Raises:
        ConfigError: there is one already, which is not of Django's own TestCase.
    """
    if not are_of_a_test(connections[using].atomic_blocks):
        raise ConfigError(
            f"commits() begins the outermost transaction of the database {using!r}, and this request is in one "
            "already: end that one before the view (a middleware's atomic(), or another commits() around the view)"
        )
    with committing(using, durable=True):
        yield connections[using]
