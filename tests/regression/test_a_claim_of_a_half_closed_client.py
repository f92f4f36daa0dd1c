"""Fault: a RESP client closed its sending side, then died while its claim waited; it held the key for a whole lease.

Over HTTP such a claim is released as its answer cannot be sent.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fastdedup.sidecar.resp.connection import RespConnection
from fastdedup.stores.redis.scripts import pack

from ..sidecar.conftest import Running, serve, sidecar
from ..sidecar.running import client

__all__ = ["serve", "sidecar"]

LEASE = ("LEASE", "60000")
WAIT = (*LEASE, "WAIT", "60000")
Waits = Callable[..., Any]


@asynccontextmanager
async def half_closed(
    sidecar: Running, wait_until: Waits, *command: str
) -> AsyncIterator[tuple[socket.socket, Callable[[], Any]]]:
    """A client that waits for the key, and sends nothing more; and what frees the key and lets it be answered."""
    wakeups = sidecar.namespaces.root._namespace.connection.wakeups

    def halves() -> int:
        return sum(
            isinstance(each, RespConnection) and each._draining
            for each in list(sidecar.server.server_state.connections)
        )

    with client(Path(sidecar.path)) as owner, sidecar.raw() as raw:
        outcome, name, fence, *_ = owner.execute_command("FD.CLAIM", "k", *LEASE)
        assert outcome == b"acquired"
        raw.sendall(pack(*command))
        await wait_until(lambda: wakeups._count, description="it waits")
        raw.shutdown(socket.SHUT_WR)
        await wait_until(halves, description="the sidecar knows that it sends nothing more")

        async def free() -> None:
            owner.execute_command("FD.RELEASE", "k", name, "FENCE", fence)
            await wait_until(lambda: not wakeups._count, description="it waits no more")

        yield raw, free


@pytest.mark.parametrize("command", [("FD.CLAIM", "k", *WAIT), ("FD.CLAIM", "k", *WAIT, "EPHEMERAL")])
async def test_the_claim_of_a_client_that_died_is_released(
    sidecar: Running, wait_until: Waits, command: tuple[str, ...]
) -> None:
    async with half_closed(sidecar, wait_until, *command) as (raw, free):
        raw.close()
        await free()
    with client(Path(sidecar.path)) as another:
        await wait_until(
            lambda: another.execute_command("FD.CLAIM", "k")[0] == b"acquired", description="it is free"
        )


async def test_the_claim_of_a_client_that_still_reads_is_kept(sidecar: Running, wait_until: Waits) -> None:
    async with half_closed(sidecar, wait_until, "FD.CLAIM", "k", *WAIT) as (raw, free):
        await free()
        assert b"acquired" in raw.recv(1000)
    with client(Path(sidecar.path)) as another:
        assert another.execute_command("FD.CLAIM", "k")[0] == b"in_progress"


async def test_a_named_owner_may_come_back(sidecar: Running, wait_until: Waits) -> None:
    async with half_closed(sidecar, wait_until, "FD.CLAIM", "k", *WAIT, "OWNER", "job-7") as (raw, free):
        raw.close()
        await free()
    with client(Path(sidecar.path)) as another:
        assert another.execute_command("FD.CLAIM", "k")[0] == b"in_progress"
        assert another.execute_command("FD.CLAIM", "k", "OWNER", "job-7")[0] == b"acquired"
