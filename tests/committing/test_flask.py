"""What is particular to a Flask view whose work, row and response commit together."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import flask
import pytest

from fastdedup import ConfigError
from fastdedup.integrations.flask import Committed, by_header, claim_of, commits
from fastdedup.integrations.wsgi import IdempotencyMiddleware
from fastdedup.model import State
from fastdedup.sync.sql import Inbox
from fastdedup.web.inspection import get_request

from ..fixtures import fixture_with
from ..gated_inbox.shop import Place, broken
from ..gated_inbox.times import WEEK
from ..servers import RedisServer
from .bank import PAID
from .faces import ANN, Face, flask_on_postgres, flask_on_sqlite, headers_of

face = fixture_with(lambda tmp_path: flask_on_sqlite("memory://", tmp_path))


def test_a_response_of_the_row_passes_the_functions_after_it(face: Face) -> None:
    face.pay("k")
    face.forget("k")
    assert face.pay("k").headers["x-signed"] == "yes"


def test_an_error_that_a_handler_answers_rolls_back(face: Face) -> None:
    """Also if its response would be kept."""

    def fail() -> None:
        raise LookupError

    face.bank.act = fail
    assert face.pay("k").status_code == 400
    assert face.is_undone("k")


@pytest.mark.parametrize("place", ["after_request", "teardown_request", "body"])
def test_an_error_past_the_view_leaves_no_open_transaction(face: Face, place: str) -> None:
    """Flask lets it through: of a teardown function always, and in tests also of other functions."""
    face.bank.app.testing = True

    def fail(given: Any) -> Any:
        raise SystemExit if place == "body" else LookupError

    if place == "body":
        face.bank.act = lambda: flask.Response(map(fail, "ab"))
    else:
        getattr(face.bank.app, place)(fail)
    with pytest.raises((LookupError, SystemExit)):
        face.pay("k")
    assert face.is_undone("k")
    assert face.bank.engine.pool.checkedout() == 0  # of its QueuePool


@pytest.mark.parametrize("key", ["k", None])
def test_a_view_has_one_transaction(face: Face, key: str | None) -> None:
    """Also without a key: one of the two would be left open, and its work lost."""
    face.bank.act = lambda: face.bank.app.view_functions["pay"](number=1)
    assert face.pay(key).status_code == 500
    assert (face.effects(), face.rows()) == ([], 0)


@pytest.mark.parametrize("how", ["complete", "fail"])
def test_a_view_cannot_settle_its_claim(face: Face, how: str) -> None:
    """The gate would know of work that is rolled back, and answer the retry without doing it."""
    face.bank.act = lambda: getattr(claim_of(), how)()
    assert face.pay("k").status_code == 500
    assert face.is_undone("k")


@pytest.mark.parametrize("key", ["k", None])
def test_the_work_of_a_head_request_is_committed(
    face: Face, caplog: pytest.LogCaptureFixture, key: str | None
) -> None:
    """Its response has a length and no body, and is not cut short. So a retry does not ask the database."""

    @face.bank.app.get("/look")
    @face.bank.commits
    def look(committed: Committed[Any]) -> str:
        committed.session.execute(PAID, {"note": "n"})
        return "found"

    http = face.bank.app.test_client()
    for is_first in (True, False):
        answer = http.head("/look", headers=headers_of(key))
        assert (answer.status_code, answer.headers["content-length"], answer.data) == (200, "5", b"")
        assert face.effects() == ["n"] * (1 if is_first or key else 2)
        assert ("idempotency-replayed" in answer.headers) is bool(key and not is_first)
        if key is not None:
            record = get_request(face.bank.dedup, "HEAD", "/look", key=key, principal=ANN)
            assert record is not None
            assert record.state is State.SUCCEEDED
    assert "cut short" not in caplog.text
    assert "not kept" not in caplog.text


def test_a_request_that_middleware_has_claimed_is_an_error(face: Face) -> None:
    app = face.bank.app
    app.wsgi_app = IdempotencyMiddleware(app.wsgi_app, face.bank.dedup, principal=by_header("x-account"))
    assert face.pay("k").status_code == 500
    assert face.effects() == []


def test_a_missing_begin_is_told() -> None:
    with pytest.raises(ConfigError, match="begin="):
        commits(Inbox("flask", keep=WEEK))


def test_duplicates_in_threads_are_done_once(
    mortal_postgres: Place, mortal_redis: RedisServer, key: str
) -> None:
    """Without Redis they wait at the row."""
    with (
        flask_on_postgres(mortal_postgres, mortal_redis.url, timeout=0.1) as face,
        broken(mortal_redis, "killed"),
    ):
        with ThreadPoolExecutor(5) as threads:
            answers = list(threads.map(lambda _: face.pay(key, key), range(5)))
        assert {(one.status_code, one.content) for one in answers} == {(201, answers[0].content)}
        assert mortal_postgres.effects(key) == 1
