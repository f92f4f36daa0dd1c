"""Django 5.2.8 and later: a middleware, view decorators, template tags and a form mixin; sync and async views.

    INSTALLED_APPS += ["fastdedup.integrations.django"]          # the template tags; checks the settings at start-up
    FASTDEDUP = {"url": "redis://localhost:6379/0", "namespace": "shop", "token_ttl": 3600.0}

`FASTDEDUP` has the arguments of `fastdedup.sync.Dedup`, or is one, or the dotted path of either; `gate()` returns
it. A form can be sent for `token_ttl` seconds after it was rendered, five minutes by default.

Async views use it as well: Django runs them in several event loops, but a `Dedup` is bound to one, so it has a thread
of its own; awaiting it blocks no loop.

`FASTDEDUP_HTTP` has what the middleware and all decorated views share: see `IdempotencyMiddleware`, and for forms
`subject` and `field`.
"""

from ...extras import needs

with needs(__name__, "Django", "'fastdedup[django]'"):
    import django as _django  # noqa: F401

from ...web.fingerprints import json_fingerprint
from ...web.forms import FormRefused, Refusal
from ...web.request import by_header, by_host, everyone
from ...web.rules import UUID, Route
from .capture import claim_of
from .commits import commits
from .config import gate
from .decorators import idempotent, one_time_form
from .forms import OneTimeFormMixin
from .middleware import IdempotencyMiddleware
from .tokens import aissue_token, by_user, issue_token, reopen, session_subject

__all__ = [
    # The gate
    "gate",
    "claim_of",
    # Keys
    "IdempotencyMiddleware",
    "idempotent",
    "Route",
    "UUID",
    "by_header",
    "by_host",
    "by_user",
    "everyone",
    "json_fingerprint",
    # Transactions
    "commits",
    # Forms
    "one_time_form",
    "OneTimeFormMixin",
    "FormRefused",
    "Refusal",
    "aissue_token",
    "issue_token",
    "reopen",
    "session_subject",
]
