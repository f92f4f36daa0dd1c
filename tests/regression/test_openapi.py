"""OpenAPI and the lowest versions: what is described is made once, is text, and works with each allowed package."""

from __future__ import annotations

import ast
import logging
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI

import fastdedup
from fastdedup import Dedup
from fastdedup.integrations.fastapi import Claimed, Idempotency, OneTimeToken, everyone
from fastdedup.sidecar.client import fetch
from fastdedup.sidecar.http import openapi
from fastdedup.sidecar.http.request import HttpRequest
from fastdedup.sidecar.limits import Limits

from ..servers import RedisServer
from ..sidecar.conftest import Running, Serve, serve
from ..sidecar.running import Sidecar, client, paste

# Fault: each GET /openapi.json took the event loop for 0.7 s: 20 of a client stopped all others for 12 s.


__all__ = ["serve"]


def test_a_document_is_made_once_for_the_same_limits(
    serve: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Limits] = []
    document = openapi.document

    def counted(routes: object, limits: Limits) -> object:
        made.append(limits)
        return document(routes, limits)  # type: ignore[arg-type] # as it was called

    monkeypatch.setattr(openapi, "document", counted)
    for most in (7, 9):
        sidecar = serve(limits=Limits(batch=most))
        with sidecar.http() as http:
            answers = [http.get("/openapi.json") for _ in range(5)]
            assert http.head("/openapi.json").content == b""
        body = answers[0].json()["paths"]["/v1/batch"]["post"]["requestBody"]["content"]["application/json"]
        assert body["schema"]["maxItems"] == most
        assert len({answer.content for answer in answers}) == 1
        assert answers[0].headers["content-type"] == "application/json"
    assert [limits.batch for limits in made] == [7, 9]


# The headers of a claim and of a token are strings in OpenAPI: no header can be null. They were
# `anyOf[string, null]`, also where the key was required.


@pytest.mark.parametrize(
    ("dependency", "name", "required"),
    [
        (Claimed(principal=everyone), "Idempotency-Key", False),
        (Claimed(principal=everyone, required=True), "Idempotency-Key", True),
        (OneTimeToken(subject=everyone), "X-One-Time-Token", False),
    ],
)
def test_a_header_is_a_string_that_may_be_left_out(dependency: Any, name: str, required: bool) -> None:
    app = FastAPI()
    Idempotency(app, Dedup("memory://"))

    @app.post("/", dependencies=[dependency])
    async def order() -> None: ...

    (parameter,) = app.openapi()["paths"]["/"]["post"]["parameters"]
    assert parameter["name"] == name
    assert parameter["required"] is required
    assert parameter["schema"] == {"type": "string", "minLength": 1, "title": name}


# The sidecar works with the lowest versions that pyproject.toml allows, and a fault of our own is no silent
# 400. A private attribute of uvicorn's HTTP protocol was read. Before 0.50 there was none of that name, the
# exception was raised in a callback of the parser, and every request was answered 400, health checks too,
# with nothing in the log. pydantic 2.7 could not read a table from the environment.


ROOT = Path(fastdedup.__file__).parents[1]


def wanted() -> dict[str, str]:
    """Return the versions that the sidecar's extra allows, by package: `>=0.30,<0.55`."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    parts = [re.fullmatch(r"([\w-]+)(>=.*)", each) for each in extras["sidecar"]]
    return {part[1]: part[2] for part in parts if part}


@pytest.fixture(scope="module")
def lowest() -> Path:
    """A folder with the lowest versions of the extra's packages, unpacked once."""
    packages = [f"{name}=={versions[2:].partition(',')[0]}" for name, versions in wanted().items()]
    folder = ROOT / "build" / "-".join(["lowest", *packages]).replace("==", "-")
    if not folder.exists():
        with TemporaryDirectory() as unpacked:
            options = [
                "--quiet",
                "--disable-pip-version-check",
                "--no-warn-conflicts",
                "--only-binary",
                ":all:",
            ]
            command = [sys.executable, "-m", "pip", "install", *options, "--target", unpacked, *packages]
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            assert not done.returncode, (
                f"pip cannot get {' '.join(packages)} for this Python: let it reach a package registry, or raise the "
                f"lowest versions in pyproject.toml where it has no wheel of one\n{done.stderr}"
            )
            shutil.copytree(unpacked, folder)
    return folder


def test_the_sidecar_serves_with_the_lowest_versions(own_redis: RedisServer, lowest: Path) -> None:
    path = os.pathsep.join((str(lowest), str(ROOT)))
    with Sidecar("--url", own_redis.url, PYTHONPATH=path, FASTDEDUP_NAMESPACES__SMS__LEASE="7") as sidecar:
        assert client(sidecar.path).execute_command("FD.CLAIM", "k", "NS", "sms")[4] == 7000
        assert "fastdedup_operations_total" in sidecar.figures()
        assert fetch(sidecar.path, "/readyz")[0] == 200
        ask = f'curl --unix-socket {sidecar.path} http://localhost/v1/claims --json \'{{"key": "k"}}\''
        assert '"outcome":"acquired"' in paste(ask)
        assert '"outcome":"in_progress"' in paste(ask)
        assert sidecar.end() == 0


def test_the_newest_uvicorn_here_is_within_the_bound() -> None:
    found = re.fullmatch(r">=[\d.]+,<([\d.]+)", wanted()["uvicorn"])
    assert found
    major, minor, *_ = uvicorn.__version__.split(".")
    assert (int(major), int(minor)) < tuple(map(int, found[1].split(".")))


def test_no_part_of_uvicorns_protocols_is_imported() -> None:
    for file in (ROOT / "fastdedup" / "sidecar").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert not (node.module or "").startswith("uvicorn"), file
            elif isinstance(node, ast.Import):
                assert all(name.name in ("uvicorn",) for name in node.names if "uvicorn" in name.name), file


def test_own_fault_while_reading_is_a_logged_500(
    serve: Serve,
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
    assert (answer.status_code, answer.json()["type"].rpartition(":")[2]) == (500, "internal-error")
    assert "an attribute that this version does not have" in caplog.text
    assert sidecar.namespaces.root.is_open
