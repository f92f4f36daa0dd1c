"""One connection shared by many commands: replies in order, and a clean end whatever the server does."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdedup import Dedup, Outcome, UnavailableError
from fastdedup.kernel.codes import Code
from fastdedup.kernel.operations import ReadOp, ReleaseOp
from fastdedup.kernel.verbs import Verb
from fastdedup.stores.redis import RedisStore
from fastdedup.stores.redis.connection import RedisConnection
from fastdedup.stores.redis.scripts import pack, pack_parts
from fastdedup.stores.redis.server import ScriptCall
from fastdedup.stores.redis.url import ServerURL

from ..resp import resp_server, saying
from ..servers import RedisServer


async def link_to(url: str, on_push: Callable[[Any], None] | None = None) -> RedisConnection:
    return RedisConnection(await ServerURL.of(url).connection(5.0), on_push)


async def test_replies_come_back_in_the_order_of_the_commands(redis_url: str) -> None:
    """However many are under way, and whatever becomes of each."""
    link = await link_to(redis_url)
    echoes = [link.send(pack("ECHO", number)) for number in range(500)]
    bad = link.send(pack("NONSENSE"))
    last = link.send(pack("ECHO", "last"))
    assert await asyncio.gather(*echoes) == [b"%d" % number for number in range(500)]
    assert isinstance(await bad, hiredis.ReplyError)
    assert await last == b"last"
    await link.aclose()


async def test_a_reply_in_pieces_is_one_reply(tmp_path: Path) -> None:
    """The network cuts where it likes; several replies may come at once."""

    async def answer(command: list[bytes], writer: asyncio.StreamWriter) -> None:
        for piece in (b"$4\r", b"\nab", b"cd", b"\r\n:7\r\n"):
            writer.write(piece)
            await writer.drain()

    async with resp_server(tmp_path, answer) as url:
        link = await link_to(url)
        first, second = link.send(pack("A")), link.send(b"")
        assert (await first, await second) == (b"abcd", 7)
        await link.aclose()


async def test_a_reply_that_nobody_waits_for_any_more_is_passed_over(redis_url: str) -> None:
    """Its caller was cancelled; the next one gets the next reply."""
    link = await link_to(redis_url)
    cancelled, next_one = link.send(pack("ECHO", "a")), link.send(pack("ECHO", "b"))
    cancelled.cancel()
    assert await next_one == b"b"
    await link.aclose()


async def test_when_the_server_closes_everyone_waiting_hears_of_it(tmp_path: Path) -> None:
    """ConnectionError for each, an instance of its own; the link is of no use any more."""

    def answer(command: list[bytes], writer: asyncio.StreamWriter) -> None:
        if command == [b"LAST"]:
            writer.close()

    async with resp_server(tmp_path, answer) as url:
        link = await link_to(url)
        waiting = [link.send(pack("A")), link.send(pack("B")), link.send(pack("LAST"))]
        errors = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(error) for error in errors] == [ConnectionError] * 3
        assert len({id(error) for error in errors}) == 3
        assert not link.usable
        assert link.closed.done()
        with pytest.raises(ConnectionError):
            link.send(pack("C"))


async def test_abort_drops_what_is_outstanding_at_once(redis_url: str) -> None:
    """With the reason; doing it again is fine."""
    link = await link_to(redis_url)
    waiting = link.send(pack("BLPOP", "nothing-forever", 0))
    link.abort("Redis did not answer in time")
    with pytest.raises(ConnectionError, match="did not answer in time"):
        await waiting
    link.abort("again")
    await link.aclose()
    assert not link.usable


class ClosedTransport(asyncio.Transport):
    """Raises an error as uvloop's does after it has closed."""

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def is_closing(self) -> bool:
        return False

    def write(self, data: Any) -> None:
        raise RuntimeError("the handler is closed")

    def abort(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("count", [1, 3])
async def test_a_command_that_could_not_be_written_waits_for_no_reply(count: int) -> None:
    """Otherwise a batch would end twice: by the error, and as the connection ends."""
    replies = list[Any]()
    redis_py: Any = SimpleNamespace(_writer=SimpleNamespace(transport=ClosedTransport()))
    link = RedisConnection(redis_py, None)
    with pytest.raises(RuntimeError, match="the handler is closed"):
        link.call_many(pack("ECHO", "a") * count, count, replies.append)
    link.abort("it has ended")
    assert not replies


@pytest.mark.parametrize(
    "garbage", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\xff\xfe", b"*-7\r\n", b"$x\r\n"]
)
async def test_garbage_from_the_server_ends_the_connection(garbage: bytes, tmp_path: Path) -> None:
    """Bytes that are not a reply are never taken for a reply."""
    async with resp_server(tmp_path, saying(garbage)) as url:
        link = await link_to(url)
        with pytest.raises(ConnectionError, match="a reply that cannot be read"):
            await link.send(pack("A"))
        assert not link.usable


async def test_a_reply_that_nobody_asked_for_ends_the_connection(tmp_path: Path) -> None:
    """From then on the order of replies could not be trusted."""
    async with resp_server(tmp_path, saying(b"+OK\r\n+SURPLUS\r\n")) as url:
        link = await link_to(url)
        assert await link.send(pack("A")) == b"OK"
        await link.closed
        assert not link.usable


async def test_a_reply_without_end_ends_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is buffered is bounded."""
    monkeypatch.setattr("fastdedup.stores.redis.connection.MAX_REPLY_BYTES", 64 * 1024)
    async with resp_server(tmp_path, saying(b"$1000000000\r\n" + b"x" * 256 * 1024)) as url:
        link = await link_to(url)
        with pytest.raises(ConnectionError, match="more than"):
            await link.send(pack("A"))


async def test_messages_of_a_subscription_are_pushed(redis_url: str, redis_server: RedisServer) -> None:
    """What comes while no command waits is news."""
    news: asyncio.Queue[Any] = asyncio.Queue()
    link = await link_to(redis_url, news.put_nowait)
    assert await link.send(pack("SUBSCRIBE", "channel")) == [b"subscribe", b"channel", 1]
    with redis_server.client() as raw:
        raw.publish("channel", "hello")
    assert await news.get() == [b"message", b"channel", b"hello"]
    await link.aclose()


# The store above it


async def test_a_batch_that_the_server_cut_off_is_sent_again(tmp_path: Path) -> None:
    """Once, over a new connection: every operation may be repeated, so the caller notices nothing."""
    batches: list[bytes] = []

    def answer(command: list[bytes], writer: asyncio.StreamWriter) -> None:
        batches.append(command[0])
        writer.close() if len(batches) == 1 else writer.write(b"*1\r\n:1700000000000000\r\n")

    async with resp_server(tmp_path, answer) as url, Dedup(url, timeout=5.0) as dedup:
        claim = await dedup.claim("k")
        assert (claim.acquired, claim.fence) == (True, 1_700_000_000_000_000)
    assert batches == [b"EVALSHA", b"EVALSHA"]


async def test_a_server_that_always_cuts_off_is_unavailable(tmp_path: Path) -> None:
    """Sent again a time or two, not for ever; and the next batch tries anew.

    What takes back the first claim, by another script, gets no answer: a connection that it ended would take the
    second claim with it, unread.
    """
    claims: list[bytes] = []

    def answer(command: list[bytes], writer: asyncio.StreamWriter) -> None:
        if not claims or command[1] == claims[0]:
            claims.append(command[1])
            writer.close()

    async with resp_server(tmp_path, answer) as url, Dedup(url, timeout=1.0) as dedup:
        sent = 0
        for _ in range(2):
            with pytest.raises(UnavailableError):
                await dedup.claim("k")
            before, sent = sent, len(claims)
            assert 2 <= sent - before <= 3


@pytest.mark.parametrize("reply", [b"+OK\r\n", b":7\r\n", b"$-1\r\n"])
async def test_a_reply_of_the_wrong_shape_is_a_fault(reply: bytes, tmp_path: Path) -> None:
    """Something that speaks RESP but is no Redis: not an outage to sit out."""
    async with resp_server(tmp_path, saying(reply)) as url, Dedup(url, timeout=5.0) as dedup:
        with pytest.raises(Exception, match="a mistake, not an outage"):
            await dedup.claim("k")


async def test_a_server_that_speaks_no_redis_is_unavailable(tmp_path: Path) -> None:
    """A port that belongs to something else."""
    async with (
        resp_server(tmp_path, saying(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as url,
        Dedup(url, timeout=0.5) as dedup,
    ):
        with pytest.raises(UnavailableError, match="a reply that cannot be read"):
            await dedup.claim("k")


async def test_an_operation_that_cannot_be_packed_hangs_nobody(redis_url: str) -> None:
    """A bug of ours, say, or a type that no check caught: its caller hears of it, the next is served."""
    async with asyncio.timeout(10), Dedup(redis_url, timeout=5.0) as dedup:
        await dedup.claim("before")
        engine = dedup.gate.connection.engine
        assert engine is not None
        with pytest.raises(TypeError):
            await asyncio.wait_for(engine.submit(ReadOp([])), 2)  # type: ignore[arg-type]
        assert (engine.pending, engine.in_flight) == (0, 0)
        assert (await dedup.claim("after")).acquired


async def test_connections_killed_by_an_admin_are_made_again(
    redis_url: str, redis_server: RedisServer
) -> None:
    """CLIENT KILL under load: every claim is answered, none twice."""
    async with Dedup(redis_url, timeout=5.0) as dedup:
        await dedup.claim("warm")
        claims = [asyncio.create_task(dedup.claim(str(number))) for number in range(2000)]
        await asyncio.sleep(0)
        with redis_server.client() as raw:
            raw.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        outcomes = [claim.outcome for claim in await asyncio.gather(*claims)]
    assert outcomes == [Outcome.ACQUIRED] * 2000


async def test_concurrent_batches_share_one_attempt_to_connect(
    redis_url: str, redis_server: RedisServer
) -> None:
    """A thundering herd after an outage would be the next outage."""
    store = RedisStore(redis_url, timeout=5.0)
    with redis_server.client() as raw:
        before = raw.info("stats")["total_connections_received"]
        await asyncio.gather(*(store.execute(Verb.READ, [ReadOp(b"k")]) for _ in range(20)))
        assert raw.info("stats")["total_connections_received"] - before == 1
    await store.aclose()


async def test_a_closed_store_connects_no_more(redis_url: str) -> None:
    """Not even for a batch that comes late."""
    store = RedisStore(redis_url, timeout=5.0)
    await store.open()
    await store.aclose()
    await store.aclose()
    with pytest.raises(UnavailableError, match="closed"):
        await store.execute(Verb.READ, [ReadOp(b"k")])


async def test_closing_while_connecting_leaves_nothing_behind(tmp_path: Path) -> None:
    """The attempt is given up, whoever waits for it."""
    async with resp_server(tmp_path, shakes_hands=False) as url:
        store = RedisStore(url, timeout=30.0)
        opening = asyncio.create_task(store.open())
        await asyncio.sleep(0)
        await store.aclose()
        await asyncio.wait([opening])
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("fastdedup")]


async def test_several_commands_in_one_write_get_all_replies_at_once(redis_url: str) -> None:
    """In order, errors among them; between those of others."""
    link = await link_to(redis_url)
    before = link.send(pack("ECHO", "before"))
    many = link.send_many(pack("ECHO", 1) + pack("NONSENSE") + pack("ECHO", 2), 3)
    one = link.send_many(pack("ECHO", "one"), 1)
    after = link.send(pack("ECHO", "after"))
    first, error, second = await many
    assert (await before, first, second, await one, await after) == (
        b"before",
        b"1",
        b"2",
        [b"one"],
        b"after",
    )
    assert isinstance(error, hiredis.ReplyError)
    await link.aclose()
    with pytest.raises(ConnectionError):
        link.call_many(pack("PING") * 2, 2, print)


async def test_a_connection_that_ends_in_between_leaves_the_replies_that_came(tmp_path: Path) -> None:
    """What is missing is a ConnectionError in its place."""

    def answer(command: list[bytes], writer: asyncio.StreamWriter) -> None:
        writer.write(b":1\r\n") if command == [b"A"] else writer.close()

    async with resp_server(tmp_path, answer) as url:
        link = await link_to(url)
        first, *rest = await link.send_many(pack("A") + pack("B") + pack("C"), 3)
        assert first == 1
        assert [type(each) for each in rest] == [ConnectionError] * 2


async def test_finishing_waits_for_what_was_sent(redis_url: str) -> None:
    """It takes nothing new, and closes with the last reply."""
    link = await link_to(redis_url)
    last = link.send(pack("ECHO", "last"))
    link.finish()
    assert not link.usable
    assert not link.closed.done()
    assert await last == b"last"
    await link.closed
    idle = await link_to(redis_url)
    idle.finish()
    idle.finish()
    assert idle.closed.done()


async def test_a_subscription_that_gives_no_sign_of_life_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nobody would be woken for as long as its server is frozen; one that answers is kept."""
    monkeypatch.setattr("fastdedup.stores.redis.listener._QUIET", 0.02)
    seen: list[bytes] = []
    missed = asyncio.Event()

    def answer(command: list[bytes], writer: asyncio.StreamWriter) -> None:
        seen.append(command[0])
        if command[0] == b"SUBSCRIBE":
            writer.write(b"*3\r\n$9\r\nsubscribe\r\n$17\r\nfastdedup:settled\r\n:1\r\n")
        elif seen.count(b"PING") < 4:
            writer.write(b"*2\r\n$4\r\npong\r\n$0\r\n\r\n")

    async with resp_server(tmp_path, answer) as url:
        store = RedisStore(url, timeout=5.0)
        await store.listen(lambda wire: missed.set() if wire is None else None)
        await missed.wait()
        await store.aclose()
    assert seen[:5] == [b"SUBSCRIBE", b"PING", b"PING", b"PING", b"PING"]


async def test_a_batch_cut_off_in_between_resends_only_what_has_no_reply(tmp_path: Path) -> None:
    """What was answered stays answered: asked again it would say that the owner had it before."""
    asked: list[bytes] = []

    def answer(command: list[bytes], writer: asyncio.StreamWriter) -> None:
        asked.append(command[3])
        writer.write(b"*1\r\n:7\r\n") if len(asked) != 2 else writer.close()

    async with resp_server(tmp_path, answer) as url:
        store = RedisStore(url, timeout=5.0)
        calls = [ScriptCall([ReleaseOp(wire, b"\1o", 0)]) for wire in (b"a", b"b")]
        await store.server.deliver(Verb.RELEASE, calls)
        assert [call.answer for call in calls] == [[Code.OK], [Code.OK]]
        assert asked == [b"a", b"b", b"b"]
        await store.aclose()


# Commands as bytes: what hiredis would make of them.


PARTS = st.one_of(
    st.binary(max_size=64),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=64),
    st.integers(-(2**53), 2**53),
)


@given(st.lists(PARTS, min_size=1, max_size=40))
def test_it_packs_as_hiredis_does(command: list[str | bytes | int]) -> None:
    assert pack_parts(command) == pack(*command) == hiredis.pack_command(tuple(command))


@pytest.mark.parametrize("size", [0, 1, 9, 10, 1022, 1023, 1024, 1025, 70_000])
def test_arguments_of_any_size(size: int) -> None:
    command = ("SET", b"x" * size, "y" * size)
    assert pack(*command) == hiredis.pack_command(command)


@pytest.mark.parametrize("part", [None, 1.5, [], bytearray(b"x"), object()])
def test_what_is_no_argument_is_refused(part: object) -> None:
    with pytest.raises(TypeError, match="an argument must be text, bytes or a whole number"):
        pack_parts(["SET", part])
