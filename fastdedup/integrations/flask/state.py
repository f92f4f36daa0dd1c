"""The state of one application: its `Dedup`, and what its decorated views share."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar
from wsgiref.types import WSGIEnvironment

import flask

from ...errors import ConfigError
from ...sync import Dedup
from ...web.policy import PublishedPolicy, docs_at
from ...web.record_keys import SCOPE
from ...web.rules import Rule
from ..http.wsgi_request import mount_of
from ..wsgi import WsgiClaims
from .names import Subject

View = TypeVar("View", bound=Callable[..., Any])
NAME = "fastdedup"
"""The name of the extension in `app.extensions`."""
MARK = "_fastdedup"
"""The attribute of a decorated view that has its `Decorated`."""
BELOW = "_fastdedup_below"
"""The attribute of the view that was given to a decorator. It has the `Decorated` of the view above it."""


class Decorated(Protocol):
    """The rules of a decorated view."""

    def limit(self, state: AppState) -> int | None:
        """Return how many bytes of the current request's body are read, or None if it is not read."""

    def rule(self, state: AppState, route: str) -> Rule | None:
        """Return the published rule of a route, or None if its requests have no key, such as those of a form."""
        return None

    def claims_at(self, state: AppState, route: str) -> WsgiClaims:
        """Return the claims of a route."""

    def handle(self, view: Callable[..., Any]) -> Any:
        """Answer a request by a view, which takes further arguments by their names."""

    def decorate(self, view: View) -> View:
        """Return a view whose requests `handle` answers.

        Raises:
            ConfigError: the object is not a view.
        """
        if not callable(view) or isinstance(view, type):
            raise ConfigError(
                f"a view function must be decorated, got {view!r}: in a MethodView decorate a method, or list the "
                "decorator in its `decorators`"
            )

        @functools.wraps(view)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            return self.handle(lambda **more: flask.current_app.ensure_sync(view)(*args, **kwargs, **more))

        setattr(guarded, MARK, self)
        with suppress(AttributeError):  # not on a bound method
            setattr(view, BELOW, self)
        return guarded  # type: ignore[return-value] # it is called as the view is


@dataclasses.dataclass(eq=False, slots=True)
class AppState:
    """The settings of one application."""

    dedup: Dedup
    docs: str | None
    subject: Subject
    field: str
    settings: dict[str, Any]
    claims: Callable[..., WsgiClaims] = dataclasses.field(init=False)
    """Returns the claims of a view and a route, which are made once: an application has a fixed number of both."""
    policy: PublishedPolicy | None = None
    """Mutable: the policy of all views, made when it is first asked for."""
    web_keys: Dedup = dataclasses.field(init=False)
    """Made at once, and kept: its figures then stand at 0 before the first request."""

    def __post_init__(self) -> None:
        self.web_keys = self.dedup.scoped(SCOPE)
        self.claims = functools.cache(lambda rules, route: rules.claims_at(self, route))

    def docs_at(self, environ: WSGIEnvironment) -> str | None:
        """Return the policy's address: a path of this application's is below its mount."""
        return docs_at(self.docs, mount_of(environ))


def current() -> AppState:
    """Return the state of the current application.

    Raises:
        ConfigError: it has no `FastDedup`.
    """
    state = flask.current_app.extensions.get(NAME)
    if state is None:
        raise ConfigError(f"the application {flask.current_app.name!r} has no FastDedup(app, dedup)")
    return state  # type: ignore[no-any-return]


def route_of(rule: Any) -> str:
    """Return the declared path of a route, with its names in braces."""
    return str(rule.rule).replace("<", "{").replace(">", "}")
