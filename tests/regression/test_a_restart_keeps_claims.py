"""SIGTERM of the sidecar freed the EPHEMERAL claims of workers that lived: a restart made second owners."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..sidecar.running import Sidecar

WaitUntil = Callable[..., Any]


async def test_a_client_gets_its_claims_back_after_a_restart(redis_url: str, wait_until: WaitUntil) -> None:
    with Sidecar("--url", redis_url, "--ttl", "60") as sidecar:
        with sidecar.client() as worker:
            drawn = worker.execute_command("FD.CLAIM", "drawn", "EPHEMERAL")
            named = worker.execute_command("FD.CLAIM", "named", "OWNER", "worker:1", "EPHEMERAL")
            assert sidecar.end() == 0
        sidecar.start().until_up()
        with sidecar.client() as other:
            assert other.execute_command("FD.CLAIM", "drawn")[0] == b"in_progress"
            assert other.execute_command("FD.CLAIM", "named")[0] == b"in_progress"
            with sidecar.client() as worker:
                for key, former in (("drawn", drawn), ("named", named)):
                    again = worker.execute_command("FD.CLAIM", key, "OWNER", former[1], "EPHEMERAL")
                    assert again[:4] == former[:4]
            await wait_until(
                lambda: other.execute_command("FD.CLAIM", "drawn")[0] == b"acquired",
                description="the end of the new connection frees them",
            )


async def test_an_owner_on_a_new_connection_outlives_its_old_one(
    redis_url: str, wait_until: WaitUntil
) -> None:
    mine = ("FD.CLAIM", "mine", "OWNER", "worker:1", "EPHEMERAL")
    with Sidecar("--url", redis_url, "--ttl", "60") as sidecar, sidecar.client() as new:
        with sidecar.client() as old:
            old.execute_command(*mine)
            old.execute_command("FD.CLAIM", "old", "EPHEMERAL")
            assert new.execute_command(*mine)[0] == b"acquired"
        with sidecar.client() as other:
            await wait_until(
                lambda: other.execute_command("FD.CLAIM", "old")[0] == b"acquired",
                description="the old connection's own claim is free",
            )
            assert other.execute_command("FD.CLAIM", "mine")[0] == b"in_progress"
