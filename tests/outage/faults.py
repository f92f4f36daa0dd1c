"""The table of faults: how each is made on a real server, what it is called, and how it heals."""

from __future__ import annotations

import contextlib
import datetime
import shutil
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import hiredis
import pytest
import redis
import trustme

from ..chaos.proxy import Gate, Mode
from ..servers import DEBUG_OPTION, RedisServer, free_port, server_version
from ..topologies import free_ports
from ..waiting import wait_until

PASSWORD = "s3cret/with:odd@signs"

WRITES_NOTHING = frozenset({"get"})
"""What Redis goes on serving while it refuses writes."""
TAKES_NO_MEMORY = frozenset({"get", "forget"})


class Site:
    """A server with a password, the URL that a gate reaches it by, and who brings faults upon it."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.url = server.url
        self.admin = server.client()
        self.way: Gate | None = None
        self.on_exit = contextlib.AsyncExitStack()

    def hang_up(self) -> None:
        """CLIENT KILL all but the admin."""
        self.admin.client_kill_filter(_type="normal", skipme=True)

    def send(self, *command: str) -> None:
        """Send a command whose reply nobody waits for. What others send afterwards comes behind it."""
        peer = self.on_exit.enter_context(socket.socket(socket.AF_UNIX))
        peer.connect(str(self.server.socket))
        peer.sendall(hiredis.pack_command(("AUTH", PASSWORD)))
        assert peer.recv(100) == b"+OK\r\n"
        peer.sendall(hiredis.pack_command(command))

    def answer(self) -> str:
        """What the admin is told at this moment: the text of an error, or nothing."""
        try:
            self.admin.echo("?")
        except redis.RedisError as error:
            return str(error)
        return ""


Act = Callable[[Site], Awaitable[None]]


async def nothing(site: Site) -> None:
    """For a fault that needs no preparation, or passes by itself."""


@dataclass(frozen=True)
class Fault:
    """One way to be unavailable.

    Attributes:
        cause: what the message must say, as a regular expression.
        strike: brings it about, at once and for all connections.
        heal: ends it; may return before the server has recovered.
        prepare: what must stand before gates are opened.
        options: of redis-server.
        silent: nothing is answered, so each operation takes its whole deadline.
        served: verbs that Redis goes on serving.
        mistake: opening a gate meanwhile is a ConfigError, as no waiting mends a wrong URL.
        since: the first version of Redis that this fault can be brought upon.
    """

    name: str
    cause: str
    strike: Act
    heal: Act
    prepare: Act = nothing
    options: tuple[str, ...] = ()
    silent: bool = False
    served: frozenset[str] = frozenset()
    mistake: bool = False
    since: tuple[int, int] = (0, 0)

    def __str__(self) -> str:
        return self.name

    @property
    def timeout(self) -> float:
        """Seconds: short where it is waited out, generous where the server's own answer must come first."""
        return 0.4 if self.silent else 3.0

    @asynccontextmanager
    async def site(self) -> AsyncIterator[Site]:
        """Run a server that this fault can strike."""
        if (version := server_version(shutil.which("redis-server") or "redis-server")) < self.since:
            pytest.skip(f"{self.name}: not on this version of Redis, {version}")
        server = RedisServer(*self.options, password=PASSWORD).start()
        site = Site(server)
        try:
            with site.admin:
                await self.prepare(site)
                yield site
        finally:
            await site.on_exit.aclose()
            server.stop()


# The server is gone, or answers nobody


async def kill(site: Site) -> None:
    site.server.kill()


async def remove(site: Site) -> None:
    site.server.kill()
    site.server.socket.unlink()


async def start(site: Site) -> None:
    site.server.start()


async def freeze(site: Site) -> None:
    site.server.freeze()


async def thaw(site: Site) -> None:
    site.server.thaw()


async def pause(site: Site) -> None:
    site.admin.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")


async def unpause(site: Site) -> None:
    site.admin.client_unpause()


async def sleep(site: Site) -> None:
    site.send("DEBUG", "SLEEP", "2")


# The way to the server is broken


async def put_gate(site: Site) -> None:
    """Let the way to the server lead through one that can break."""
    site.way = await Gate(None, site.server.socket).start()
    site.on_exit.push_async_callback(site.way.aclose)
    site.url = site.way.url.replace("://", f"://{site.server.login}")


def way(mode: Mode) -> Act:
    async def act(site: Site) -> None:
        assert site.way is not None
        site.way.set(mode)

    return act


async def serve_tcp(site: Site) -> None:
    port = free_port()
    restart(site, "--port", str(port))
    site.url = f"redis://{site.server.login}127.0.0.1:{port}/0"


async def serve_tls(site: Site) -> None:
    authority = trustme.CA()
    folder, port = site.server.folder, free_port()
    yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(folder / "valid.pem"))
    expired = authority.issue_cert("localhost", not_after=yesterday)
    expired.private_key_and_cert_chain_pem.write_to_path(str(folder / "expired.pem"))
    shutil.copy(folder / "valid.pem", folder / "cert.pem")
    files = {"cert-file": "cert.pem", "key-file": "cert.pem", "ca-cert-file": "ca.pem"}
    options = [word for name, file in files.items() for word in (f"--tls-{name}", str(folder / file))]
    restart(site, *options, "--tls-auth-clients", "no", "--tls-port", str(port))
    site.url = f"rediss://{site.server.login}localhost:{port}/0?ssl_ca_certs={folder / 'ca.pem'}"


def show_certificate(name: str, *, prefer: str) -> Act:
    async def act(site: Site) -> None:
        shutil.copy(site.server.folder / f"{name}.pem", site.server.folder / "cert.pem")
        # Any change to its TLS makes Redis read the files again.
        site.admin.config_set("tls-prefer-server-ciphers", prefer)
        site.hang_up()

    return act


# The server is there, and refuses


def setting(name: str, value: object, *, hang_up: bool = False) -> Act:
    """CONFIG SET; with `hang_up` all must connect anew."""

    async def act(site: Site) -> None:
        site.admin.config_set(name, value)
        if hang_up:
            site.hang_up()

    return act


def command(*words: object) -> Act:
    async def act(site: Site) -> None:
        site.admin.execute_command(*words)

    return act


def restart(site: Site, *options: str) -> None:
    site.server.kill()
    site.server.options += options
    site.server.start()


async def load(site: Site) -> None:
    """Start again with 10 s of data to load, a kilobyte and an event at a time."""
    with site.admin.pipeline(transaction=False) as pipeline:
        for n in range(1000):
            pipeline.set(f"filler-{n}", bytes(1100), px=3_600_000)
        pipeline.execute()
    site.admin.save()
    site.server.kill()
    site.server.start(loading=True)


async def fill(site: Site) -> None:
    site.admin.set("filler", bytes(5_000_000))
    site.admin.config_set("maxmemory", 4_000_000)


async def run_long(site: Site) -> None:
    site.send("EVAL", "while true do end", "0")
    await wait_until(lambda: "BUSY" in site.answer(), description="the script is known to be long")


async def spoil_disk(site: Site) -> None:
    (site.server.folder / "dump.rdb").mkdir()
    site.admin.bgsave()

    def failed() -> bool:
        return bool(site.admin.info("persistence")["rdb_last_bgsave_status"] == "err")

    await wait_until(failed, description="saving has failed")


async def mend_disk(site: Site) -> None:
    (site.server.folder / "dump.rdb").rmdir()
    site.admin.bgsave()


async def form_cluster(site: Site) -> None:
    [port] = free_ports(1)
    restart(site, "--port", str(port), "--cluster-enabled", "yes", "--cluster-node-timeout", "500")
    site.url = f"redis+cluster://{site.server.login}127.0.0.1:{port}"
    await give_slots(site)
    await wait_until(
        lambda: site.admin.execute_command("CLUSTER INFO")["cluster_state"] == "ok",
        description="the cluster is up",
    )


async def give_slots(site: Site) -> None:
    site.admin.execute_command("CLUSTER", "ADDSLOTS", *range(16_384))


async def take_slots(site: Site) -> None:
    site.admin.execute_command("CLUSTER", "DELSLOTS", *range(16_384))


NO_ANSWER = r"no answer|time(d )?out|in time"

FAULTS = (
    Fault("refused", "refused", kill, start),
    Fault("no such socket", "No such file", remove, start),
    Fault("reset", "reset by peer", way(Mode.RESET), way(Mode.OPEN), prepare=put_gate),
    Fault("half-open", NO_ANSWER, way(Mode.SILENT), way(Mode.OPEN), prepare=put_gate, silent=True),
    Fault("frozen", NO_ANSWER, freeze, thaw, silent=True),
    Fault("paused", NO_ANSWER, pause, unpause, silent=True),
    Fault("asleep", NO_ANSWER, sleep, nothing, options=(DEBUG_OPTION, "yes"), silent=True),
    Fault(
        "loading",
        "loading its data",
        load,
        setting("key-load-delay", 0),
        options=(
            *("--key-load-delay", "10000", "--rdbcompression", "no"),
            *("--loading-process-events-interval-bytes", "1024"),
        ),
        since=(7, 0),  # 6.2 answers nothing until it has loaded 2 MB
    ),
    Fault(
        "read-only",
        "read-only replica",
        command("REPLICAOF", "127.0.0.1", 1),
        command("REPLICAOF", "NO", "ONE"),
        served=WRITES_NOTHING,
    ),
    Fault(
        "replica without its primary",
        "lost its primary|read-only replica",  # the breaker's probe is a write: that is refused as such
        command("REPLICAOF", "127.0.0.1", 1),
        command("REPLICAOF", "NO", "ONE"),
        options=("--replica-serve-stale-data", "no"),
    ),
    Fault("out of memory", "out of memory", fill, command("DEL", "filler"), served=TAKES_NO_MEMORY),
    Fault(
        "cannot persist",
        "cannot persist",
        spoil_disk,
        mend_disk,
        options=("--save", "3600", "1000000"),
        served=WRITES_NOTHING,
    ),
    Fault(
        "too few replicas",
        "too few replicas",
        setting("min-replicas-to-write", 1),
        setting("min-replicas-to-write", 0),
        served=WRITES_NOTHING,
    ),
    Fault("cluster without slots", "cluster is down", take_slots, give_slots, prepare=form_cluster),
    Fault("busy", "another script", run_long, command("SCRIPT", "KILL"), options=("--lua-time-limit", "10")),
    Fault(
        "max clients",
        "no connection left",
        setting("maxclients", 1, hang_up=True),
        setting("maxclients", 1000),
        prepare=serve_tcp,
    ),
    Fault(
        "another password",
        "user or password",
        setting("requirepass", "another", hang_up=True),
        setting("requirepass", PASSWORD),
        mistake=True,
    ),
    Fault(
        "scripts forbidden",
        "may not do this",
        command("ACL", "SETUSER", "default", "-evalsha", "-eval"),
        command("ACL", "SETUSER", "default", "+@all"),
    ),
    Fault(
        "commands forbidden",
        "may not do this",
        command("ACL", "SETUSER", "default", "-set", "-setrange", "-del"),
        command("ACL", "SETUSER", "default", "+@all"),
        served=WRITES_NOTHING,
    ),
    Fault(
        "expired certificate",
        "certificate has expired",
        show_certificate("expired", prefer="yes"),
        show_certificate("valid", prefer="no"),
        prepare=serve_tls,
    ),
)
