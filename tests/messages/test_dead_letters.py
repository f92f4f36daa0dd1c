"""Dead letters on a real RabbitMQ: looking takes nothing away, replaying loses nothing; and the commands for it."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Any

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel
from aiormq import spec
from aiormq.exceptions import AMQPError, ConnectionNotAllowed
from click.testing import CliRunner, Result
from yarl import URL

from fastdedup import ConfigError, UnavailableError
from fastdedup.cli.dead_letters import at_broker
from fastdedup.cli.main import cli
from fastdedup.integrations.rabbitmq.dead_letters import DeadLetter, list_dead_letters, replay
from fastdedup.messages.headers import AGAIN, AT, REASON

from ..brokers import RabbitServer
from ..fixtures import async_fixture
from ..waiting import wait_until
from .dead_letter_desk import Desk, desk_at

ABC = ("a", "b", "c")


desk = async_fixture(lambda rabbitmq: desk_at(rabbitmq))


@pytest.mark.parametrize("kind", ["classic", "quorum"])
async def test_looking_at_dead_letters_leaves_them_in_order(rabbitmq: RabbitServer, kind: str) -> None:
    """A quorum queue counts each look: RabbitMQ 4.0 drops a message after 20, unless the queue has another limit."""
    async with desk_at(rabbitmq, kind) as desk:
        for number in ABC:
            await desk.bury(number, attempts=2, name="billing")
        looks = [await list_dead_letters(desk.channel, desk.dead, limit) for limit in (*[2] * 21, 50)]
        for look in looks:
            assert [letter.key for letter in look.letters] == ["a", "b", "c"][: len(look.letters)]
            assert look.total == 3
        letter = looks[-1].letters[2]
        assert (letter.attempts, letter.reason, letter.error) == (2, "failed", "ValueError: no such customer")
        assert (letter.consumer, letter.queue, letter.size) == ("billing", desk.queue, 4)
        assert datetime.fromisoformat(letter.at or "").tzinfo is not None
        assert [message.message_id for message in await desk.taken(desk.dead, 3)] == ["a", "b", "c"]


async def test_a_replayed_message_is_worked_on_anew(desk: Desk, rabbitmq: RabbitServer) -> None:
    exchange = await desk.channel.declare_exchange(rabbitmq.name("shop"), auto_delete=True)
    await (await desk.channel.get_queue(desk.queue)).bind(exchange, "paid")
    desk.poison = {"b"}
    await exchange.publish(aio_pika.Message(b"body", message_id="b", headers={"tenant": 7}), "paid")
    async with desk.consumer() as consumer:
        await wait_until(lambda: consumer.counts.dead_lettered == 1, description="it is a dead letter")
        desk.poison = set()
        report = await replay(desk.channel, desk.dead, keys={"b"})
        await wait_until(lambda: desk.done["b"], description="its work is done")
    again = desk.seen[-1]
    assert (report.seen, report.replayed, report.kept) == (1, 1, {})
    assert (again.exchange, again.routing_key, again.headers["tenant"]) == (exchange.name, "paid", 7)
    assert REASON not in again.headers
    assert await desk.taken(desk.dead, 0) == []


async def test_only_the_chosen_keys_are_replayed(desk: Desk) -> None:
    await desk.bury(*ABC)
    dry = await replay(desk.channel, desk.dead, keys=["b", "z"], dry_run=True)
    real = await replay(desk.channel, desk.dead, keys=iter(["b", "z"]))
    assert (dry.seen, dry.replayed, dry.keys) == (real.seen, real.replayed, real.keys) == (3, 1, {"b"})
    assert [message.message_id for message in await desk.taken(desk.queue, 1)] == ["b"]
    assert {message.message_id for message in await desk.taken(desk.dead, 2)} == {"a", "c"}


async def test_replay_sends_the_oldest_and_as_many_as_asked(desk: Desk, rabbitmq: RabbitServer) -> None:
    for number in ABC:
        await desk.bury(number)
    other = await desk.channel.declare_queue(rabbitmq.name())
    ticks: list[int] = []
    report = await replay(desk.channel, desk.dead, limit=2, to=other.name, on_letter=ticks.append)
    assert (report.seen, report.replayed, ticks) == (2, 2, [3, 3])
    assert [message.message_id for message in await desk.taken(other.name, 2)] == ["a", "b"]
    assert [message.message_id for message in await desk.taken(desk.dead, 1)] == ["c"]


async def test_a_message_that_fails_again_is_a_dead_letter_again(desk: Desk) -> None:
    await desk.bury(*ABC)
    desk.poison = set(ABC)
    async with desk.consumer(attempts=2) as consumer:
        assert (await replay(desk.channel, desk.dead)).replayed == 3
        await wait_until(lambda: consumer.counts.dead_lettered == 3, description="all are back")
    letters = (await list_dead_letters(desk.channel, desk.dead)).letters
    assert {(letter.key, letter.attempts, letter.queue) for letter in letters} == {
        (number, 2, desk.queue) for number in ABC
    }


async def test_one_replay_takes_no_dead_letter_twice(desk: Desk) -> None:
    await desk.bury(*ABC)
    report = await replay(desk.channel, desk.dead, to=desk.dead)
    assert (report.seen, report.replayed) == (3, 3)
    assert {message.message_id for message in await desk.taken(desk.dead, 3)} == set(ABC)


@pytest.mark.parametrize("end", ["cancel", "close"])
async def test_a_replay_that_ends_halfway_loses_nothing(desk: Desk, rabbitmq: RabbitServer, end: str) -> None:
    """What was published and not yet acknowledged is there twice, and is worked on once."""
    ids = {str(number) for number in range(20)}
    await desk.bury(*ids)
    connection = await aio_pika.connect(rabbitmq.url)
    channel = await connection.channel()
    sent, closing = 0, []

    def stop(total: int) -> None:
        nonlocal sent
        sent += 1
        if sent == 7:
            closing.append(asyncio.create_task(connection.close())) if end == "close" else running.cancel()

    running = asyncio.create_task(replay(channel, desk.dead, on_letter=stop))
    lost = (AMQPError, ConnectionError) if end == "close" else asyncio.CancelledError
    with pytest.raises(lost):
        await running
    await asyncio.gather(*closing, connection.close())
    async with desk.consumer() as consumer:
        await wait_until(lambda: consumer.counts.first >= 7, description="what was sent back is done")
        assert (await replay(desk.channel, desk.dead)).seen in {12, 13}
        await wait_until(lambda: len(desk.done) == 20, description="all is done")
    assert desk.done == Counter(ids)


async def test_a_message_replayed_twice_is_worked_on_once(desk: Desk) -> None:
    """Killed between the confirm and the ack, a replay leaves the dead letter where it was."""
    await desk.bury("a")
    await replay(desk.channel, desk.dead, to=desk.dead)
    copy = (await desk.taken(desk.dead, 1))[0]
    for _ in range(2):
        await desk.publish("a", headers=dict(copy.headers))
    async with desk.consumer() as consumer:
        await wait_until(lambda: consumer.counts.duplicate == 1, description="the second is a duplicate")
    assert AGAIN in copy.headers
    assert desk.done == {"a": 1}


class NoId(str):
    """aiormq makes an id up where a message has none; in place of this it sends none."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return True


async def test_a_message_without_an_id_never_gets_one(desk: Desk) -> None:
    """Aiormq makes one up for each copy. As a key it would let two copies of a message through."""
    underlay = await desk.channel.get_underlay_channel()
    properties = spec.Basic.Properties(message_id=NoId())
    await underlay.basic_publish(b"body", routing_key=desk.queue, properties=properties)
    await desk.bury(there=1)
    async with desk.consumer() as consumer:
        await replay(desk.channel, desk.dead)
        await wait_until(lambda: consumer.counts.dead_lettered == 1, description="it is back")
    letter = (await list_dead_letters(desk.channel, desk.dead)).letters[0]
    assert (letter.key, letter.reason, desk.seen) == (None, "no_key", [])


async def test_a_dead_letter_stays_where_no_queue_takes_it(desk: Desk, rabbitmq: RabbitServer) -> None:
    await desk.bury("a", "b")
    gone = await replay(desk.channel, desk.dead, to="gone")
    full = await desk.channel.declare_queue(
        rabbitmq.name(), arguments={"x-max-length": 1, "x-overflow": "reject-publish"}
    )
    refused = await replay(desk.channel, desk.dead, to=full.name)
    assert (gone.replayed, refused.replayed) == (0, 1)
    assert list(gone.kept) == ["no queue takes the messages for the queue 'gone': declare or bind it again"]
    assert "refuses a message" in next(iter(refused.kept))
    assert len(await desk.taken(desk.dead, 1)) == len(await desk.taken(full.name, 1)) == 1


async def test_what_the_broker_has_dead_lettered_goes_back_too(desk: Desk, rabbitmq: RabbitServer) -> None:
    """It has none of our headers; RabbitMQ's own say where it came from, each time anew."""
    dead = await desk.channel.declare_queue(rabbitmq.name())
    brief, briefer = [
        await desk.channel.declare_queue(
            rabbitmq.name(),
            arguments={
                "x-message-ttl": 1,
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": dead.name,
            },
        )
        for _ in range(2)
    ]

    async def letter(key: str) -> DeadLetter:
        while True:
            found = await list_dead_letters(desk.channel, dead.name)
            if letters := [letter for letter in found.letters if letter.key == key]:
                return letters[0]

    await desk.publish("a", to=brief.name)
    await desk.publish("b", to=dead.name)  # nobody knows where this came from
    died = await letter("a")
    assert (died.reason, died.queue, died.attempts) == ("expired", brief.name, 0)
    assert datetime.fromisoformat(died.at or "")
    report = await replay(desk.channel, dead.name, keys="a", to=briefer.name)
    assert (report.replayed, (await letter("a")).queue) == (1, briefer.name)
    unknown = await letter("b")
    assert (unknown.reason, unknown.queue, unknown.at) == (None, None, None)
    report = await replay(desk.channel, dead.name, keys="b")
    assert list(report.kept) == ["the dead letter does not say which queue it came from"]


async def test_a_queue_that_is_not_there_is_named(desk: Desk) -> None:
    for ask in (list_dead_letters, replay):
        with pytest.raises(ConfigError, match=r"there is no queue 'nowhere\.dead'"):
            await ask(desk.channel, "nowhere.dead")
    with pytest.raises(ConfigError, match="limit"):
        await replay(desk.channel, desk.queue, limit=0)
    assert (await list_dead_letters(desk.channel, desk.queue)).total == 0


# `fastdedup dead-letters list` and `replay`, as people and programs use them


Run = Callable[..., Result]


@pytest.fixture
def run(rabbitmq: RabbitServer) -> Run:
    def run(*args: str, url: str = rabbitmq.url, **environment: str) -> Result:
        environment = {"COLUMNS": "120", "FASTDEDUP_AMQP_URL": url, "AMQP_URL": "", **environment}
        return CliRunner(env=environment).invoke(cli, ["dead-letters", *args])

    return run


@pytest.fixture
def dead(rabbitmq: RabbitServer) -> str:
    """A queue with three dead letters, of the keys a, b and [c]."""

    async def bury() -> str:
        async with desk_at(rabbitmq) as desk:
            for key in ("a", "b", "[c]"):
                await desk.bury(key)
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


def test_no_key_is_broken_and_none_reaches_the_terminal_raw(rabbitmq: RabbitServer, run: Run) -> None:
    """`replay --key` wants the key, and a publisher chooses it."""
    key = "3dcd74ca-7bf9-51a5-8d15-5c4e20418e3c"
    hostile = "clear\x1b[2J\u202edlo"

    async def bury() -> str:
        async with desk_at(rabbitmq) as desk:
            await desk.bury(key, hostile)
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
        (lambda url: url.with_password("s3cret").with_query(auth="external"), "refuses the login of 'guest'"),
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
    code = 3 if words == "Connect call failed" else 2
    assert (failed.exit_code, failed.stdout, failed.stderr.count("\n")) == (code, "", 1)
    assert words in failed.stderr
    assert "s3" not in failed.output


@pytest.mark.parametrize("error", [None, ConnectionNotAllowed(530, "NOT_ALLOWED")], ids=["lost", "refused"])
def test_a_connection_that_ends_midway_is_one_error(rabbitmq: RabbitServer, error: Exception | None) -> None:
    async def look(channel: AbstractChannel) -> None:
        wire = await channel.get_underlay_channel()
        if error is not None:
            raise error
        await wire.close()
        await wire.basic_get("orders.dead")

    with pytest.raises(UnavailableError if error is None else ConfigError, match="cannot be used: "):
        at_broker(rabbitmq.url, look)
