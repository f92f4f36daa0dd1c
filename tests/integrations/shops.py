"""`python -m examples.shop` as users start it, in a process of its own, for tests."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import httpx
import psutil

from ..programs import until as until  # for those who import it from here

DEADLINE = 30.0
TOKEN = re.compile(r'name="one_time_token" value="([^"]*)"')
ORDER = re.compile(r'id="order-number">([^<]+)<')


class ShopProcess:
    """A running shop; `with` starts it, waits until it serves, and ends it.

    Args:
        options: of `python -m examples.shop`.
        more: environment variables.
    """

    def __init__(self, *options: str, **more: str) -> None:
        self.options = options
        self._more = more
        self._out = tempfile.NamedTemporaryFile(prefix="fastdedup-shop-", suffix=".log")  # noqa: SIM115
        self.process: subprocess.Popen[bytes]
        self.url = ""

    def start(self) -> Self:
        """Start; return at once."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FASTDEDUP_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "examples.shop", *self.options],
            env=environment | self._more,
            stdout=self._out,
            stderr=subprocess.STDOUT,
        )
        return self

    def __enter__(self) -> Self:
        self.start()
        until(self._is_up, description="the shop opens")
        return self

    def __exit__(self, *_: object) -> None:
        is_up = self.process.poll() is None
        try:
            assert self.end() == 0 or not is_up, self.said
        finally:
            self._out.close()

    def _is_up(self) -> bool:
        assert self.process.poll() is None, self.said
        found = re.search(r"http://\S+", self.said)
        self.url = found[0] if found else ""
        return bool(found)

    @property
    def said(self) -> str:
        """What it printed, on either stream."""
        return Path(self._out.name).read_text()

    def end(self, by: signal.Signals = signal.SIGTERM) -> int:
        """End it; return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(by)
        try:
            return self.process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def family(self) -> list[psutil.Process]:
        """Return its children: redis-server and the workers."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def folder(self) -> Path:
        """Return where it keeps what it must not leave behind."""
        (command,) = (child.cmdline() for child in self.family() if "redis-server" in child.name())
        return Path(command[0].rpartition("unixsocket:")[2]).parent

    @contextmanager
    def visitor(self, name: str | None = None) -> Iterator[httpx.Client]:
        """Yield a client with cookies of its own, signed in if it has a name."""
        # Without `verify` each client reads all certificates, which takes longer than most requests; this is HTTP.
        with httpx.Client(base_url=self.url, timeout=DEADLINE, trust_env=False, verify=False) as client:
            if name is not None:
                assert client.post("/session", data={"name": name}).status_code == 303
            yield client

    def stats(self) -> dict[str, Any]:
        """Return /stats."""
        with self.visitor() as client:
            answer = client.get("/stats")
        assert answer.status_code == 200, answer.text
        return answer.json()  # type: ignore[no-any-return]

    def settled_stats(self) -> dict[str, Any]:
        """Return /stats once every worker has written all of its own, which each does four times a second."""
        before: dict[str, Any] = {}

        def unchanged() -> bool:
            nonlocal before
            last, before = before, self.stats()
            return last == before

        until(unchanged, description="the figures stand still", every=0.5)
        return before

    def restock(self) -> None:
        """Put as many units on the shelf as the sale began with."""
        with self.visitor() as client:
            assert client.post("/restock").status_code == 303

    def sell_out(self) -> None:
        """Sell what is left."""
        with self.visitor() as client:
            while left := client.get("/stats").json()["left"]:
                headers = {"x-buyer": "everybody", "idempotency-key": str(uuid.uuid4())}
                order = client.post("/api/orders", json={"quantity": min(5, left)}, headers=headers)
                assert order.status_code == 201, order.text

    @property
    def orders(self) -> int:
        """Orders in the shop's own ledger."""
        return int(self.stats()["orders"])


def token_in(page: str) -> str:
    """Return the token of the form in a page."""
    found = TOKEN.search(page)
    assert found, "there is no form in the page"
    return found[1]


def order_in(page: str) -> str | None:
    """Return the order number in a page, if it is a receipt."""
    found = ORDER.search(page)
    return found[1] if found else None
