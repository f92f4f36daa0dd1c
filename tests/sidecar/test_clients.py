"""The Redis clients that the world has, by their generic calls: nothing of ours is installed on their side."""

from __future__ import annotations

import asyncio
import fcntl
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import redis
import redis.asyncio

from ..fixtures import fixture_with
from ..sidecars import Sidecar

PACKAGES = ("ioredis@5", "redis@4")
NODE = Path(sys.prefix) / "bin" / "node"
NPM = Path(sys.prefix) / "bin" / "npm"

CONNECT = {
    "ioredis": """
        const Redis = require("ioredis");
        const client = new Redis({ path: process.argv[2] });
        const say = (...parts) => client.call(...parts);
    """,
    "node-redis": """
        const { createClient } = require("redis");
        const client = createClient({ socket: { path: process.argv[2] } });
        client.connect();
        const say = (...parts) => client.sendCommand(parts);
    """,
}
SCRIPT = """
(async () => {
  const key = process.argv[3];
  const claims = await Promise.all(Array.from({ length: 50 }, () => say("FD.CLAIM", key)));
  const first = claims.find((claim) => claim[0] === "acquired");
  await say("FD.COMPLETE", key, first[1], JSON.stringify({ sold: 1 }));
  const replay = await say("FD.CLAIM", key);
  let error = "";
  await say("FD.RELEASE", key, "somebody").catch((fault) => { error = fault.message; });
  const winners = claims.filter((claim) => claim[0] === "acquired").length;
  console.log(JSON.stringify({ winners, replay: [replay[0], replay[5]], error: error.split(" ")[0] }));
  await client.quit();
})();
"""


sidecar = fixture_with(lambda server: Sidecar(server.url), scope="module")


@pytest.fixture(scope="module")
def packages() -> Path:
    """Where npm has put the clients; installed once for this virtual environment."""
    folder = Path(sys.prefix) / "node-clients"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "installed").exists():
            command = [NPM, "install", "--silent", "--no-audit", "--no-fund", "--prefix", folder, *PACKAGES]
            subprocess.run(command, check=True, timeout=110)
            (folder / "installed").touch()
    return folder


@pytest.mark.parametrize("library", CONNECT)
def test_the_clients_of_node(sidecar: Sidecar, packages: Path, library: str) -> None:
    done = subprocess.run(
        [NODE, "-", str(sidecar.path), f"from:{library}"],
        input=CONNECT[library] + SCRIPT,
        cwd=packages,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "winners": 1,
        "replay": ["succeeded", '{"sold":1}'],
        "error": "CLAIMLOST",
    }


def test_redis_cli(sidecar: Sidecar) -> None:
    def say(*parts: str) -> list[str]:
        command = ["redis-cli", "-s", str(sidecar.path), *parts]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=20, check=True
        ).stdout.splitlines()

    outcome, owner, *_ = say("FD.CLAIM", "from:cli")
    assert outcome == "acquired"
    assert say("FD.COMPLETE", "from:cli", owner, "done") == ["OK"]
    assert say("-3", "FD.CLAIM", "from:cli")[0] == "succeeded"
    assert say("PING") == ["PONG"]


async def test_redis_py_asyncio(sidecar: Sidecar) -> None:
    async with redis.asyncio.Redis(unix_socket_path=str(sidecar.path), decode_responses=True) as client:
        claims = await asyncio.gather(
            *(client.execute_command("FD.CLAIM", "from:asyncio") for _ in range(50))
        )
        assert [claim[0] for claim in claims].count("acquired") == 1


def test_redis_benchmark_is_a_load_generator(sidecar: Sidecar) -> None:
    binary = shutil.which("redis-benchmark")
    assert binary, "it comes with redis-server"
    load = ["-s", str(sidecar.path), "-q", "-n", "20000", "-c", "20", "-P", "8", "-r", "1000000"]
    done = subprocess.run(
        [binary, *load, "FD.CLAIM", "load:__rand_int__"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "requests per second" in done.stdout
    with redis.Redis(unix_socket_path=str(sidecar.path), decode_responses=True) as client:
        assert client.execute_command("FD.CLAIM", "after the load")[0] == "acquired"
