"""Who reads of a sidecar delays nobody, and takes no place of those that claim."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import hiredis
import pytest
import redis

from fastdedup import Dedup
from fastdedup.sidecar.client import UnixConnection, fetch
from fastdedup.sidecar.limits import LimitError, Limits
from fastdedup.sidecar.namespaces import Namespaces, RawCodec
from fastdedup.sidecar.service.config import load
from fastdedup.sidecar.turns import ReadTurns, Turns
from fastdedup.stores.redis.scripts import pack

from ..fixtures import fixture_with
from ..servers import RedisServer
from ..sidecar.attacks import connect
from ..sidecar.running import Sidecar, client, figure
from ..waiting import wait_until

# Fault: 500 pipelined FD.LEDGER of a client that may only read stopped the claims of all other tenants.


CONFIG = """
timeout = 5.0

[namespaces.other]

[ledgers.ids]
window = 3600
capacity = 1_000_000

[[sockets]]
path = "{path}"
namespaces = ["fastdedup"]
verbs = "read"
show_keys = true
claims_per_second = {rate}
"""
CLAIMS = 50
HTTP = b"GET /v1/ledgers/ids HTTP/1.1\r\nhost: s\r\n\r\n"
RESP = pack("FD.LEDGER", "ids")


@pytest.mark.parametrize(("clients", "sent"), [(1, 500 * RESP), (200, RESP), (200, HTTP)])
def test_claims_go_on_beside_them(server: RedisServer, tmp_path: Path, clients: int, sent: bytes) -> None:
    """The claims of one client, one by one, are done before a fraction of the reads is."""
    path = tmp_path / "read.sock"
    with ExitStack() as stack:
        config = CONFIG.format(path=path, rate=1000)
        sidecar = stack.enter_context(Sidecar("--url", server.url, "--grace", "0.5", config=config))
        ask = stack.enter_context(sidecar.client())
        ask.execute_command("FD.FIRST", "ids", *range(60))
        readers = [stack.enter_context(connect(path)) for _ in range(clients)]
        for each in readers:
            each.sendall(sent)
        readers[0].recv(1, socket.MSG_PEEK)  # they have begun
        for number in range(CLAIMS):
            assert (
                ask.execute_command("FD.CLAIM", f"{clients}:{sent[:4]!r}:{number}", "NS", "other")[0]
                == b"acquired"
            )
        answered = sum(answers(each) for each in readers)
        assert 0 < answered < CLAIMS
        assert b'"breaker":"closed"' in fetch(sidecar.path, "/readyz")[1]


def answers(connection: socket.socket) -> int:
    connection.setblocking(False)
    try:
        data = connection.recv(1 << 20)
    except BlockingIOError:
        return 0
    if data.startswith(b"HTTP"):
        return data.count(b"HTTP/1.1")
    reader, count = hiredis.Reader(), 0
    reader.feed(data)
    while reader.gets() is not False:
        count += 1
    return count


@pytest.mark.parametrize("command", [("FD.LEDGER", "ids"), ("FD.LIST",)])
def test_reads_of_many_keys_count_towards_the_quota(
    server: RedisServer, tmp_path: Path, command: tuple[str, ...]
) -> None:
    path = tmp_path / "read.sock"
    with Sidecar("--url", server.url, config=CONFIG.format(path=path, rate=0.01)), client(path) as ask:
        ask.execute_command(*command)
        with pytest.raises(redis.ResponseError, match="claims_per_second"):
            ask.execute_command(*command)


async def test_one_read_runs_at_a_time_for_all_clients() -> None:
    turns, running = Turns(Limits(), lambda: 0), 0

    async def read() -> None:
        nonlocal running
        async with turns.reads.turn("", None):
            running += 1
            assert running == 1
            await asyncio.sleep(0)
            running -= 1

    await asyncio.gather(*(read() for _ in range(5)))


# Fault: lists that one client had asked for, and hung up on, refused all other clients theirs for 10 s.


LIST_CONFIG = """
timeout = 5.0

[ledgers.ids]
window = 3600
capacity = 1_000_000
"""
READS = 200


@pytest.mark.parametrize("path", ["/v1/records/list", "/v1/ledgers/ids"])
async def test_a_read_whose_client_has_gone_takes_no_turn(server: RedisServer, path: str) -> None:
    def commands() -> int:
        return int(server.client().info("stats")["total_commands_processed"])

    with Sidecar("--url", server.url, config=LIST_CONFIG) as sidecar:
        before = commands()
        assert fetch(sidecar.path, path)[0] == 200
        alone = commands() - before
        with server.frozen():
            for _ in range(READS):
                with connect(sidecar.path) as client:
                    client.sendall(f"GET {path} HTTP/1.1\r\nhost: s\r\n\r\n".encode())
            await wait_until(
                lambda: figure(sidecar.figures(), "fastdedup_sidecar_connections", wire="http") <= 1,
                description="their connections are closed",
            )
        assert fetch(sidecar.path, path)[0] == 200
        assert commands() - before < alone * READS / 2


class Reads:
    """Reads that wait for their turns; `order` says which had theirs."""

    def __init__(self) -> None:
        self.turns = ReadTurns(patience=20.0)
        self.order: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def ask(self, name: str, socket: str, process: int | None) -> None:
        peer = None if process is None else SimpleNamespace(pid=process)

        async def read() -> None:
            async with self.turns.turn(socket, peer):
                self.order.append(name)

        self.tasks[name] = asyncio.create_task(read())

    async def all(self) -> list[str]:
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        return self.order


@asynccontextmanager
async def first_under_way(reads: Reads) -> Any:
    """Ask within the block; the turns begin at its end."""
    async with reads.turns.turn("other", None):
        yield
        await asyncio.sleep(0)  # all wait


async def test_sockets_take_turns() -> None:
    reads = Reads()
    async with first_under_way(reads):
        for number in range(50):
            reads.ask(f"a{number}", "a", number)
        reads.ask("b0", "b", 1)
        reads.ask("b1", "b", 1)
    assert (await reads.all())[:5] == ["a0", "b0", "a1", "b1", "a2"]


async def test_the_processes_of_a_socket_take_turns() -> None:
    reads = Reads()
    async with first_under_way(reads):
        for number in range(50):
            reads.ask(f"a{number}", "", 1)
        reads.ask("b", "", 2)
        reads.ask("unknown", "", None)
    assert (await reads.all())[:5] == ["a0", "b", "unknown", "a1", "a2"]


async def test_a_read_that_is_cancelled_leaves_its_turn() -> None:
    reads = Reads()
    async with first_under_way(reads):
        for number in range(4):
            reads.ask(f"a{number}", "", 1)
        reads.ask("b", "b", 2)
        await asyncio.sleep(0)
        reads.tasks["a0"].cancel()
        reads.tasks["b"].cancel()
    assert await reads.all() == ["a1", "a2", "a3"]
    reads.ask("after", "", 1)
    assert (await reads.all())[-1] == "after"


async def test_a_turn_that_comes_as_its_read_is_cancelled_goes_to_the_next() -> None:
    reads = Reads()
    async with first_under_way(reads):
        reads.ask("a0", "", 1)
        reads.ask("a1", "", 1)
    reads.turns._pass_on()  # before a0 runs
    reads.tasks["a0"].cancel()
    assert await reads.all() == ["a1"]


async def test_the_reads_of_one_socket_refuse_no_other() -> None:
    reads = Reads()
    async with first_under_way(reads):
        for number in range(1025):
            reads.ask(f"a{number}", "a", number)
        reads.ask("b", "b", 1)
    with pytest.raises(LimitError, match="take turns"):
        await reads.tasks["a1024"]
    assert "b" in (await reads.all())[:2]


async def test_a_read_waits_for_its_turn_in_vain() -> None:
    reads = Reads()
    reads.turns = ReadTurns(patience=0.0)
    async with first_under_way(reads):
        reads.ask("a", "", 1)
        with pytest.raises(LimitError, match="take turns"):
            await reads.tasks["a"]
    assert await reads.all() == []


# Looking into made-up namespaces takes no place from those that claim, and `configured` names are the only
# ones. A thousand FD.GET of made-up namespaces used up what clients may name: the next claim in a new one
# was refused.


PLACES = 5
LOOKS = ("FD.GET k", "FD.FORGET k", "FD.RELEASE k me", "FD.RENEW k me", "FD.COMPLETE k me done")


def look(path: Path, namespace: str, method: str) -> int:
    connection = UnixConnection(path)
    try:
        connection.request(method, f"/v1/records?key=k&namespace={quote(namespace)}")
        return connection.getresponse().status
    finally:
        connection.close()


def test_looking_at_made_up_namespaces_locks_nobody_out(server: RedisServer) -> None:
    with (
        Sidecar("--url", server.url, config=f"[limits]\nnamespaces = {PLACES}\n") as sidecar,
        sidecar.client() as ask,
    ):
        ask.execute_command("FD.CLAIM", "k", "NS", "kept")
        for number in range(PLACES + 1):
            for each in LOOKS:
                with suppress(redis.ResponseError):  # CLAIMLOST
                    ask.execute_command(*each.split(), "NS", f"made-up-{each[3:6]}-{number}")
            assert look(sidecar.path, f"made-up-{number}", "GET") == 404
            assert look(sidecar.path, f"made-up-{number}", "DELETE") == 200
        for number in range(PLACES - 1):
            assert ask.execute_command("FD.CLAIM", "k", "NS", f"payments-{number}")[0] == b"acquired"
        with pytest.raises(redis.ResponseError, match="clients have named more than 5"):
            ask.execute_command("FD.CLAIM", "k", "NS", "one-too-many")
        figures = sidecar.figures()
        assert "made-up" not in figures
        assert 'namespace="(others)",outcome="absent",verb="get"' in figures
        assert 'namespace="kept"' in figures


async def test_a_record_of_another_namespace_is_found(server: RedisServer) -> None:
    async with (
        Dedup(server.url, namespace="elsewhere") as elsewhere,
        Dedup(server.url, codec=RawCodec()) as root,
    ):
        await elsewhere.claim("k", owner="me")
        looking = Namespaces(root).passing("elsewhere")
        record = await looking.get("k")
        assert record is not None
        assert record.owner == "me"
        assert await looking.forget("k")
        assert await elsewhere.get("k") is None
        assert "elsewhere" not in root.gate.connections.common.recent.namespaces()


@pytest.mark.parametrize("words", ["FD.CLAIM k", *LOOKS])
def test_only_configured_namespaces_are_served(sidecar_with_payments: Sidecar, words: str) -> None:
    with sidecar_with_payments.client() as ask:
        with pytest.raises(
            redis.ResponseError, match=r"'made-up' is not configured: add a table \[namespaces"
        ):
            ask.execute_command(*words.split(), "NS", "made-up")
        assert ask.execute_command("FD.GET", "unknown", "NS", "payments") is None
        assert ask.execute_command("FD.GET", "unknown", "NS", "fastdedup") is None


sidecar_with_payments = fixture_with(
    lambda server: Sidecar("--url", server.url, config="[namespaces.payments]\nttl = 60\n"), scope="module"
)


@pytest.mark.parametrize(
    ("text", "only"),
    [
        ("", False),
        ("[namespaces.sms]\n", True),
        ('allow_namespaces = "any"\n[namespaces.sms]\n', False),
        ('allow_namespaces = "configured"\n', True),
    ],
)
def test_a_table_of_a_namespace_turns_the_switch_on(tmp_path: Path, text: str, only: bool) -> None:
    file = tmp_path / "fastdedup.toml"
    file.write_text(text)
    assert load(file, environment=False).configured_only is only
