"""What is particular to a Django view whose work, row and response commit together."""

from __future__ import annotations

import pytest
from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import override_settings

from fastdedup import ConfigError
from fastdedup.errors import RetryTransaction
from fastdedup.integrations.django import commits, everyone

from ..fixtures import fixture_with
from .django_bank import INBOX, TILL, URLS, doomed, late, pay
from .faces import Face, django_on_sqlite

face = fixture_with(lambda tmp_path: django_on_sqlite("memory://", tmp_path))


def test_a_rollback_by_hand_is_a_rollback(face: Face) -> None:
    TILL.act = doomed
    assert face.pay("k").status_code == 200
    assert face.is_undone("k")


def test_a_template_is_rendered_in_the_transaction(face: Face) -> None:
    TILL.act = late
    first = face.pay("k")
    face.forget("k")
    assert (first.content, face.pay("k").content) == (b"1", b"1")


def test_the_middleware_leaves_its_route_alone_or_is_an_error(face: Face) -> None:
    middleware = ["fastdedup.integrations.django.middleware.IdempotencyMiddleware"]
    http = {"principal": "fastdedup.integrations.django.everyone"}
    with override_settings(MIDDLEWARE=middleware, FASTDEDUP_HTTP=http):
        assert face.pay("k").status_code == 500
    assert face.effects() == []


def test_a_transaction_around_the_view_is_an_error(face: Face, caplog: pytest.LogCaptureFixture) -> None:
    """Its rollback would undo the work after the response was stored."""
    with override_settings(MIDDLEWARE=[f"{URLS}.within_a_transaction"]):
        assert face.pay("k").status_code == 500
    assert "commits() begins the outermost transaction" in caplog.text
    assert face.is_undone("k")


@pytest.mark.parametrize("key", ["k", None])
def test_a_view_has_one_transaction(face: Face, key: str | None) -> None:
    TILL.act = lambda request: pay(request, number=1)
    assert face.pay(key).status_code == 500
    assert (face.effects(), face.rows()) == ([], 0)


@pytest.mark.parametrize("how", ["commit", "rollback"])
def test_a_view_that_ends_the_transaction_is_an_error(face: Face, how: str) -> None:
    def end(request: HttpRequest) -> HttpResponse:
        getattr(transaction, how)()
        return HttpResponse()

    TILL.act = end
    assert face.pay("k").status_code == 500
    assert face.is_undone("k")


@pytest.mark.parametrize("key", ["k", None])
@pytest.mark.parametrize("error", [LookupError(), RetryTransaction("a deadlock of its own")])
def test_an_error_after_the_commit_does_not_hide_the_response(
    face: Face, error: Exception, key: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """A client that is told of an error sends a request without a key again."""

    def fail() -> None:
        raise error

    def act(request: HttpRequest) -> HttpResponse:
        transaction.on_commit(fail)
        return HttpResponse("paid")

    TILL.act = act
    assert face.pay(key).content == b"paid"
    assert face.effects() == ["n"]
    assert "a function of on_commit failed" in caplog.text


def test_atomic_requests_are_within_the_transaction(face: Face) -> None:
    connection.settings_dict["ATOMIC_REQUESTS"] = True
    assert face.pay("k").status_code == 201
    TILL.act = lambda request: JsonResponse({}, status=500)
    face.pay("other")
    assert face.effects() == ["n"]


def test_an_async_view_is_refused() -> None:
    async def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    with pytest.raises(ConfigError, match="not async"):
        commits(INBOX, principal=everyone)(view)
