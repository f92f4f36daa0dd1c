"""Metrics and health over TCP: for those who cannot open the socket, and nothing else."""

from __future__ import annotations

import json
import logging
import platform
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from fastdedup import __version__
from fastdedup.sidecar.service.addresses import split_address
from fastdedup.sidecar.service.metrics_port import _shown

from .running import DEADLINE, Sidecar, figure


@pytest.fixture(scope="module")
def sidecar() -> Iterator[Sidecar]:
    with Sidecar("--metrics-address", "127.0.0.1:0", "--log-format", "json") as sidecar:
        yield sidecar


@pytest.fixture(scope="module")
def address(sidecar: Sidecar) -> str:
    """The address with the port that the system chose, as the log tells it."""
    lines = map(json.loads, sidecar.log.splitlines())
    return next(str(line["metrics"]) for line in lines if line["event"] == "started")


@pytest.fixture(scope="module")
def http(address: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{address}", timeout=DEADLINE) as http:
        yield http


def test_the_port_shows_what_the_socket_shows(sidecar: Sidecar, http: httpx.Client) -> None:
    with sidecar.client() as redis:
        redis.execute_command("FD.CLAIM", "secret-key")
    text = http.get("/metrics").text
    assert figure(text, "fastdedup_operations_total", verb="claim", outcome="acquired") == 1
    assert "secret-key" not in text
    assert http.get("/healthz").json()["status"] == "ok"
    assert http.get("/readyz").json()["ready"] is True


def test_the_build_is_a_figure(http: httpx.Client) -> None:
    labels = {"version": __version__, "python": platform.python_version()}
    assert figure(http.get("/metrics").text, "fastdedup_build_info", **labels) == 1


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/claims"),
        ("POST", "/v1/batch"),
        ("DELETE", "/v1/records?key=k"),
        ("GET", "/v1/records?key=k"),
        ("GET", "/v1/gate?principal=everyone"),
        ("POST", "/v1/gate/orders"),
        ("GET", "/openapi.json"),
        ("POST", "/metrics"),
    ],
)
def test_the_port_answers_nothing_else(http: httpx.Client, method: str, path: str) -> None:
    answer = http.request(method, path, json={"key": "k"}, headers={"Idempotency-Key": "k"})
    assert answer.status_code == (405 if path == "/metrics" else 404)


def test_the_port_does_not_speak_the_redis_protocol(address: str) -> None:
    host, port = split_address(address)
    with socket.create_connection((host, port), DEADLINE) as connection:
        connection.sendall(b"*1\r\n$4\r\nPING\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 400 ")


def test_silent_connections_do_not_lock_the_port(address: str) -> None:
    with ExitStack() as stack:
        for _ in range(80):
            stack.enter_context(socket.create_connection(split_address(address), DEADLINE))
        assert httpx.get(f"http://{address}/healthz", timeout=DEADLINE).status_code == 200


def test_a_port_that_is_taken_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        sidecar = Sidecar("--metrics-address", address).start()
        assert sidecar.process is not None
        assert sidecar.process.wait(DEADLINE) == 1
    assert f"metrics_address: cannot listen at {address}: " in sidecar.log
    assert "Traceback" not in sidecar.log
    sidecar.__exit__()


def test_a_port_that_is_open_to_the_network_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whatever other tests of this process have set up for logs.
    log = logging.getLogger("fastdedup.sidecar")
    monkeypatch.setattr(log, "disabled", False)
    monkeypatch.setattr(log, "propagate", False)
    monkeypatch.setattr(log, "handlers", [caplog.handler])
    caplog.set_level(logging.WARNING, logger=log.name)
    assert (_shown("127.0.0.1", 1), _shown("::1", 1)) == ("127.0.0.1:1", "[::1]:1")
    assert not caplog.messages
    assert _shown("0.0.0.0", 1) == "0.0.0.0:1"
    assert caplog.messages == ["metrics are open to the network, without a password"]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("127.0.0.1:9464", ("127.0.0.1", 9464)),
        ("localhost:1", ("127.0.0.1", 1)),
        ("[::1]:9464", ("::1", 9464)),
        ("0.0.0.0:9464", ("0.0.0.0", 9464)),
    ],
)
def test_an_address_is_an_ip_address_and_a_port(written: str, read: tuple[str, int]) -> None:
    assert split_address(written) == read


@pytest.mark.parametrize(
    "written",
    ["", "9464", ":9464", "::1:9464", "[127.0.0.1]:1", "example.org:1", "1.2.3.4:", "1.2.3.4:65536", "[]:1"],
)
def test_another_text_is_no_address(written: str) -> None:
    with pytest.raises(ValueError, match=r"127\.0\.0\.1:9464"):
        split_address(written)
