"""The clients of examples/clients, as they are there, on another socket: a program of each runs its `once`.

`make test` runs those of `CHEAP`; `make test-clients` names all five in CLIENT_LANGUAGES and installs their tools.
Where a language is named and its tool is missing, its tests fail.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import UnixStreamServer
from threading import Thread
from typing import Any

import pytest

from ..fixtures import fixture_with
from ..servers import DEADLINE, RedisServer
from .running import Sidecar, figure

CLIENTS = Path(__file__).parents[2] / "examples" / "clients"
PROGRAMS = Path(__file__).parent / "languages"
SOCKET = "/run/fastdedup/fastdedup.sock"
RESULT = {"for": "Zoë", "fresh": True}
NODE = str(Path(sys.prefix) / "bin" / "node")


@dataclass(frozen=True)
class Language:
    """How a client is built and run."""

    client: str
    program: str
    run: tuple[str, ...]
    build: tuple[str, ...] = ()


LANGUAGES = {
    "node": Language("once.mjs", "main.mjs", (NODE, "main.mjs")),
    "php": Language("once.php", "main.php", ("php", "main.php")),
    "ruby": Language("once.rb", "main.rb", ("ruby", "main.rb")),
    "go": Language("once.go", "main.go", ("./main",), ("go", "build", "-o", "main", "main.go", "once.go")),
    "java": Language("Once.java", "Main.java", ("java", "Main"), ("javac", "Main.java", "Once.java")),
}
CHEAP = "node php ruby"
CHOSEN = os.environ.get("CLIENT_LANGUAGES", CHEAP).split()


class Client:
    """A client that is built in a folder of its own, with a socket that `connect` puts there."""

    def __init__(self, language: Language) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fd-"))
        self._language = language
        code = (CLIENTS / language.client).read_text()
        assert SOCKET in code
        assert "5000" in code, "it waits for another owner; here not for that long"
        text = code.replace(SOCKET, str(self.folder / "socket")).replace("5000", "200")
        (self.folder / language.client).write_text(text)
        shutil.copy(PROGRAMS / language.program, self.folder)
        if language.build:
            done = self._call(language.build)
            assert done.returncode == 0, done.stderr

    def connect(self, socket: Path) -> None:
        link = self.folder / "socket"
        link.unlink(missing_ok=True)
        link.symlink_to(socket)

    def once(self, key: str, command: str = "echo ran >> effects") -> subprocess.CompletedProcess[str]:
        return self._call((*self._language.run, key, command))

    def result(self, key: str, command: str = "echo ran >> effects") -> object:
        done = self.once(key, command)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    @property
    def effects(self) -> int:
        """How often the work has run."""
        file = self.folder / "effects"
        return len(file.read_text().split()) if file.exists() else 0

    def _call(self, command: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, timeout=3 * DEADLINE, check=False
        )


@pytest.fixture(scope="module")
def clients() -> Iterator[dict[str, Client]]:
    """The clients of all chosen languages, by language."""
    made = {name: Client(LANGUAGES[name]) for name in CHOSEN}
    yield made
    for each in made.values():
        shutil.rmtree(each.folder)


sidecar = fixture_with(lambda redis_server: Sidecar("--url", redis_server.url, "--ttl", "60"), scope="module")


@pytest.fixture(scope="module")
def outage() -> Iterator[Sidecar]:
    """A sidecar whose Redis is down."""
    server = RedisServer().start()
    with Sidecar("--url", server.url, "--timeout", "0.1") as sidecar:
        server.kill()
        yield sidecar
    server.stop()


@pytest.fixture(params=CHOSEN)
def client(request: pytest.FixtureRequest, clients: dict[str, Client], sidecar: Sidecar) -> Client:
    """A client of each language, connected to the sidecar; it has had no effect so far."""
    client = clients[request.param]
    client.connect(sidecar.path)
    (client.folder / "effects").unlink(missing_ok=True)
    return client


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    return f"order:{request.node.name}"


def test_a_duplicate_gets_the_first_one_s_result(client: Client, key: str) -> None:
    assert client.result(key) == RESULT
    assert client.result(key) == RESULT
    assert client.effects == 1


@pytest.mark.parametrize("status", [3, 4])
def test_work_that_fails_frees_the_key(client: Client, key: str, status: int) -> None:
    """At 4 it fails by an Error in Java, a panic in Go, a throw in Ruby, which is no exception there."""
    failed = client.once(key, f"echo ran >> effects; exit {status}")
    assert failed.returncode != 0
    assert client.result(key) == RESULT
    assert client.effects == 2


def test_work_without_a_result_is_completed(client: Client, key: str) -> None:
    """In Java it ran, and then was an error of the client: neither completed nor released."""
    for _ in range(2):
        assert client.result(key, "echo ran >> effects; exit 5") is None
    assert client.effects == 1


def test_work_whose_result_cannot_be_stored_does_not_run_again(client: Client, key: str) -> None:
    """It is no JSON, or too large for the sidecar in Java. The key was free again when the lease ended."""
    lost = client.once(key, "echo ran >> effects; exit 6")
    again = client.once(key)
    assert lost.returncode != 0
    assert again.returncode != 0
    assert "not run: failed" in again.stderr + again.stdout
    assert client.effects == 1


def test_a_short_outage_after_the_work_does_not_lose_its_result(
    client: Client, key: str, redis_server: RedisServer
) -> None:
    """The outage was an error, and a failure might have stood for a day in place of the result."""
    pause = f"redis-cli -s {redis_server.socket} CLIENT PAUSE 600 > /dev/null"
    assert client.result(key, f"echo ran >> effects; {pause}") == RESULT
    assert client.result(key) == RESULT
    assert client.effects == 1


def test_nothing_runs_while_another_owner_works(client: Client, key: str, sidecar: Sidecar) -> None:
    with sidecar.client() as other:
        assert other.execute_command("FD.CLAIM", key)[0] == b"acquired"
    busy = client.once(key)
    assert busy.returncode != 0
    assert re.search("Another owner is at work|in_progress", busy.stderr + busy.stdout)
    assert client.effects == 0


def test_nothing_runs_while_redis_is_down(client: Client, key: str, outage: Sidecar) -> None:
    client.connect(outage.path)
    refused = client.once(key)
    assert refused.returncode != 0
    assert re.search("The store does not answer|UNAVAILABLE", refused.stderr + refused.stdout)
    assert client.effects == 0


def test_nothing_runs_without_a_sidecar(client: Client, key: str) -> None:
    client.connect(client.folder / "nobody")
    assert client.once(key).returncode != 0
    assert client.effects == 0


def completions(sidecar: Sidecar) -> float:
    """Return how many tries to complete found a claim lost."""
    labels = {"namespace": "fastdedup", "verb": "complete", "outcome": "claim_lost"}
    return figure(sidecar.figures(), "fastdedup_operations_total", **labels)


def test_a_claim_that_was_lost_is_an_error(client: Client, key: str, sidecar: Sidecar) -> None:
    """Its result is not stored, so nobody is told that it was. Another try of `complete` would change nothing."""
    before = completions(sidecar)
    lost = client.once(key, f"echo ran >> effects; redis-cli -s {sidecar.path} FD.FORGET '{key}'")
    assert lost.returncode != 0
    assert re.search("The claim is not, or no longer|CLAIMLOST", lost.stderr + lost.stdout)
    assert completions(sidecar) == before + 1
    assert client.effects == 1


class Refusing(BaseHTTPRequestHandler):
    """Grants each claim. Refuses its first `complete` with the status that is its key."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append(self.path.rpartition("/")[2])  # type: ignore[attr-defined]
        refused = self.server.asked == ["claims", "complete"]  # type: ignore[attr-defined]
        status = int(asked["key"]) if refused else 200
        said = {"outcome": "acquired", "owner": "1", "fence": 1, "title": "refused", "status": status}
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(said).encode())

    def log_message(self, *_: Any) -> None: ...


@pytest.mark.parametrize("language", [each for each in CHOSEN if each != "java"])
@pytest.mark.parametrize(
    ("status", "then"),
    [(408, "complete"), (429, "complete"), (500, "complete"), (409, "fail"), (413, "fail")],
)
def test_complete_is_repeated_if_that_can_help(
    clients: dict[str, Client], tmp_path: Path, language: str, status: int, then: str
) -> None:
    """After 408, a request that came too late, a failure stood for a day in place of the result."""
    with UnixStreamServer(str(tmp_path / "s"), Refusing) as server:
        server.asked = []  # type: ignore[attr-defined]
        Thread(target=server.serve_forever).start()
        clients[language].connect(tmp_path / "s")
        try:
            clients[language].once(str(status))
        finally:
            server.shutdown()
        assert server.asked == ["claims", "complete", then]  # type: ignore[attr-defined]


def test_a_failure_for_good_is_an_error(client: Client, key: str, sidecar: Sidecar) -> None:
    with sidecar.client() as other:
        owner = other.execute_command("FD.CLAIM", key)[1]
        other.execute_command("FD.FAIL", key, owner, '"card refused"')
    failed = client.once(key)
    assert failed.returncode != 0
    assert "not run: failed" in failed.stderr + failed.stdout
    assert client.effects == 0


def test_every_language_reads_the_results_of_the_others(clients: dict[str, Client], sidecar: Sidecar) -> None:
    for first in clients:
        clients[first].connect(sidecar.path)
        for client in clients.values():
            client.connect(sidecar.path)
            assert client.result(f"by {first}") == RESULT


def test_the_page_links_to_all_five_clients() -> None:
    page = (CLIENTS.parents[1] / "docs" / "languages.md").read_text()
    assert all(f"(../examples/clients/{each.client})" in page for each in LANGUAGES.values())
    assert sorted(path.name for path in CLIENTS.iterdir()) == sorted(
        each.client for each in LANGUAGES.values()
    )
