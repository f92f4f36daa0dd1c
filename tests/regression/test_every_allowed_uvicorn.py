"""HTTP works with every uvicorn that pyproject.toml allows, and a fault of our own is never a silent 400.

A private attribute of uvicorn's HTTP protocol was read. Before 0.50 there was none of that name, the exception was
raised in a callback of the parser, and every request was answered 400, health checks too, with nothing in the log.
"""

from __future__ import annotations

import ast
import logging
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import uvicorn

import fastdedup
from fastdedup.sidecar.client import fetch
from fastdedup.sidecar.http.request import HttpRequest

from ..servers import RedisServer
from ..sidecar.conftest import Serve, serve  # noqa: F401 -- a fixture
from ..sidecar.running import Sidecar, client, paste

ROOT = Path(fastdedup.__file__).parents[1]


def bounds() -> tuple[str, tuple[int, ...]]:
    """Return the lowest version that pyproject.toml allows, and the first that it does not allow."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (wanted,) = [each for each in extras["sidecar"] if each.startswith("uvicorn")]
    found = re.fullmatch(r"uvicorn>=([\d.]+),<([\d.]+)", wanted)
    assert found, wanted
    return found[1], tuple(map(int, found[2].split(".")))


@pytest.fixture(scope="module")
def lowest() -> Path:
    """A folder with the lowest uvicorn, unpacked once."""
    version = bounds()[0]
    folder = ROOT / "build" / f"uvicorn-{version}"
    if not folder.exists():
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
        if subprocess.run([*pip, "--target", str(folder), f"uvicorn=={version}"], check=False).returncode:
            pytest.skip(f"uvicorn {version} cannot be had here")
    return folder


def test_http_is_answered_with_the_lowest_uvicorn(lowest: Path) -> None:
    redis = RedisServer().start()
    try:
        with Sidecar("--url", redis.url, PYTHONPATH=os.pathsep.join((str(lowest), str(ROOT)))) as sidecar:
            assert client(sidecar.path).ping()
            assert fetch(sidecar.path, "/readyz")[0] == 200
            ask = f'curl --unix-socket {sidecar.path} http://localhost/v1/claims --json \'{{"key": "k"}}\''
            assert '"outcome":"acquired"' in paste(ask)
            assert '"outcome":"in_progress"' in paste(ask)
            assert sidecar.end() == 0
    finally:
        redis.stop()


def test_the_newest_uvicorn_here_is_within_the_bound() -> None:
    major, minor, *_ = uvicorn.__version__.split(".")
    assert (int(major), int(minor)) < bounds()[1]


def test_no_part_of_uvicorns_protocols_is_imported() -> None:
    for file in (ROOT / "fastdedup" / "sidecar").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert not (node.module or "").startswith("uvicorn"), file
            elif isinstance(node, ast.Import):
                assert all(name.name in ("uvicorn",) for name in node.names if "uvicorn" in name.name), file


def test_own_fault_while_reading_is_a_logged_500(
    serve: Serve,  # noqa: F811
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(self: Any) -> None:
        raise AttributeError("an attribute that this version does not have")

    sidecar = serve(redis_url)
    monkeypatch.setattr(HttpRequest, "parse_url", broken)
    with caplog.at_level(logging.ERROR, "fastdedup"), sidecar.http() as http:
        answer = http.get("/healthz")
    assert (answer.status_code, answer.json()["type"].rpartition("/")[2]) == (500, "internal-error")
    assert "an attribute that this version does not have" in caplog.text
    assert sidecar.namespaces.root.is_open
