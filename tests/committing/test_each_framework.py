"""What each framework promises of an endpoint whose work, row and response commit together.

FastAPI and Starlette on PostgreSQL are in `test_failure_table.py` and `test_drivers.py`.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import event
from sqlalchemy.orm import Session

from fastdedup.events import Event, GateBypassed
from fastdedup.model import State

from ..fixtures import fixture_with
from ..gated_inbox.shop import Place, broken
from ..integrations.desk import problem
from ..integrations.wsgi_apps import Reply
from ..servers import RedisServer
from .faces import FACES, ON_POSTGRES, Face, headers_of

each_framework = pytest.mark.parametrize("face", FACES, indirect=True)
JSON = ("Content-Type", "application/json")


face = fixture_with(lambda request, redis_url, tmp_path: FACES[request.param](redis_url, tmp_path))


@each_framework
def test_work_and_response_are_committed_once(face: Face) -> None:
    first, again = face.pay("k"), face.pay("k")
    assert (first.status_code, first.json()["run"]) == (201, 1)
    assert (again.status_code, again.content) == (201, first.content)
    assert again.headers["idempotency-replayed"] == "true"
    assert "idempotency-replayed" not in first.headers
    assert (face.effects(), face.rows()) == (["n"], 1)


@each_framework
def test_the_row_answers_and_mends_the_gate(face: Face) -> None:
    face.act = lambda: Reply(202, [("Content-Type", "text/xml"), ("Location", "/p/1")], b"<ok/>")
    first = face.pay("k")
    face.forget("k")
    for _ in range(2):
        again = face.pay("k")
        assert (again.status_code, again.content, again.headers["location"]) == (202, b"<ok/>", "/p/1")
        assert again.headers["content-type"] == first.headers["content-type"]
        assert again.headers["idempotency-replayed"] == "true"
        assert face.state("k") is State.SUCCEEDED
    assert (face.runs, face.effects()) == (1, ["n"])


@each_framework
def test_a_row_without_a_response_is_told(face: Face) -> None:
    """As a view leaves it that has ended the transaction itself: its work is done, and is not done again."""
    face.pay("k")
    face.forget("k")
    face.query("UPDATE fastdedup_inbox SET result = NULL RETURNING 1")
    for _ in range(2):
        again = face.pay("k")
        problem(again, "response-not-stored", 409)
        assert again.headers["idempotency-replayed"] == "true"
        assert face.state("k") is State.RELEASED
    assert (face.runs, face.effects()) == (1, ["n"])


@each_framework
def test_another_body_under_one_key_is_refused(face: Face) -> None:
    """422 by the gate, and also by the row alone."""
    face.pay("k")
    problem(face.pay("k", "other"), "key-reused", 422)
    face.forget("k")
    problem(face.pay("k", "other"), "key-reused", 422)
    assert face.state("k") is State.RELEASED
    assert face.pay("k").headers["idempotency-replayed"] == "true"
    assert (face.runs, face.effects()) == (1, ["n"])


@each_framework
@pytest.mark.parametrize("status", [500, 503, 409, 401])
def test_a_response_that_is_not_kept_rolls_back(face: Face, status: int) -> None:
    """5xx, and the 4xx that a retry may overcome, as `keep` says."""
    face.act = lambda: Reply(status)
    assert face.pay("k").status_code == status
    assert face.is_undone("k")
    face.act = lambda: None
    assert face.pay("k").json()["run"] == 2


@each_framework
@pytest.mark.parametrize("status", [402, 404, 422])
def test_a_4xx_that_is_kept_is_committed(face: Face, status: int) -> None:
    """A handler that returns it has decided: the work of that decision commits with it."""
    face.act = lambda: Reply(status, [JSON], b'{"declined": 1}')
    assert face.pay("k").status_code == status
    assert (face.effects(), face.state("k")) == (["n"], State.FAILED)
    face.forget("k")
    again = face.pay("k")
    assert (again.status_code, again.json(), face.runs) == (status, {"declined": 1}, 1)
    assert face.state("k") is State.FAILED


@each_framework
@pytest.mark.parametrize("status", [404, 500])
def test_an_error_rolls_back(face: Face, status: int) -> None:
    """Also if a returned response of this status would be kept: the handler has not reached its end."""

    def fail() -> None:
        raise face.not_found if status == 404 else RuntimeError

    face.act = fail
    assert face.pay("k").status_code == status
    assert face.is_undone("k")
    face.act = lambda: None
    assert face.pay("k").json()["run"] == 2


@each_framework
@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply(200, [("Content-Type", "text/event-stream")], [b"data: 1\n\n"]), "it is a stream"),
        (Reply(200, [], b"x" * 300_000), "more than the 262144 bytes"),
    ],
    ids=["stream", "large"],
)
def test_a_response_that_cannot_be_stored_commits_nothing(
    face: Face, reply: Reply, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    face.act = lambda: reply
    with caplog.at_level(logging.ERROR, "fastdedup.web"):
        assert face.pay("k").status_code == 500
    assert face.is_undone("k")
    assert "nothing was committed" in caplog.text
    assert reason in caplog.text


@pytest.mark.parametrize("face", [name for name in FACES if name != "django"], indirect=True)
def test_a_body_in_parts_commits_as_one_response(face: Face) -> None:
    """Its type is that of no stream, so its parts are collected within the transaction."""
    face.act = lambda: Reply(200, [JSON], [b'{"parts"', b": 2}"])
    first, again = face.pay("k"), face.pay("k")
    assert (first.json(), again.content) == ({"parts": 2}, first.content)
    assert (face.runs, face.effects(), face.rows()) == (1, ["n"], 1)


@pytest.mark.parametrize("face", ["django"], indirect=True)
def test_a_body_in_parts_of_django_commits_nothing(face: Face) -> None:
    """Django calls it a stream, whatever its type is."""
    face.act = lambda: Reply(200, [JSON], [b'{"parts"', b": 2}"])
    assert face.pay("k").status_code == 500
    assert face.is_undone("k")


@pytest.mark.parametrize("face", [name for name in FACES if name != "django"], indirect=True)
def test_an_error_in_a_later_part_of_a_body_rolls_back(face: Face) -> None:
    def parts() -> Iterator[bytes]:
        yield b'{"parts"'
        raise RuntimeError

    face.act = lambda: Reply(200, [JSON], parts())
    assert face.pay("k").status_code == 500
    assert face.is_undone("k")


@each_framework
def test_without_a_key_work_commits_before_the_response(face: Face) -> None:
    assert face.pay(None).json()["run"] == 1
    assert (face.effects(), face.rows()) == (["n"], 0)
    face.act = lambda: Reply(503)
    assert face.pay(None).status_code == 503
    assert face.effects() == ["n"]


@pytest.mark.parametrize("face", ["flask"], indirect=True)
@pytest.mark.parametrize("key", [None, "k"])
def test_a_hook_that_fails_after_commit_does_not_say_undone(face: Face, key: str | None) -> None:
    """It raises an error after which a transaction is repeated; a client without a key would do the work twice.

    Django's hooks are in `test_django.py`. An async session would stay open after such a hook.
    """

    def fail(session: Session) -> None:
        with closing(sqlite3.connect(face.database, timeout=0.0)) as one:
            one.execute("BEGIN IMMEDIATE")
            with closing(sqlite3.connect(face.database, timeout=0.0)) as other:
                other.execute("DELETE FROM work")

    event.listen(Session, "after_commit", fail)
    try:
        problem(face.pay(key), "commit-unknown", 503)
        if key is not None:
            assert (face.pay(key).status_code, face.runs) == (201, 1), (
                "whatever ends a duplicate's transaction"
            )
    finally:
        event.remove(Session, "after_commit", fail)
    assert face.effects() == ["n"]


@pytest.mark.parametrize("face", ["starlette", "flask", "django"], indirect=True)
def test_a_method_of_a_class_commits_once(face: Face) -> None:
    answers = [face.send("PUT", "/class", headers=headers_of("put")) for _ in range(2)]
    assert [one.json() for one in answers] == [{"run": 1}] * 2
    assert (face.effects(), face.rows()) == (["put"], 1)


# Without Redis, and without a database


@pytest.mark.parametrize("framework", FACES)
def test_without_redis_the_row_decides(framework: str, mortal_redis: RedisServer, tmp_path: Path) -> None:
    events: list[Event] = []
    gate = {"timeout": 0.1, "on_event": events.append}
    with FACES[framework](mortal_redis.url, tmp_path, **gate) as face:
        with broken(mortal_redis, "killed"):
            first, again = face.pay("k"), face.pay("k")
            problem(face.pay("k", "other"), "key-reused", 422)
        assert (first.status_code, again.content) == (201, first.content)
        assert again.headers["idempotency-replayed"] == "true"
        assert (face.runs, face.effects()) == (1, ["n"])
    assert len([one for one in events if isinstance(one, GateBypassed)]) == 3


@pytest.mark.parametrize("framework", ON_POSTGRES)
def test_a_lost_reply_of_commit_is_answered_by_the_row(
    framework: str, mortal_postgres: Place, mortal_redis: RedisServer, key: str
) -> None:
    with ON_POSTGRES[framework](mortal_postgres, mortal_redis.url) as face:
        mortal_postgres.proxy.lose()
        problem(face.pay(key, key), "commit-unknown", 503)
        again = face.pay(key, key)
        assert (again.status_code, again.json(), face.runs) == (201, {"run": 1}, 1)
        assert mortal_postgres.effects(key) == 1


@pytest.mark.parametrize("framework", ON_POSTGRES)
def test_without_a_database_the_answer_is_503(
    framework: str, mortal_postgres: Place, mortal_redis: RedisServer, key: str
) -> None:
    with ON_POSTGRES[framework](mortal_postgres, mortal_redis.url) as face:
        mortal_postgres.server.kill()
        try:
            problem(face.pay(key, key), "database-unavailable", 503)
        finally:
            mortal_postgres.server.start()
        assert (face.pay(key, key).status_code, mortal_postgres.effects(key)) == (201, 1)
