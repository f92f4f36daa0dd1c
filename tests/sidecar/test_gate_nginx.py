"""The gate behind a real nginx, with the configuration that `fastdedup deploy nginx` prints."""

from __future__ import annotations

import json
import os
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx
import pytest

from fastdedup.sidecar.client import UnixConnection
from fastdedup.sidecar.service.deploy import printed

from ..killable import until
from ..servers import DEADLINE, RedisServer
from .running import Sidecar

ROOT = Path(__file__).parents[2]
TOLD = ("Outcome", "Key", "Namespace", "Owner", "Fence")


class Shop(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """An application behind nginx: it settles its claims at the sidecar, unless a request says not to."""

    daemon_threads = True

    def __init__(self, path: Path, sidecar: Path) -> None:
        super().__init__(str(path), Order)
        self.sidecar = sidecar
        self.seen: list[dict[str, str]] = []


class Order(BaseHTTPRequestHandler):
    server: Shop

    def do_POST(self) -> None:
        told = {name: self.headers.get(f"FastDedup-{name}", "") for name in TOLD}
        self.server.seen.append(told)
        body = json.dumps({"order": len(self.server.seen), "for": "Ann Zoë"}).encode()
        self.rfile.read(int(self.headers["content-length"]))
        if told["Owner"] and not self.headers.get("X-Leave"):
            assert self.settle(told, json.loads(body)) == 200
        self.send_response(201)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def settle(self, told: dict[str, str], result: Any) -> int:
        facts = {name.lower(): told[name] for name in ("Key", "Namespace", "Owner")}
        facts |= {"fence": int(told["Fence"]), "result": result}  # type: ignore[dict-item]
        connection = UnixConnection(self.server.sidecar)
        try:
            connection.request(
                "POST", "/v1/claims/complete", json.dumps(facts), {"content-type": "application/json"}
            )
            return connection.getresponse().status
        finally:
            connection.close()

    def address_string(self) -> str:
        return "nginx"

    def log_message(self, *_: Any) -> None:
        pass


class Nginx:
    """nginx as this user, in the foreground, on a Unix socket in a folder; `with` starts and ends it."""

    def __init__(self, folder: Path, servers: str) -> None:
        self.socket = folder / "nginx.sock"
        temporary = "".join(
            f"{kind}_temp_path {folder}/{kind};"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        self.file = folder / "nginx.conf"
        self.file.write_text(
            f"daemon off; master_process off; pid {folder}/pid; error_log stderr warn;\n"
            f"events {{}} http {{ access_log off; {temporary}\n{servers}\n}}"
        )
        self.log = folder / "nginx.log"

    def __enter__(self) -> Nginx:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [binary(), "-p", str(self.file.parent), "-e", "stderr", "-c", str(self.file)], stderr=log
            )
        until(lambda: self.process.poll() is not None or self.socket.exists(), "nginx listens")
        assert self.process.poll() is None, self.log.read_text()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(DEADLINE)


def binary() -> str:
    return os.environ.get("NGINX") or subprocess.check_output([ROOT / ".ci" / "nginx.sh"], text=True).strip()


class House:
    """nginx, the application behind it, the sidecar and its Redis."""

    def __init__(self, redis: RedisServer, sidecar: Sidecar, shop: Shop, http: httpx.Client) -> None:
        self.redis, self.sidecar, self.shop, self.http = redis, sidecar, shop, http

    def order(self, key: str | None, caller: str | None = "ann", **headers: str) -> httpx.Response:
        given = {"Idempotency-Key": key, "X-Api-Key": caller} | headers
        return self.http.post(
            "/orders", content=b"{}", headers={name: value for name, value in given.items() if value}
        )


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("nginx")
    redis = RedisServer().start()
    options = ("--url", redis.url, "--timeout", "0.5", "--ttl", "60")
    with Sidecar(*options) as sidecar, Shop(folder / "shop.sock", sidecar.path) as shop:
        threading.Thread(target=shop.serve_forever, args=(0.01,), daemon=True).start()
        text = printed("nginx").replace("/run/fastdedup/fastdedup.sock", str(sidecar.path))
        text = text.replace("/run/shop/shop.sock", str(folder / "shop.sock"))
        with Nginx(folder, text.replace("listen 80", f"listen unix:{folder}/nginx.sock")) as nginx:
            transport = httpx.HTTPTransport(uds=str(nginx.socket))
            with httpx.Client(transport=transport, base_url="http://shop", timeout=DEADLINE) as http:
                yield House(redis, sidecar, shop, http)
        shop.shutdown()
    redis.stop()


def test_a_fresh_request_passes_with_its_claim(house: House) -> None:
    answer = house.order("fresh")
    assert answer.status_code == 201
    told = house.shop.seen[-1]
    assert (told["Outcome"], told["Namespace"]) == ("acquired", "fastdedup")
    assert told["Owner"]
    assert int(told["Fence"]) > 0


def test_a_settled_request_is_answered_with_its_result(house: House) -> None:
    first = house.order("settled").json()
    before = len(house.shop.seen)
    again = house.order("settled")
    assert (again.status_code, again.json()) == (200, first)
    assert again.headers["idempotency-replayed"] == "true"
    assert len(house.shop.seen) == before


def test_a_duplicate_is_a_conflict_while_the_first_runs(house: House) -> None:
    assert house.order("running", **{"X-Leave": "yes"}).status_code == 201
    again = house.order("running")
    assert (again.status_code, again.json()) == (409, {"outcome": "in_progress"})
    assert 1 <= int(again.headers["retry-after"]) <= 30


def test_of_a_crowd_one_request_passes(house: House) -> None:
    before = len(house.shop.seen)
    with ThreadPoolExecutor(8) as crowd:
        statuses = list(crowd.map(lambda _: house.order("crowd").status_code, range(16)))
    assert len(house.shop.seen) == before + 1
    assert statuses.count(201) == 1
    assert set(statuses) <= {200, 201, 409}


def test_each_caller_has_keys_of_its_own(house: House) -> None:
    ann, bob = house.order("shared", "ann"), house.order("shared", "bob")
    assert (ann.status_code, bob.status_code) == (201, 201)
    assert house.order("shared", "bob").json() == bob.json() != ann.json()


def test_a_key_for_another_address_is_refused(house: House) -> None:
    house.order("moved")
    before = len(house.shop.seen)
    given = {"Idempotency-Key": "moved", "X-Api-Key": "ann"}
    assert house.http.post("/orders?for=bob", content=b"{}", headers=given).status_code == 422
    assert len(house.shop.seen) == before


@pytest.mark.parametrize(("key", "caller"), [("nobody's", None), ('"open', "ann"), ("x" * 256, "ann")])
def test_a_key_that_is_nobodys_or_malformed_is_refused(house: House, key: str, caller: str | None) -> None:
    before = len(house.shop.seen)
    assert house.order(key, caller).status_code == 400
    assert len(house.shop.seen) == before


def test_a_request_without_a_key_passes_without_a_forged_claim(house: House) -> None:
    assert house.order(None, **{"FastDedup-Owner": "me", "FastDedup-Key": "k"}).status_code == 201
    assert house.shop.seen[-1] == dict.fromkeys(TOLD, "") | {"Outcome": "no-key"}


def test_nothing_passes_while_redis_is_down(house: House) -> None:
    before = len(house.shop.seen)
    with house.redis.frozen():
        answers = [house.order(f"down {number}") for number in range(4)]
        answers += [house.order("down") for _ in range(2)]
    assert {answer.status_code for answer in answers[4:]} == {503}
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in answers[4:])
    assert len(house.shop.seen) == before


def test_nothing_passes_while_the_sidecar_is_down(house: House) -> None:
    before = len(house.shop.seen)
    house.sidecar.end()
    assert house.order("gone").status_code == 503
    assert len(house.shop.seen) == before
    house.sidecar.start()
    assert house.order("back").status_code == 201
