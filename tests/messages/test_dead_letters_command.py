"""`fastdedup dead-letters list` and `replay`, as people and programs use them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result
from yarl import URL

from fastdedup.cli.main import cli
from fastdedup.messages.headers import AT, REASON

from ..brokers import RabbitServer
from ..programs import ended
from .dead_letter_desk import desk_at

Wait = Callable[..., Any]
Run = Callable[..., Result]


@pytest.fixture
def run(rabbitmq: RabbitServer) -> Run:
    def run(*args: str, url: str = rabbitmq.url, **environment: str) -> Result:
        environment = {"COLUMNS": "120", "FASTDEDUP_AMQP_URL": url, "AMQP_URL": "", **environment}
        return CliRunner(env=environment).invoke(cli, ["dead-letters", *args])

    return run


@pytest.fixture
def dead(rabbitmq: RabbitServer, wait_until: Wait) -> str:
    """A queue with three dead letters, of the keys a, b and [c]."""

    async def bury() -> str:
        async with desk_at(rabbitmq) as desk:
            for key in ("a", "b", "[c]"):
                await desk.bury(key, wait_until=wait_until)
            return desk.dead

    return asyncio.run(bury())


def ids_in(rabbitmq: RabbitServer, queue: str, count: int) -> list[str | None]:
    async def take() -> list[str | None]:
        async with desk_at(rabbitmq) as desk:
            return [message.message_id for message in await desk.taken(queue, count)]

    return asyncio.run(take())


def test_list_shows_people_a_table(run: Run, dead: str) -> None:
    shown = run("list", dead)
    assert (shown.exit_code, shown.stderr) == (0, "")
    for fact in ("a", "[c]", "failed", "ValueError: no such customer", "bytes", f"Dead letters in {dead}"):
        assert fact in shown.stdout


def test_list_prints_programs_a_line_of_json_for_each(run: Run, dead: str) -> None:
    shown = run("list", dead, "--json", "--limit", "2")
    first, second = map(json.loads, shown.stdout.splitlines())
    assert first.pop("at") <= second["at"]
    assert first == {
        "key": "a",
        "attempts": 1,
        "reason": "failed",
        "error": "ValueError: no such customer",
        "consumer": dead.removesuffix(".dead"),
        "queue": dead.removesuffix(".dead"),
        "size": 4,
    }


def test_no_key_is_broken_and_none_reaches_the_terminal_raw(
    rabbitmq: RabbitServer, run: Run, wait_until: Wait
) -> None:
    """`replay --key` wants the key, and a publisher chooses it."""
    key = "3dcd74ca-7bf9-51a5-8d15-5c4e20418e3c"
    hostile = "clear\x1b[2J\u202edlo"

    async def bury() -> str:
        async with desk_at(rabbitmq) as desk:
            await desk.bury(key, hostile, wait_until=wait_until)
            return desk.dead

    dead = asyncio.run(bury())
    for columns, is_terminal in (("20", ""), ("60", "1"), ("200", "1")):
        shown = run("list", dead, COLUMNS=columns, FORCE_COLOR=is_terminal).stdout
        assert key in shown
        assert "ValueError: no such customer" in shown
        assert "clear\\x1b[2J\\u202edlo" in shown
    narrow = run("list", dead, COLUMNS="60", FORCE_COLOR="1").stdout.splitlines()
    assert narrow[0] == key
    assert narrow[1].startswith("    attempts 1, failed, ")
    assert narrow[2] == "    ValueError: no such customer"
    printed = run("list", dead, "--json").stdout
    assert printed.replace("\n", "").isprintable()
    assert [json.loads(line)["key"] for line in printed.splitlines()] == [key, hostile]


@pytest.mark.parametrize("at", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "yesterday"])
def test_a_time_that_this_zone_does_not_have_is_shown_as_it_stands(
    rabbitmq: RabbitServer, run: Run, at: str
) -> None:
    """A header that any publisher can set ended the command with a traceback."""

    async def publish() -> str:
        async with desk_at(rabbitmq) as desk:
            await desk.publish("a", headers={REASON: "failed", AT: at})
            return desk.queue

    shown = run("list", asyncio.run(publish()), COLUMNS="200")
    assert (shown.exit_code, shown.exception, at in shown.stdout) == (0, None, True)


def test_list_says_where_there_are_more_or_none(run: Run, dead: str) -> None:
    assert run("list", dead, "--limit", "2").stderr == "2 of 3 are shown: see --limit.\n"
    empty = run("list", dead.removesuffix(".dead"))
    assert (empty.exit_code, empty.stdout) == (0, "")
    assert empty.stderr.startswith("No dead letter lies in ")


def test_replay_sends_back_the_chosen_key(run: Run, rabbitmq: RabbitServer, dead: str) -> None:
    dry = run("replay", dead, "--key", "b", "--dry-run")
    assert dry.stdout == f"Would send back 1 of the 3 dead letters that were seen in {dead}.\n"
    real = run("replay", dead, "--key", "b")
    assert (real.exit_code, real.stdout) == (0, dry.stdout.replace("Would send", "Sent"))
    assert real.stderr == ""  # no progress bar without a terminal
    assert ids_in(rabbitmq, dead.removesuffix(".dead"), 1) == ["b"]


def test_replay_prints_nothing_but_json_for_programs(run: Run, rabbitmq: RabbitServer, dead: str) -> None:
    other = dead.removesuffix(".dead") + ".retry.50ms"
    done = run("replay", dead, "--all", "--limit", "2", "--to", other, "--json")
    assert (done.exit_code, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {
        "seen": 2,
        "replayed": 2,
        "keys": ["a", "b"],
        "kept": {},
        "missing": [],
    }
    assert ids_in(rabbitmq, dead, 1) == ["[c]"]


def test_replay_names_a_key_that_is_not_there(run: Run, dead: str) -> None:
    done = run("replay", dead, "--key", "a", "--key", "z")
    assert done.exit_code == 1
    assert done.stderr.endswith(f"No dead letter in {dead} with the key 'z' was sent back.\n")
    assert done.stdout.startswith("Sent back 1 of the 3")


def test_replay_names_a_queue_that_takes_nothing(run: Run, rabbitmq: RabbitServer, dead: str) -> None:
    done = run("replay", dead, "--all", "--to", "gone")
    assert done.exit_code == 1
    assert "3 stay: no queue takes the messages for the queue 'gone'" in done.stderr
    assert len(ids_in(rabbitmq, dead, 3)) == 3


@pytest.mark.parametrize("which", [[], ["--all", "--key", "a"]])
def test_replay_asks_which(run: Run, which: list[str]) -> None:
    done = run("replay", "orders.dead", *which)
    assert (done.exit_code, "--key KEY, also repeatedly, or --all" in done.stderr) == (2, True)


def test_the_url_may_stand_in_either_variable(run: Run, rabbitmq: RabbitServer) -> None:
    for variables in (
        {"url": "", "AMQP_URL": rabbitmq.url},
        {"url": rabbitmq.url, "AMQP_URL": "amqp://gone/"},
    ):
        assert "there is no queue 'gone.dead'" in run("list", "gone.dead", **variables).stderr
    assert "FASTDEDUP_AMQP_URL" in run("list", "gone.dead", url="").stderr


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda url: url.with_password("s3cret"), "refuses the login of 'guest'"),
        (lambda url: url.with_path("/nowhere"), "is there a virtual host 'nowhere'"),
        (lambda url: url.with_password("s3cret").with_port(1), "Connect call failed"),
        (lambda url: "amqp://guest:s3/cret@host/", "write @ as %40"),
        (lambda url: "amqp://guest:s3cret@host:99999/", "--url is not an AMQP URL"),
        (lambda url: "redis://:s3cret@host/", "--url is not an AMQP URL"),
        (lambda url: "amqp:orders", "--url is not an AMQP URL"),
    ],
)
def test_an_error_of_the_connection_is_one_line(
    run: Run, rabbitmq: RabbitServer, change: Callable[[URL], Any], words: str
) -> None:
    failed = run("list", "orders.dead", url=str(change(URL(rabbitmq.url))))
    assert (failed.exit_code, failed.stdout, failed.stderr.count("\n")) == (1, "", 1)
    assert words in failed.stderr
    assert "s3" not in failed.output


def test_without_its_extra_the_command_names_it() -> None:
    script = (
        "import sys; sys.modules['aio_pika'] = None\n"
        "from fastdedup.__main__ import main\n"
        "sys.argv = ['fastdedup', 'dead-letters', 'list', 'orders.dead', '--url', 'amqp://host']; main()"
    )
    done = ended("-c", script)
    assert done.returncode == 1
    assert done.stderr == "Error: this needs aio_pika: pip install 'fastdedup[rabbitmq]'\n"
