"""Fault 19: on redis-py 5.2 and 5.3 `rediss://` took the certificate of any host.

Their default does not check the name, so whoever holds any certificate of the same authority could
read the password and answer claims. It is checked here on the lowest redis-py that is allowed, too.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import trustme

from ..programs import ended
from ..servers import RedisServer
from ..topologies import free_ports, until

ROOT = Path(__file__).parents[2]
ASK = """
import asyncio, json, sys
import redis
from fastdedup import Dedup, DedupError

async def ask(url):
    try:
        async with Dedup(url, timeout=6.0, ttl=60.0) as dedup:
            return "acquired" if (await dedup.claim(f"{redis.__version__} {url}")).acquired else "not acquired"
    except DedupError as error:
        return str(error)

async def main():
    return [redis.__version__, *await asyncio.gather(*map(ask, sys.argv[1:]))]

print(json.dumps(asyncio.run(main())))
"""


def lowest() -> str:
    """The lowest redis-py that pyproject.toml allows."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = [re.fullmatch(r"redis>=(\d+\.\d+)", line) for line in project["dependencies"]]
    return next(f"{one[1]}.0" for one in found if one)


@pytest.fixture(params=["lowest", "installed"])
def redis_py(request: pytest.FixtureRequest) -> tuple[str, str]:
    """A version of redis-py, and what stands before the others on the path; kept in pytest's cache."""
    if request.param == "installed":
        return redis.__version__, ""
    assert request.config.cache is not None
    folder = request.config.cache.mkdir("redis-py") / lowest()
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            pip = [
                sys.executable,
                "-m",
                "pip",
                "--disable-pip-version-check",
                "install",
                "--quiet",
            ]
            subprocess.run([*pip, "--target", f"{made}/it", f"redis=={lowest()}"], check=True, timeout=60)
            Path(made, "it").rename(folder)
    return lowest(), str(folder)


class Group:
    """A Cluster of one node, and a sentinel that watches it.

    Both announce 127.0.0.1, and the certificate is for localhost.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fastdedup-tls-"))
        authority = trustme.CA()
        authority.cert_pem.write_to_path(f"{self.folder}/ca.pem")
        certificate = authority.issue_cert("localhost")
        certificate.private_key_and_cert_chain_pem.write_to_path(f"{self.folder}/server.pem")
        self.port, self.watch_port = free_ports(2)
        cluster = ["--tls-cluster", "yes", "--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1"]
        self.server = RedisServer(*self.tls(self.port), *cluster)
        self.sentinel: subprocess.Popen[bytes] | None = None

    def tls(self, port: int) -> list[str]:
        pem = f"{self.folder}/server.pem"
        options = ["--port", "0", "--tls-port", str(port), "--tls-cert-file", pem, "--tls-key-file", pem]
        return [*options, "--tls-ca-cert-file", f"{self.folder}/ca.pem", "--tls-auth-clients", "no"]

    def start(self) -> None:
        self.server.start()
        with self.server.client() as raw:
            raw.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
            until(lambda: raw.execute_command("CLUSTER INFO")["cluster_state"] == "ok", "the cluster is up")
        config = self.folder / "sentinel.conf"
        config.write_text(f"sentinel monitor main 127.0.0.1 {self.port} 1\n")
        binary = shutil.which("redis-server")
        assert binary
        command = [binary, str(config), "--sentinel", *self.tls(self.watch_port), "--tls-replication", "yes"]
        with (self.folder / "log").open("ab") as log:
            self.sentinel = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)
        watcher = redis.Redis(
            port=self.watch_port, ssl=True, ssl_ca_certs=f"{self.folder}/ca.pem", decode_responses=True
        )
        with watcher:
            until(lambda: watcher.execute_command("SENTINEL", "CKQUORUM", "main"), "the sentinel knows it")

    def stop(self) -> None:
        if self.sentinel is not None:
            self.sentinel.kill()
            self.sentinel.wait(20)
        self.server.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def group() -> Iterator[Group]:
    group = Group()
    try:
        group.start()
        yield group
    finally:
        group.stop()


def test_a_certificate_of_another_host_is_refused(group: Group, redis_py: tuple[str, str]) -> None:
    """Of a server, a sentinel, a Cluster's node, and of the addresses that these announce."""
    ca = f"ssl_ca_certs={group.folder}/ca.pem"
    watch = f"rediss+sentinel://localhost:{group.watch_port}/main?{ca}"
    cluster = f"rediss+cluster://localhost:{group.port}?{ca}"
    unchecked = "&ssl_check_hostname=false"
    single = f"rediss://localhost:{group.port}?{ca}"
    expected = {
        cluster + unchecked: "acquired",
        cluster: "for another host.* '127.0.0.1'",
        cluster.replace("localhost", "127.0.0.1"): "for another host.* '127.0.0.1'",
        f"rediss+cluster://127.0.0.1:{group.port}?ssl_cert_reqs=none": "acquired",
        watch.replace("localhost", "127.0.0.1"): "Sentinel at 127.0.0.1.*for another host.* '127.0.0.1'",
        watch: rf"Redis at 127.0.0.1:{group.port}: .*for another host.* '127.0.0.1'",
        # The server is a Cluster's node: that this is known says that the connection was made.
        watch + unchecked: r"use redis\+cluster",
        single: r"use redis\+cluster",
        single + unchecked: r"use redis\+cluster",
        single.replace("localhost", "127.0.0.1"): "for another host.* '127.0.0.1'",
        single.replace("localhost", "127.0.0.1") + unchecked: r"use redis\+cluster",
    }
    version, folder = redis_py
    path = {"PYTHONPATH": os.pathsep.join(filter(None, (folder, str(ROOT))))}
    done = ended("-c", ASK, *expected, environment=os.environ | path, timeout=100)
    assert done.returncode == 0, done.stderr
    used, *answers = json.loads(done.stdout)
    assert used == version
    for (url, wanted), answer in zip(expected.items(), answers, strict=True):
        assert re.search(wanted, answer), f"{url}: {answer}"
