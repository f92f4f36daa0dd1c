"""1,000 clients that sent a request of 1 MB but for its end took 1 GB; 40 that pipelined the shortest ones 565 MB."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from ..sidecar.attacks import connect, peak, post, push
from ..sidecar.fuzz import pack
from ..sidecar.running import Sidecar

CLIENTS = 40
IN_ALL = 4 * 1024 * 1024
WAITS = b'{"key":"held","wait":30000}'
ATTACKS = {
    "a body without its end": post("/v1/batch", b" " * 900_000)[:-1],
    "a command without its end": b"*2\r\n$4\r\nPING\r\n$1000000\r\n" + b"x" * 900_000,
    "requests behind one that waits": post("/v1/claims", WAITS) + b"GET / HTTP/1.1\r\n\r\n" * 10_000,
    "commands behind one that waits": pack(b"FD.CLAIM", b"held", b"WAIT", b"30000") + pack(b"PING") * 13_000,
}


@pytest.fixture
def sidecar() -> Iterator[Sidecar]:
    with Sidecar("--grace", "0.2", config=f"[limits]\nrequests_in_all = {IN_ALL}\n") as sidecar:
        yield sidecar


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
async def test_unfinished_and_waiting_requests_take_bounded_memory(
    attack: bytes, sidecar: Sidecar, wait_until: Callable[..., Any]
) -> None:
    """The clients with the most are hung up on; one with a short request is served beside them."""
    before = peak(sidecar)
    with ExitStack() as stack, sidecar.http() as bystander, connect(sidecar.path) as holder:
        holder.sendall(pack(b"FD.CLAIM", b"held"))
        assert holder.recv(100).startswith(b"*7\r\n$8\r\nacquired")
        for number in range(CLIENTS):
            raw = stack.enter_context(connect(sidecar.path))
            push(raw, attack)
            assert bystander.post("/v1/claims", json={"key": str(number)}).status_code == 201
        await wait_until(lambda: "whose requests take" in sidecar.log, description="some are hung up on")
        assert peak(sidecar) - before < IN_ALL // 2**20 + 20
