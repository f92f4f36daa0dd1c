"""Real Sentinel and Cluster groups for tests: on free loopback ports, killable, freezable, quick to fail over."""

from __future__ import annotations

import contextlib
import math
import os
import random
import shutil
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import hiredis
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from fastdedup.stores.redis.cluster.node import Node
from fastdedup.stores.redis.connection import RedisConnection

from . import killable
from .killable import Killable, Started
from .servers import RedisServer

DEADLINE = 60.0
HOST = "127.0.0.1"


def until(predicate: Callable[[], Any], description: str, *, every: float = 0.005) -> Any:
    """Wait for a predicate to come true; a server that is not there (yet) is not there yet."""
    not_yet = (redis.ConnectionError, redis.TimeoutError, redis.ResponseError)
    return killable.until(predicate, description, deadline=DEADLINE, every=every, unless=not_yet)


def free_ports(count: int) -> list[int]:
    """Ports that are not used; 10000 above each there is one for a Cluster's bus.

    No bus has the port of another group's server, nor one that the system gives to clients.
    """
    ports: list[int] = []
    while len(ports) < count:
        port = random.randrange(12_000, 22_000)
        if port in ports:
            continue
        with socket.socket() as probe, socket.socket() as bus, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            bus.bind((HOST, port + 10_000))
            ports.append(port)
    return ports


_FAILOVER = 5.0
"""Seconds after which a failover without a new primary is asked for again."""
_WRITTEN = frozenset({"ADDSLOTS", "REPLICATE", "SETSLOT"})
"""Commands of CLUSTER after which a node writes its file to the disk."""


class Member(Killable):
    """One process of a group; `sentinel` is its configuration, if it is one."""

    deadline = DEADLINE

    def __init__(
        self, folder: Path, port: int, *options: str, sentinel: str | None = None, password: str | None = None
    ) -> None:
        self.port = port
        self.folder = folder / str(port)
        self.folder.mkdir()
        self.options = options
        self._sentinel = sentinel
        self._password = password
        self.env: Mapping[str, str] = {}
        """Set for the process beside the environment of this process."""

    def __repr__(self) -> str:
        return f"<{HOST}:{self.port}>"

    @property
    def address(self) -> tuple[str, int]:
        return HOST, self.port

    def spawn(self, *more: str) -> Member:
        """Start; does not wait until it is up. Without its data, if it was killed."""
        binary = shutil.which("redis-server")
        assert binary, "redis-server is not on the PATH: `make test` installs it"
        command = [binary]
        if self._sentinel is not None:
            config = self.folder / "sentinel.conf"
            if not config.exists():
                config.write_text(self._sentinel)
            command += [str(config), "--sentinel"]
        command += [
            "--port",
            str(self.port),
            "--bind",
            HOST,
            "--dir",
            str(self.folder),
            *self.options,
            *more,
        ]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **self.env})
        return self

    def client(self, **options: Any) -> redis.Redis:
        settings = {"protocol": 2, "retry": Retry(NoBackoff(), 0), "socket_timeout": 5.0, **options}
        return redis.Redis(host=HOST, port=self.port, password=self._password, **settings)

    def ask(self, *command: str | int) -> Any:
        """One command over a connection of its own, which does not wait long: the server may be frozen."""
        # What changes the Cluster is written to the disk, which may be busy.
        patience = 5.0 if command[0] == "CLUSTER" and command[1] in _WRITTEN else 0.5
        with self.client(socket_timeout=patience) as client:
            return client.execute_command(*command)

    def up(self) -> bool:
        assert self.alive, self.log
        return bool(self.ask("PING"))


class Group(Started, ABC):
    """Several processes with a folder."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fastdedup-group-"))
        self.members: list[Member] = []

    def stop(self) -> None:
        """End every process and remove the folder."""
        for member in self.members:
            member.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def heal(self) -> None:
        """Thaw and restart what a test froze and killed, wait until all is well, remove all keys."""
        for member in self.members:
            member.thaw() if member.alive else member.spawn()
        until(self.healthy, "all is well again")
        for member in self.members:
            with contextlib.suppress(redis.ResponseError):  # replicas and sentinels cannot
                member.ask("FLUSHALL")

    @abstractmethod
    def healthy(self) -> bool:
        """All is as it was at the start, whoever is the primary."""

    def in_step(self, primary: Member, replicas: int) -> bool:
        """True where so many replicas have all that the primary has now.

        The replicas' offsets are compared: from Redis 7.2 on, WAIT looks only at what its own connection has written.
        """
        with primary.client(single_connection_client=True) as raw:
            written = raw.info("replication")["master_repl_offset"]
            raw.wait(replicas + 1, 10)  # one more than there are: Redis then asks each replica for its offset
            told = raw.info("replication")
        offsets = [each["offset"] for each in told.values() if isinstance(each, dict) and "offset" in each]
        return sum(offset >= written for offset in offsets) >= replicas


_DATA = ("--save", "", "--appendonly", "no", "--loglevel", "notice", "--repl-diskless-sync-delay", "0")
_REPLICA = ("--repl-ping-replica-period", "1", "--repl-timeout", "5")


class SentinelGroup(Group):
    """A primary, two replicas and three sentinels, which fail over within about two seconds."""

    SERVICE = "main"
    DOWN_AFTER = 400
    """Milliseconds without an answer until a sentinel takes a server for down."""

    def __init__(self, *, password: str = "", watch_password: str = "") -> None:
        super().__init__()
        ports = free_ports(6)
        self._password, self._watch_password = password, watch_password
        options = (*_DATA, *_REPLICA, "--requirepass", password, "--masterauth", password)
        self.data = [Member(self.folder, port, *options, password=password) for port in ports[:3]]
        ids = [f"{number:x}" * 40 for number in (10, 11, 12)]
        self.sentinels = [
            Member(self.folder, port, sentinel=self._config(ports, ids, at), password=watch_password)
            for at, port in enumerate(ports[3:])
        ]
        self.members = [*self.data, *self.sentinels]
        places = ",".join(f"{HOST}:{port}" for port in ports[3:])
        self.url = f"redis+sentinel://{places}/{self.SERVICE}"

    def start(self) -> SentinelGroup:
        first, *replicas = self.data
        first.spawn()
        for replica in replicas:
            replica.spawn("--replicaof", HOST, str(first.port))
        for sentinel in self.sentinels:
            sentinel.spawn()
        until(lambda: all(member.up() for member in self.members), "all servers are up")
        for sentinel in self.sentinels:
            self._hasten(sentinel)
        until(self.healthy, "the replicas are in step and the sentinels know each other")
        return self

    def primary(self) -> Member:
        """Whom the sentinels name."""
        for sentinel in self.sentinels:
            if sentinel.alive:
                _, port = sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.SERVICE)
                return next(member for member in self.data if member.port == int(port))
        raise AssertionError("no sentinel is left")

    def primaries(self) -> list[Member]:
        """The one."""
        return [self.primary()]

    def replicas(self) -> list[Member]:
        """All but the primary."""
        primary = self.primary()
        return [member for member in self.data if member is not primary]

    def restart(self, member: Member) -> Member:
        """Start one that was killed, without its data; the sentinels make it what it is to be."""
        member.spawn()
        until(member.up, "it is up")
        return member

    def healthy(self) -> bool:
        """All replicas are in step with the primary, and every sentinel knows that."""
        primary = self.primary()
        with primary.client() as raw:
            found = raw.info("replication")
        states = [found.get(f"slave{at}", {}).get("state") for at in range(2)]
        return (
            found["role"] == "master"
            and states == ["online", "online"]
            and all(self._sees_all(sentinel, primary) for sentinel in self.sentinels)
        )

    def failover(self) -> None:
        """Have the sentinels appoint another primary, and wait for it."""
        before = self.primary()
        asked = -math.inf

        def has_moved() -> bool:
            nonlocal asked
            if self.primary() is not before:
                return True
            if time.monotonic() - asked > _FAILOVER:  # sentinels give one up that a busy machine makes slow
                self.sentinels[0].ask("SENTINEL", "FAILOVER", self.SERVICE)
                asked = time.monotonic()
            return False

        until(has_moved, "another server is the primary")

    def _sees_all(self, sentinel: Member, primary: Member) -> bool:
        with sentinel.client() as raw:
            state = raw.sentinel_master(self.SERVICE)
            replicas = raw.sentinel_slaves(self.SERVICE)
        return (
            state["port"] == primary.port
            and state["num-other-sentinels"] == 2
            and sum(not replica["is_disconnected"] and not replica["is_sdown"] for replica in replicas) == 2
        )

    def _config(self, ports: Sequence[int], ids: Sequence[str], at: int) -> str:
        """What sentinels would find out in some seconds is told them: who else is there."""
        name = self.SERVICE
        lines = [
            f"sentinel myid {ids[at]}",
            f"sentinel monitor {name} {HOST} {ports[0]} 2",
            f"sentinel down-after-milliseconds {name} {self.DOWN_AFTER}",
            f"sentinel failover-timeout {name} 1000",
            f"sentinel parallel-syncs {name} 2",
            *(f"sentinel known-replica {name} {HOST} {port}" for port in ports[1:3]),
            *(
                f"sentinel known-sentinel {name} {HOST} {port} {id_}"
                for port, id_ in zip(ports[3:], ids, strict=True)
                if id_ != ids[at]
            ),
        ]
        if self._password:
            lines.append(f"sentinel auth-pass {name} {self._password}")
        if self._watch_password:
            lines += [f"requirepass {self._watch_password}", f"sentinel sentinel-pass {self._watch_password}"]
        return "\n".join(lines) + "\n"

    def _hasten(self, sentinel: Member) -> None:
        """Look more often than once a second; Redis before 7.0 cannot be told to.

        A sentinel turns a primary that it has not appointed back into a replica after four periods of publishing. The
        one that appoints it looks once a second meanwhile, and must come first.
        """
        periods = {"INFO-PERIOD": 100, "PING-PERIOD": 100, "ASK-PERIOD": 100, "PUBLISH-PERIOD": 300}
        for name, period in periods.items():
            with contextlib.suppress(redis.ResponseError):
                sentinel.ask("SENTINEL", "DEBUG", name, period)


def refuse_undeclared_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every node that is dialled from now on seem to refuse undeclared keys, as some servers and proxies do."""

    async def refused(node: Node, connection: RedisConnection) -> None:
        node._judge_batching(hiredis.ReplyError("ERR script tried accessing undeclared key"))

    monkeypatch.setattr(Node, "_learn_batching", refused)


class ClusterGroup(Group):
    """Three primaries with a replica each. A slot that nobody serves leaves the others be."""

    NODE_TIMEOUT = 600
    """Milliseconds without an answer until a node is taken for down."""

    def __init__(self, *options: str, replicas: int = 1) -> None:
        super().__init__()
        self._replicas = replicas
        settings = ("--cluster-enabled", "yes", "--cluster-node-timeout", str(self.NODE_TIMEOUT))
        settings += ("--cluster-require-full-coverage", "no", "--cluster-config-file", "nodes.conf")
        settings += ("--cluster-replica-validity-factor", "0", *_DATA, *_REPLICA, *options)
        ports = free_ports(3 * (1 + replicas))
        self.members = [Member(self.folder, port, *settings) for port in ports]
        self.url = "redis+cluster://" + ",".join(f"{HOST}:{port}" for port in ports[:3])

    def start(self) -> ClusterGroup:
        for member in self.members:
            member.spawn()
        until(lambda: all(member.up() for member in self.members), "all servers are up")
        self._introduce()
        for at, member in enumerate(self.members[:3]):
            first, last = 16_384 * at // 3, 16_384 * (at + 1) // 3 - 1
            member.ask("CLUSTER", "ADDSLOTS", *range(first, last + 1))
        for at, replica in enumerate(self.members[3:]):
            self._replicate(replica, self.members[at % 3])
        # Its primaries serve two seconds after their start at the earliest. A look at all members takes 20 ms.
        until(self.healthy, "the cluster is up, and its replicas in step", every=0.1)
        return self

    def raw(self) -> redis.RedisCluster:
        """A client for the whole of it."""
        nodes = [redis.cluster.ClusterNode(HOST, member.port) for member in self.members if member.alive]
        return redis.RedisCluster(startup_nodes=nodes, protocol=2, socket_timeout=1.0)  # a node may be frozen

    def primaries(self) -> list[Member]:
        """Those that hold slots, by the word of one that lives."""
        return list(dict.fromkeys(self.layout().values()))

    def spans(self) -> list[tuple[range, Member]]:
        """Who holds what."""
        return [(range(first, last + 1), member) for (first, last), member in self.layout().items()]

    def owner(self, slot: int) -> Member:
        """Who holds a slot."""
        return next(member for span, member in self.spans() if slot in span)

    def errors(self, member: Member) -> Counter[str]:
        """How often a server has answered with each kind of error."""
        with member.client() as raw:
            stats = raw.info("errorstats")
        return Counter({name.removeprefix("errorstat_"): found["count"] for name, found in stats.items()})

    def replica_of(self, primary: Member) -> Member:
        """A replica of a primary."""
        name = self.id_of(primary)
        return next(
            member for member in self.members if member.alive and f"slave {name} " in self._line(member)
        )

    def healthy(self) -> bool:
        """All slots are served, every replica is in step, and all agree."""
        layouts = {str(sorted(self.layout(member).items(), key=str)) for member in self.members}
        return len(layouts) == 1 and all(self._well(member) for member in self.members)

    def migrate_slot(
        self, slot: int, to: Member, *, meanwhile: Callable[[], None] = lambda: None, at_once: int = 10
    ) -> None:
        """Move a slot with its keys, some at once; `meanwhile` is called after each step."""
        source = self.owner(slot)
        to.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", self.id_of(source))
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", self.id_of(to))
        meanwhile()
        while keys := source.ask("CLUSTER", "GETKEYSINSLOT", slot, at_once):
            source.ask("MIGRATE", HOST, to.port, "", 0, 5000, "KEYS", *keys)
            meanwhile()
        # The new owner first: then nobody is without one.
        for member in (to, source, *(other for other in self.members if other not in (to, source))):
            if member.alive:
                with contextlib.suppress(redis.ResponseError):  # a replica learns it by itself
                    member.ask("CLUSTER", "SETSLOT", slot, "NODE", self.id_of(to))
            meanwhile()

    def _introduce(self) -> None:
        for epoch, member in enumerate(self.members, start=1):
            member.ask("CLUSTER", "SET-CONFIG-EPOCH", epoch)
        for member in self.members:
            for other in self.members:
                if other is not member:
                    member.ask("CLUSTER", "MEET", HOST, other.port)
        count = f"cluster_known_nodes:{len(self.members)}".encode()
        until(lambda: all(count in self._info(member) for member in self.members), "all know all")

    def _replicate(self, replica: Member, primary: Member) -> None:
        until(lambda: replica.ask("CLUSTER", "REPLICATE", self.id_of(primary)), "a replica knows its primary")

    def _well(self, member: Member) -> bool:
        info = self._info(member)
        with member.client(socket_timeout=0.5) as raw:
            found = raw.info("replication")
        in_step = found["role"] == "master" or found["master_link_status"] == "up"
        return in_step and b"cluster_state:ok" in info and b"cluster_slots_ok:16384" in info

    def layout(self, of: Member | None = None) -> dict[tuple[int, int], Member]:
        members = {member.port: member for member in self.members}
        for member in [of] if of else self.members:
            if member.alive:
                with contextlib.suppress(redis.TimeoutError, redis.ConnectionError):
                    reply = self._slots(member)
                    return {(first, last): members[port] for first, last, port in reply}
        raise redis.ConnectionError("no member answers")

    def _slots(self, member: Member) -> list[tuple[int, int, int]]:
        with member.client(socket_timeout=0.5) as raw:
            reply: Any = raw.execute_command("CLUSTER", "SLOTS")
        return [(first, last, primary[1]) for first, last, primary, *_ in reply]

    def _info(self, member: Member) -> bytes:
        return bytes(member.ask("CLUSTER", "INFO"))

    def id_of(self, member: Member) -> str:
        return self._line(member).split()[0]

    def _line(self, member: Member) -> str:
        """What a node says of itself in CLUSTER NODES."""
        nodes: str = member.ask("CLUSTER", "NODES").decode()
        return next(line for line in nodes.splitlines() if "myself" in line)


class Pair(Group):
    """A primary with one replica, and nobody who would appoint another."""

    def __init__(self) -> None:
        super().__init__()
        self.members = [Member(self.folder, port, *_DATA, *_REPLICA) for port in free_ports(2)]
        self.primary, self.replica = self.members
        self.url = f"redis://{HOST}:{self.primary.port}"

    def start(self) -> Pair:
        for member in self.members:
            member.spawn()
        until(lambda: all(member.up() for member in self.members), "both are up")
        self.heal()
        return self

    def cut(self) -> None:
        """Take the replica off: it keeps what it has, and gets no more."""
        self.replica.ask("REPLICAOF", HOST, 1)
        until(lambda: not self._replicas(), "the primary has noticed")

    def heal(self) -> None:
        for member in self.members:
            member.thaw() if member.alive else member.spawn()
        until(lambda: all(member.up() for member in self.members), "both are up")
        self.replica.ask("REPLICAOF", HOST, self.primary.port)
        until(lambda: self._replicas() == 1, "the replica is there")
        self.primary.ask("FLUSHALL")  # being in step with nothing would say nothing
        until(self.healthy, "the replica is in step")

    def healthy(self) -> bool:
        return self._replicas() == 1 and self.in_step(self.primary, 1)

    def _replicas(self) -> int:
        with self.primary.client() as raw:
            return int(raw.info("replication")["connected_slaves"])


_KINDS: Mapping[str, tuple[Callable[[], Any], Callable[[Any], list[Any]]]] = {
    "single": (RedisServer, lambda server: [server]),
    "pair": (Pair, lambda pair: [pair.primary]),
    "sentinel": (SentinelGroup, lambda group: group.data),
    "cluster": (partial(ClusterGroup, replicas=0), lambda group: group.members),
}


@contextlib.contextmanager
def running(kind: str) -> Iterator[tuple[str, list[Any]]]:
    """Run a server, a pair, a group of Sentinel's or a Cluster; yield its URL, and its servers that take writes."""
    make, servers_of = _KINDS[kind]
    with make() as made:
        yield made.url, servers_of(made)
