"""The Redis protocol's side, byte by byte: what clients say, what limits hold, what a lost connection frees."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import redis

from fastdedup import Dedup, LocalLRU, UnavailableError
from fastdedup.sidecar import client as asking
from fastdedup.sidecar.limits import Limits
from fastdedup.sidecar.namespaces import Namespaces, RawCodec
from fastdedup.sidecar.service.listener import bound
from fastdedup.stores.redis.scripts import pack

from ..fixtures import fixture_with
from ..sidecars import Sidecar
from ..virtual import virtual, virtual_loop
from ..waiting import wait_until
from .attacks import connect as raw_to
from .conftest import BriskServer

sidecar = fixture_with(lambda server: Sidecar(server.url), scope="module")


client = fixture_with(lambda sidecar: connect(sidecar))


def connect(sidecar: Sidecar, **options: Any) -> redis.Redis:
    return redis.Redis(unix_socket_path=str(sidecar.path), decode_responses=True, **options)


@asynccontextmanager
async def served(path: Path, limits: Limits, *, stores: bool = False) -> AsyncIterator[Namespaces]:
    """A sidecar in this loop, over memory://, with limits of the test's own."""
    async with Dedup("memory://", codec=RawCodec(), on_unavailable=LocalLRU()) as root:
        namespaces = Namespaces(root, limits=limits)
        with bound(path) as listener:
            server = BriskServer(namespaces, no_http, allowed=lambda peer: True, stores=stores)
            task = asyncio.create_task(server._serve([listener.socket]))
            try:
                while not server.started:  # noqa: ASYNC110 -- uvicorn has no event for it
                    await asyncio.sleep(0)
                yield namespaces
            finally:
                server.should_exit = server.force_exit = True
                await task
                await namespaces.ephemeral.releases.finish(asyncio.get_running_loop().time() + 1.0)


async def no_http(scope: Any, receive: Any, send: Any) -> None:
    raise NotImplementedError


def short_folder(tmp_path: Path) -> Path:
    """A path that a socket can have: pytest's own may be too long."""
    link = Path(f"/tmp/fd-{os.getpid()}-{abs(hash(str(tmp_path))) % 100_000}")
    link.symlink_to(tmp_path)
    return link


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    link = short_folder(tmp_path)
    yield link / "s"
    link.unlink()


# Claims and tokens


def test_a_claim_its_duplicate_and_its_replay(client: redis.Redis) -> None:
    outcome, owner, fence, attempt, lease, result, degraded = client.execute_command("FD.CLAIM", "order:1")
    assert (outcome, attempt, lease, result, degraded) == ("acquired", 1, 30_000, None, 0)
    assert len(owner) == 20
    second = client.execute_command("FD.CLAIM", "order:1")
    assert (second[0], second[2]) == ("in_progress", fence)
    assert client.execute_command("FD.COMPLETE", "order:1", owner, '{"sold":1}') == "OK"
    third = client.execute_command("FD.CLAIM", "order:1")
    assert (third[0], third[5]) == ("succeeded", '{"sold":1}')


def test_only_the_owner_settles(client: redis.Redis) -> None:
    owner = client.execute_command("FD.CLAIM", "order:2")[1]
    for command in (("FD.COMPLETE", "x"), ("FD.FAIL", "x"), ("FD.RELEASE",), ("FD.RENEW",), ("FD.TOUCH",)):
        with pytest.raises(redis.ResponseError, match="CLAIMLOST"):
            client.execute_command(command[0], "order:2", "0" * 20, *command[1:])
    assert client.execute_command("FD.RENEW", "order:2", owner, 60_000) == "OK"
    assert client.execute_command("FD.RENEW", "order:2", owner) == "OK"
    assert json.loads(client.execute_command("FD.GET", "order:2"))["lease"] > 50_000
    assert client.execute_command("FD.TOUCH", "order:2", owner, "TTL", 200_000_000) == "OK"
    assert json.loads(client.execute_command("FD.GET", "order:2"))["ttl"] > 190_000_000
    assert client.execute_command("FD.RELEASE", "order:2", owner) == "OK"
    again = client.execute_command("FD.CLAIM", "order:2", "OWNER", "worker-1", "LEASE", 5000, "TTL", 9000)
    assert (again[0], again[1], again[3], again[4]) == ("acquired", "worker-1", 2, 5000)
    same = client.execute_command("FD.CLAIM", "order:2", "OWNER", "worker-1")
    assert (same[0], same[2]) == ("acquired", again[2])
    assert client.execute_command("FD.FAIL", "order:2", "worker-1", '"sold out"', "FENCE", again[2]) == "OK"
    assert client.execute_command("FD.CLAIM", "order:2")[0::5] == ["failed", '"sold out"']


def test_namespaces_are_apart(client: redis.Redis) -> None:
    assert client.execute_command("FD.CLAIM", "k", "NS", "sms")[0] == "acquired"
    assert client.execute_command("FD.CLAIM", "k", "NS", "mail")[0] == "acquired"
    assert client.execute_command("FD.CLAIM", "k", "NS", "sms")[0] == "in_progress"


def test_tokens(client: redis.Redis) -> None:
    token = client.execute_command("FD.ISSUE", "SUBJECT", "user:7", "TTL", 60_000)
    assert client.execute_command("FD.CONSUME", token, "SUBJECT", "user:8") == "mismatch"
    assert client.execute_command("FD.CONSUME", token, "SUBJECT", "user:7") == "acquired"
    assert client.execute_command("FD.CONSUME", token, "SUBJECT", "user:7") == "succeeded"
    assert client.execute_command("FD.CONSUME", "never issued") == "unknown"
    token = client.execute_command("FD.ISSUE")
    owner = client.execute_command("FD.REDEEM", token)[1]
    assert client.execute_command("FD.COMPLETE", token, owner, "order 1", "TOKEN") == "OK"
    assert client.execute_command("FD.REDEEM", token)[5] == "order 1"


def test_a_record_can_be_seen_and_forgotten(client: redis.Redis) -> None:
    assert client.execute_command("FD.GET", "order:5") is None
    client.execute_command("FD.CLAIM", "order:5")
    assert '"state":"processing"' in client.execute_command("FD.GET", "order:5")
    assert client.execute_command("FD.FORGET", "order:5") == 1
    assert client.execute_command("FD.FORGET", "order:5") == 0


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("FD.CLAIM",), "wrong number of arguments for 'fd.claim': write FD.CLAIM key"),
        (("FD.CLAIM", ""), "the key is empty"),
        (("FD.CLAIM", "k" * 1025), "at most 1024 bytes"),
        (("FD.CLAIM", b"\xff"), "UTF-8"),
        (("FD.CLAIM", "k", "NX"), r"unknown option 'NX': write FD.CLAIM key \[NS n\]"),
        (("FD.COMPLETE", "k", "OWNER", "id", "sold"), r"unknown option 'sold': write FD.COMPLETE key owner"),
        (("FD.CLAIM", "k", "N\u017f", "shop"), "unknown option"),  # in capitals this text is NS
        (("FD.FIRST", "N\u017f", "shop", "ledger", "1"), "serves no ledger 'N"),
        (("FD.CLAIM", "k", "LEASE"), "LEASE must be followed by a value"),
        (("FD.CLAIM", "k", "LEASE", "0"), "LEASE must be a whole number of milliseconds from 1"),
        (("FD.CLAIM", "k", "LEASE", "1", "lease", "2"), "LEASE is given twice"),
        (("FD.CLAIM", "k", "WAIT", "soon"), "WAIT must be a whole number"),
        (
            ("FD.RELEASE", "k", "o", "FENCE", str(2**53)),
            "FENCE must be a whole number from 0 to 9007199254740991,",
        ),
        (("FD.LIST", "LIMIT", "0"), "LIMIT must be a whole number from 1 to"),
        (("FD.GET", "k", "KIND", ""), "KIND must be one of claim, lock, token, machine, got ''"),
        (("FD.FORGET", "k", "KIND", "claims"), "KIND must be one of claim, .*, got 'claims'"),
        (("FD.LIST", "KIND", "machine"), "KIND must be one of claim, lock, token, got 'machine'"),
        (("FD.LIST", "STATE", "stuck"), "STATE must be one of issued, .*, machine, got 'stuck'"),
        (("FD.LIST", "CURSOR", "c" * 9000), "cursor must be the text that .*, got 9000 characters"),
        (("FD.CLAIM", "k", "OWNER", ""), "an owner must have 1 to 63 bytes"),
        (("FD.CLAIM", "k", "NS", "no spaces"), "a namespace must have 1 to 64"),
        (("FD.COMPLETE", "k"), "write FD.COMPLETE key owner"),
        (("FD.COMPLETE", "k", "o", "r" * 300_000), "the result takes 300000 bytes, the limit is"),
        (("GET", "k"), "unknown command 'GET': a sidecar has FD.CLAIM and others"),
        (("SELECT", "1"), "there is one database"),
        (("HELLO", "4"), "NOPROTO"),
        (("HELLO", "3", "JUNK"), "syntax error in HELLO option 'JUNK'"),
        (("HELLO", "3", "AUTH", "user"), "syntax error in HELLO option 'AUTH'"),
        (("HELLO", "2", "AUTH", "user", "secret", "setname"), "syntax error in HELLO option 'setname'"),
        (("PING", "a", "b"), r"wrong number of arguments for 'ping': write PING \[text\]"),
        (("AUTH",), "wrong number of arguments for 'auth'"),
        (("AUTH", "user", "secret", "more"), "wrong number of arguments for 'auth'"),
        (("CLIENT",), "wrong number of arguments for 'client'"),
    ],
)
def test_a_mistake_is_named_and_the_connection_goes_on(
    client: redis.Redis, command: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(redis.ResponseError, match=message):
        client.execute_command(*command)
    assert client.ping()


@pytest.mark.parametrize("options", [(), ("AUTH", "user", "secret"), ("SETNAME", "me", "auth", "user", "")])
def test_a_hello_takes_the_options_of_redis(client: redis.Redis, options: tuple[str, ...]) -> None:
    assert client.execute_command("HELLO", "2", *options)
    assert client.ping()


def test_resp3_has_its_own_null_and_booleans(sidecar: Sidecar) -> None:
    with connect(sidecar, protocol=3) as client:
        claim = client.execute_command("FD.CLAIM", "order:resp3")
        assert claim[5:] == [None, False]


def test_a_hello_changes_no_reply_before_it(sidecar: Sidecar) -> None:
    """The replies to commands that were under way when it came had the new protocol's null."""

    def asked(tag: str) -> bytes:
        named = pack("FD.CLAIM", f"named:{tag}", "OWNER", "me")
        return pack("FD.CLAIM", f"drawn:{tag}") + named + pack("FD.GET", "absent") + pack("FD.EVICTION")

    with raw_to(sidecar.path) as raw:
        raw.sendall(asked("2") + pack("HELLO", "3") + asked("3") + pack("HELLO", "2") + pack("QUIT"))
        told = b"".join(iter(partial(raw.recv, 65_536), b""))
    before, between = told.split(b"server", 1)[0], told.split(b"server")[1]
    assert (before.count(b"$-1\r\n"), before.count(b"\r\n_\r\n")) == (3, 0)
    assert (between.count(b"$-1\r\n"), between.count(b"\r\n_\r\n")) == (0, 3)


# Connections


def test_pipelined_commands_are_answered_in_order(client: redis.Redis) -> None:
    pipeline = client.pipeline(transaction=False)
    for number in range(3000):
        pipeline.execute_command("FD.CLAIM", f"pipe:{number}")
        pipeline.execute_command("FD.CLAIM", f"pipe:{number}", "OWNER", f"own-{number}")
    replies = pipeline.execute()
    assert [reply[0] for reply in replies[::2]] == ["acquired"] * 3000
    assert [(reply[0], reply[1]) for reply in replies[1::2]] == [
        ("in_progress", f"own-{number}") for number in range(3000)
    ]


CRASHING = """
import os, signal, sys, redis
client = redis.Redis(unix_socket_path=sys.argv[1])
client.execute_command("FD.CLAIM", "held", *sys.argv[2:])
os.kill(os.getpid(), signal.SIGKILL)
"""


async def test_an_ephemeral_claim_is_freed_when_its_client_dies(
    sidecar: Sidecar, client: redis.Redis
) -> None:
    def crash(*options: str) -> None:
        subprocess.run([sys.executable, "-c", CRASHING, str(sidecar.path), *options], check=False)

    crash("EPHEMERAL", "LEASE", "600000")
    await wait_until(
        lambda: client.execute_command("FD.CLAIM", "held", "OWNER", "next")[0] == "acquired",
        description="it is free",
    )
    client.execute_command("FD.FORGET", "held")
    crash("LEASE", "600000")
    assert client.execute_command("FD.CLAIM", "held")[0] == "in_progress", (
        "a plain claim outlives its connection"
    )


async def test_an_ephemeral_claim_that_was_touched_is_freed(sidecar: Sidecar, client: redis.Redis) -> None:
    """Its connection still holds it, and its lease stays as it is."""
    with connect(sidecar) as other:
        owner = other.execute_command("FD.CLAIM", "k", "EPHEMERAL", "LEASE", 600_000)[1]
        assert other.execute_command("FD.TOUCH", "k", owner, "TTL", 200_000_000) == "OK"
    await wait_until(
        lambda: client.execute_command("FD.CLAIM", "k")[0] == "acquired", description="it is free"
    )


async def test_an_ephemeral_claim_that_was_settled_stays(sidecar: Sidecar, client: redis.Redis) -> None:
    with connect(sidecar) as other:
        owner = other.execute_command("FD.CLAIM", "settled", "EPHEMERAL")[1]
        other.execute_command("FD.COMPLETE", "settled", owner, "done")
        kept = other.execute_command("FD.CLAIM", "freed", "EPHEMERAL")
        assert kept[0] == "acquired"
    await wait_until(
        lambda: client.execute_command("FD.CLAIM", "freed")[0] == "acquired",
        description="the other one is freed",
    )
    assert client.execute_command("FD.CLAIM", "settled")[0] == "succeeded"


# Limits


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"*400000000\r\n", b"arguments, this one announces 400000000"),
        (b"*2\r\n$8\r\nFD.CLAIM\r\n$99999999\r\n", b"at most 1048576 bytes"),
        (b"*2\r\n$4\r\nPING\r\n:1\r\n", b"array of bulk strings"),
        (b"*1\r\n*1\r\n*1\r\n", b"array of bulk strings"),
        (b"*-1\r\n", b"at most ten digits"),
        (b"*0\r\n", b"a command must have a name"),
        (b"*1\r\n$4\r\nPINGPONG\r\n", b"does not end where its header says"),
        (b"*1\r\n$4294967296\r\n", b"at most 1048576 bytes"),
    ],
)
def test_what_is_no_command_is_said_and_hung_up_on(sidecar: Sidecar, data: bytes, message: bytes) -> None:
    with raw_to(sidecar.path) as raw:
        raw.sendall(pack("PING") + data)
        answer = b"".join(iter(lambda: raw.recv(4096), b""))
        assert answer.startswith(b"+PONG\r\n-ERR Protocol error: ")
        assert message in answer


async def test_a_half_sent_command_does_not_keep_a_connection(place: Path) -> None:
    async with served(place, Limits(request_timeout=0.05)):
        reader, writer = await asyncio.open_unix_connection(str(place))
        writer.write(b"*2\r\n$8\r\nFD.CLA")
        assert await reader.read() == b""
        writer.close()


async def test_an_idle_connection_is_closed_unless_it_holds_something(place: Path) -> None:
    async with served(place, Limits(idle_timeout=0.3)):
        idle, writer = await asyncio.open_unix_connection(str(place))
        writer.write(pack("PING"))
        assert await idle.readexactly(7) == b"+PONG\r\n"
        holding, other = await asyncio.open_unix_connection(str(place))
        other.write(pack("FD.CLAIM", "k", "EPHEMERAL"))
        await holding.readuntil(b"acquired")
        assert await idle.read() == b""
        other.write(pack("PING"))
        await holding.readuntil(b"+PONG\r\n")
        for each in (writer, other):
            each.close()


async def test_who_does_not_read_is_not_read_from_and_closed(place: Path) -> None:
    """Nothing is buffered without end."""
    async with served(place, Limits(unread=65_536, request_timeout=0.2)) as namespaces:
        root = namespaces.root
        claim = await root.claim("k")
        await claim.complete(b"x" * 100_000)
        with socket.socket(socket.AF_UNIX) as raw:
            raw.setblocking(False)
            raw.connect(str(place))
            request = pack("FD.CLAIM", "k")

            def refused() -> bool:
                try:
                    raw.send(request)
                except BlockingIOError:
                    return False
                except (BrokenPipeError, ConnectionResetError):
                    return True
                return False

            await wait_until(refused, description="it is hung up on")


@virtual
async def test_each_large_reply_has_a_deadline_of_its_own(place: Path) -> None:
    """A client that reads all the time, and has further replies to come, was hung up on."""
    async with served(place, Limits(request_timeout=0.1, in_flight=40)) as namespaces:
        await (await namespaces.root.claim("k")).complete(b"x" * 250_000)
        reader, writer = await asyncio.open_unix_connection(str(place))
        with closing(writer):
            writer.write(pack("FD.CLAIM", "k") * 40)
            for _ in range(40):
                await reader.readuntil(b"succeeded")
                await reader.readexactly(250_000)
                virtual_loop().block(0.06)  # less than a reply's time


async def test_a_flood_does_not_starve_another_client(place: Path) -> None:
    """One with thousands of commands outstanding, and one that asks now and then: it is answered in between."""
    async with served(place, Limits(in_flight=64)):
        flood, flooding = await asyncio.open_unix_connection(str(place))
        flooding.write(b"".join(pack("FD.CLAIM", f"flood:{n}") for n in range(20_000)))
        reader, writer = await asyncio.open_unix_connection(str(place))
        writer.write(pack("FD.CLAIM", "mine"))
        answered = asyncio.create_task(reader.readuntil(b"acquired"))
        count = 0
        while count < 20_000:
            count += (await flood.read(65_536)).count(b"acquired")
            if answered.done():
                break
        assert answered.done()
        assert count < 10_000
        for each in (writer, flooding):
            each.transport.abort()


async def test_the_command_line_waits_for_the_turn_of_its_list(place: Path) -> None:
    """After 5 s it said that no sidecar answers, and to start one; a turn may take 10 s."""
    wanted = dict.fromkeys(("kind", "state", "cursor", "reason")) | {"prefix": "", "older": 0.0}
    limits = Limits(request_timeout=5.2)
    async with served(place, limits) as namespaces, namespaces.turns.reads.turn("", None):
        ask = partial(asking.list_records, place, None, limit=1, within=1.0, **cast(Any, wanted))
        with pytest.raises(UnavailableError, match="too many clients ask for lists"):
            await asyncio.to_thread(ask)


async def test_a_list_of_the_library_waits_for_its_turn(place: Path) -> None:
    """It gave up after four timeouts, and claims of the same process could not pass it."""
    async with (
        served(place, Limits(request_timeout=1.5), stores=True) as namespaces,
        Dedup(f"sidecar://{place}", timeout=0.25) as dedup,
    ):
        async with namespaces.turns.reads.turn("", None):
            asked = asyncio.create_task(dedup.records())
            await wait_until(lambda: namespaces.turns.reading.taken, description="the list waits")
            assert (await dedup.claim("beside")).acquired
            with pytest.raises(UnavailableError, match="too many clients ask for lists"):
                await asked
        assert [record.key for record in (await dedup.records()).records] == ["beside"]
