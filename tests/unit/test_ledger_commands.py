"""`fastdedup ledger create`, `stats` and `resize`."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from fastdedup.cli.main import cli
from fastdedup.ledger.views import PACE
from fastdedup.sync import Dedup

from ..servers import RedisServer, evicting

Run = Callable[..., Result]
WEEK = ["--window", "7d", "--capacity", "1000"]


@pytest.fixture
def run(redis_url: str) -> Run:
    def run(*args: str) -> Result:
        runner = CliRunner(env={"COLUMNS": "100", "FASTDEDUP_URL": redis_url, "FASTDEDUP_NAMESPACE": "shop"})
        return runner.invoke(cli, ["ledger", *args])

    return run


def test_a_service_finds_what_was_created(run: Run, redis_url: str) -> None:
    created = run("create", "orders", *WEEK)
    assert created.output == "Created the ledger 'orders': 1,000 ids in 7d.\n"
    assert json.loads(run("create", "orders", *WEEK, "--json").stdout) == {"name": "orders", "created": False}
    with Dedup(redis_url, namespace="shop") as dedup:
        dedup.ledger("orders", window=7 * 86_400, capacity=1000).first_many(range(250))
    shown = run("stats", "orders")
    assert shown.exit_code == 0
    for words in ("Ledger orders", "250", "25.0%", "7d, and up to 1 % more", "bytes an id"):
        assert words in shown.stdout
    facts = json.loads(run("stats", "orders", "--json").stdout)
    assert (facts["name"], facts["ids"], facts["capacity"], facts["width"]) == ("orders", 250, 1000, 7)


@pytest.mark.parametrize("width", ["3", "16"])
def test_the_width_is_the_ledgers(run: Run, width: str) -> None:
    assert run("create", "wide", *WEEK, "--width", width).exit_code == 0
    assert json.loads(run("stats", "wide", "--json").stdout)["width"] == int(width)


def test_other_settings_are_one_line_of_error(run: Run) -> None:
    run("create", "orders", *WEEK)
    failed = run("create", "orders", "--window", "7d", "--capacity", "2000")
    assert failed.exit_code == 1
    assert failed.stderr.startswith("Error: the ledger 'orders' was created with capacity=1000")
    assert failed.stderr.count("\n") == 1
    assert run("create", "or ders", *WEEK).exit_code == 2
    assert run("create", "orders", "--window", "7", "--capacity", "1000").exit_code == 2


def test_a_resizing_shows_its_progress(run: Run, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"look_again": 0.1, "rely_ms": 100, "skew_ms": 50, "announce_ms": 300}.items():
        monkeypatch.setattr(PACE, name, value)
    assert run("resize", "orders", "--capacity", "5000").exit_code == 1
    run("create", "orders", *WEEK)
    announced = json.loads(
        run("resize", "orders", "--capacity", "5000", "--until", "announced", "--json").stdout
    )
    assert (announced["capacity"], announced["former_capacity"]) == (5000, 1000)
    assert announced["switch_in"] > 0
    watched = run("resize", "orders", "--capacity", "5000")
    assert watched.stdout.startswith("The ledger 'orders' has the capacity 5,000. For 7")
    assert "1,000 to 5,000" in watched.stderr
    refused = run("resize", "orders", "--capacity", "9000")
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert "is being resized to 5000" in refused.stderr
    assert json.loads(run("stats", "orders", "--json").stdout)["capacity"] == 5000
    with Dedup(redis_url, namespace="shop") as dedup:
        former = dedup.ledger("orders", window=7 * 86_400, capacity=1000)
        assert former.first("id")
        assert former.resize(capacity=5000).switch_in == 0


def test_to_look_founds_nothing(run: Run) -> None:
    for _ in range(2):
        missing = run("stats", "absent")
        assert (missing.exit_code, missing.stdout) == (1, "")
        assert missing.stderr == "There is no ledger 'absent' in namespace 'shop'.\n"
    assert run("stats", "absent", "--json").stdout == "null\n"


def test_a_store_that_evicts_needs_the_flag(run: Run, redis_server: RedisServer) -> None:
    with redis_server.client() as raw, evicting(raw):
        refused = run("create", "orders", *WEEK)
        assert (refused.exit_code, "allow_eviction=True" in refused.stderr) == (1, True)
        assert run("create", "orders", *WEEK, "--allow-eviction").exit_code == 0
        assert run("stats", "orders").exit_code == 0
