"""Fault: an EPHEMERAL claim that its owner claimed again elsewhere, without it, ended with the first client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ..servers import RedisServer
from ..sidecar.running import Sidecar


@pytest.mark.parametrize("wire", ["resp", "http", "http, waiting"])
async def test_they_do_not_end_with_the_first_connection(
    wire: str, server: RedisServer, wait_until: Callable[..., Any]
) -> None:
    moved, kept = f"moved by {wire}", f"kept by {wire}"
    with Sidecar("--url", server.url) as sidecar, sidecar.client() as ask, sidecar.http() as http:
        with sidecar.client() as first:
            for key in (moved, kept):
                first.execute_command("FD.CLAIM", key, "OWNER", "me", "EPHEMERAL")
            if wire == "resp":
                assert ask.execute_command("FD.CLAIM", moved, "OWNER", "me")[0] == b"acquired"
            else:
                asked = {"key": moved, "owner": "me", "wait": 1000 * ("waiting" in wire)}
                assert http.post("/v1/claims", json=asked).status_code == 201
        await wait_until(
            lambda: ask.execute_command("FD.CLAIM", kept)[0] == b"acquired",
            description="the claim that has not moved is free",
        )
        assert ask.execute_command("FD.CLAIM", moved)[0] == b"in_progress"
