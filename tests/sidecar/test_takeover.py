"""A new sidecar takes the socket over from the old one, without a refused connection."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import count
from pathlib import Path

import pytest
import redis

from fastdedup import LocalLRU
from fastdedup.errors import ConfigError
from fastdedup.sidecar.client import UnixConnection, fetch
from fastdedup.sidecar.service.listener import bound
from fastdedup.sidecar.service.takeover import is_held, succeeding, take_places

from ..fixtures import fixture_of
from ..programs import until
from ..servers import free_port
from .conftest import Serve
from .running import DEADLINE, Sidecar, client


def claim_by_resp(path: Path, key: str) -> bool:
    with client(path) as connection:
        return bool(connection.execute_command("FD.CLAIM", key)[0] == b"acquired")


def claim_by_http(path: Path, key: str) -> bool:
    with closing(UnixConnection(path)) as connection:
        connection.request("POST", "/v1/claims", json.dumps({"key": key}))
        answer = connection.getresponse()
        assert answer.status in (201, 409), answer.read()
        return answer.status == 201


class Crowd:
    """Clients that connect and claim all the while, each the same keys as the others."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.errors: list[BaseException] = []
        self.won: Counter[str] = Counter()
        self.asked = 0
        self._stop = threading.Event()
        self._all = [
            threading.Thread(target=self._claim, args=(way,)) for way in (claim_by_resp, claim_by_http)
        ]

    @contextmanager
    def at_work(self) -> Iterator[None]:
        for each in self._all:
            each.start()
        try:
            yield
        finally:
            self._stop.set()
            for each in self._all:
                each.join(DEADLINE)

    def _claim(self, way: object) -> None:
        for number in count():
            if self._stop.is_set():
                return
            try:
                won = way(self.path, f"k{number}")  # type: ignore[operator]
            except BaseException as error:  # noqa: BLE001 -- the test's thread reports it
                self.errors.append(error)
                return
            self.won[f"k{number}"] += won
            self.asked += 1


def successor(old: Sidecar, *options: str) -> Sidecar:
    new = Sidecar("--socket", str(old.path), "--take-over", *options, own_socket=False)
    new.path = old.path
    return new


def test_clients_see_neither_a_refusal_nor_a_second_owner(redis_url: str) -> None:
    options = ("--url", redis_url, "--ttl", "60")
    old = Sidecar(*options)
    tenant, file = old.folder / "tenant.sock", old.folder / "fastdedup.toml"
    file.write_text(f'[[sockets]]\npath = "{tenant}"\ndeny = ["forget"]\n')
    metrics = ("127.0.0.1", free_port())
    options += ("--metrics-address", "{}:{}".format(*metrics))
    old.options += options[-2:]
    old.options += ["--config", str(file)]
    mine = ("FD.CLAIM", "mine", "OWNER", "worker:1", "EPHEMERAL")
    with old, socket.socket(socket.AF_UNIX) as early, client(old.path) as worker, client(old.path) as other:
        worker.execute_command(*mine)
        early.connect(str(old.path))
        early.settimeout(DEADLINE)
        new = successor(old, *old.options)
        crowd = Crowd(old.path)
        with crowd.at_work(), ExitStack() as stack:
            stack.callback(new.begin().stop)
            until(lambda: "stopping" in old.log, "the old one stops")
            for number in range(5):
                claim_by_resp(old.path, f"new:{number}")
            # It was connected to the old sidecar before, and asks only now.
            early.sendall(b"*2\r\n$8\r\nFD.CLAIM\r\n$5\r\nearly\r\n")
            assert early.recv(100).startswith(b"*7\r\n$8\r\nacquired")
            early.close()
            with client(old.path) as again:  # the end of the former connection takes nothing from the new one
                assert again.execute_command(*mine)[0] == b"acquired"
                worker.close()
                assert old.process.wait(DEADLINE) == 0, old.log
                assert other.execute_command("FD.CLAIM", "mine")[0] == b"in_progress"
            with client(tenant) as restricted, pytest.raises(redis.exceptions.NoPermissionError):
                restricted.execute_command("FD.FORGET", "mine")
            asked = crowd.asked
            until(lambda: crowd.asked >= asked + 10 or bool(crowd.errors), "the crowd goes on")
            lock = old.path.with_name(old.path.name + ".lock")
            until(lambda: lock.read_text() == f"{new.pid}\n", "the lock is the new one's")
            until(
                lambda: not [*old.path.parent.glob("*.next*"), *tenant.parent.glob("*.next*")],
                "all has its name",
            )
            until(lambda: reaches(metrics), "the port, which was the old one's until its end")
            with pytest.raises(ConfigError, match="serves"), bound(old.path):
                pass
            stack.pop_all()
        assert crowd.errors == []
        assert set(crowd.won.values()) <= {0, 1}
        assert (
            list(crowd.won.values()).count(1) >= len(crowd.won) - 1
        )  # the last key may have one client only
        assert new.end() == 0
        assert not is_held(old.path)
        assert [each.name for each in old.path.parent.iterdir() if each.suffix != ".lock"] == []
        new.stop()


def reaches(address: tuple[str, int]) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(address) == 0


@contextmanager
def _refused(sidecar: Sidecar) -> Iterator[Sidecar]:
    sidecar.begin()
    try:
        assert sidecar.process.wait(DEADLINE) == 1
        yield sidecar
    finally:
        sidecar.stop()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("memory://", "in the running sidecar's memory"),
        ("redis://127.0.0.1:1/0", "our own store does not answer"),
    ],
)
def test_a_sidecar_that_would_do_harm_leaves_the_running_one_alone(
    redis_url: str, url: str, why: str, running: Sidecar
) -> None:
    with _refused(successor(running, "--url", url)) as new:
        assert why in new.log
    assert claim_by_resp(running.path, url) is True


@pytest.mark.parametrize("placed", [False, True])
def test_a_third_sidecar_hears_that_another_one_takes_over(
    redis_url: str, running: Sidecar, placed: bool
) -> None:
    """It was told to stop the sidecar that listens there, which was the new one."""
    path = running.path
    aside = path.with_name("aside")
    with succeeding(path, 0o660, owner=-1, group=-1) as other:
        if placed:
            os.rename(path, aside)
            other.take_place()
        try:
            with _refused(successor(running, "--url", redis_url)) as new:
                assert "another sidecar is taking it over" in new.log
        finally:
            if placed:
                os.rename(aside, path)
    assert claim_by_resp(path, f"third:{placed}") is True


class Behind(LocalLRU):
    """A policy whose journal has as many lines as a test says."""

    waiting = 0

    @property
    def lines(self) -> int:
        return self.waiting


@pytest.mark.parametrize("placed", [False, True], ids=["before it listens", "before it takes the place"])
def test_a_sidecar_with_journal_lines_is_not_taken_over(serve: Serve, redis_url: str, placed: bool) -> None:
    """Its store answers again, but has not got all of its answers yet: the new one would give their keys away."""
    policy = Behind()
    old = serve(redis_url, on_unavailable=policy)
    connection = old.namespaces.root.gate.connection
    old.loop.call_soon_threadsafe(connection.journals.add, policy, "fastdedup")
    path = Path(old.path)
    policy.waiting = 0 if placed else 1

    def take_over() -> None:
        with succeeding(path, 0o660, owner=-1, group=-1) as other:
            policy.waiting = 1
            take_places([other])

    with pytest.raises(ConfigError, match=r"journal lines.*try again when"):
        take_over()
    policy.waiting = 0
    assert claim_by_resp(path, f"lines:{placed}") is True
    assert b'"degraded":false' in fetch(path, "/readyz")[1]


def test_the_place_of_a_sidecar_that_ends_by_itself_is_taken(redis_url: str) -> None:
    """Between two looks at it: if the new one refused, no sidecar would serve."""
    with Sidecar("--url", redis_url) as old:
        path = Path(old.path)
        with succeeding(path, 0o660, owner=-1, group=-1) as other:
            old.end()
            until(lambda: not is_held(path), "it has ended")
            take_places([other])
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.connect(str(path))


running = fixture_of(Sidecar, scope="module")


def test_without_a_running_sidecar_it_starts_as_usual(tmp_path: Path) -> None:
    path = tmp_path / "gate.sock"
    assert not is_held(path)
    with bound(path):
        assert is_held(path)
    assert not is_held(path)


def test_only_a_sidecar_that_is_signed_for_is_told_to_stop(tmp_path: Path) -> None:
    path = tmp_path / "gate.sock"
    with bound(path):
        path.with_name("gate.sock.lock").write_text(
            "1\n"
        )  # whose lock, and whose socket: not the same process
        with (
            pytest.raises(ConfigError, match="names process 1, and process"),
            succeeding(path, 0o660, owner=-1, group=-1),
        ):
            pass


def test_the_old_sidecar_leaves_the_new_ones_socket_alone(tmp_path: Path) -> None:
    path = tmp_path / "gate.sock"
    with bound(path) as old, bound(tmp_path / "other.sock") as new:
        os.rename(new.path, path)
        assert old.leave() is True
        assert old.leave() is False
        assert path.exists()
