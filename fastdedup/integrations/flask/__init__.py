"""Flask 3.0 and later: `@idempotent`, `@commits` and `@one_time_form` for views, classes of views and blueprints.

    gate = FastDedup(app, Dedup("redis://localhost:6379/0", namespace="shop"))    # fastdedup.sync.Dedup

    @app.post("/orders")
    @idempotent(principal=by_session("user_id"), required=True)
    def order(): ...

The claim is made in the view's place, after all `before_request` functions, so `principal` may use `session` and `g`.
The response settles it as the client gets it: after error handlers and `after_request` functions.
"""

from ...extras import needs

with needs(__name__, "Flask", "'fastdedup[flask]'"):
    import flask as _flask  # noqa: F401

from ...web.fingerprints import json_fingerprint
from ...web.forms import FormRefused, Refusal
from ...web.request import by_header, by_host, everyone
from ...web.rules import UUID
from ..http.committing import Committed
from .commits import commits
from .exchange import claim_of
from .extension import FastDedup
from .keys import idempotent
from .names import by_session, session_subject
from .one_time import one_time_form
from .tokens import issue_token, reopen

__all__ = [
    # The gate
    "FastDedup",
    "claim_of",
    # Keys
    "idempotent",
    "UUID",
    "by_header",
    "by_host",
    "by_session",
    "everyone",
    "json_fingerprint",
    # Transactions
    "commits",
    "Committed",
    # Forms
    "one_time_form",
    "FormRefused",
    "Refusal",
    "issue_token",
    "reopen",
    "session_subject",
]
