"""The log's line on a forgotten record showed a digest by which nobody found the record that a list had shown."""

from __future__ import annotations

import json

from fastdedup import Dedup

from ..servers import RedisServer
from ..sidecar.running import Sidecar

LONG = "order:" + "7" * 60


async def test_a_forgotten_digest_is_the_listed_one(server: RedisServer) -> None:
    """However the client has named the record, and whoever forgets it; a readable key stays hidden."""
    with (
        Sidecar("--url", server.url, "--allow-stores", "--log-format", "json") as sidecar,
        sidecar.client() as ask,
        sidecar.http() as http,
    ):
        async with Dedup(f"sidecar://{sidecar.path}", timeout=5) as dedup:
            await dedup.claim("short")
            await dedup.claim(LONG)
            token = await dedup.tokens.issue()
            listed = {
                record.kind: record.key for record in (await dedup.records()).records if record.key[0] == "#"
            }
            ask.execute_command("FD.FORGET", LONG)
            http.delete(f"/v1/records?key={LONG}")
            await dedup.forget(LONG)
            digest = listed["token"]
            ask.execute_command("FD.FORGET", token, "KIND", "token")
            ask.execute_command("FD.FORGET", digest[1:].upper(), "KIND", "token", "DIGEST")
            ask.execute_command("FD.FORGET", "short")
        told = [json.loads(line) for line in sidecar.log.splitlines()]
    keys = [line["key"] for line in told if line["event"] == "a key was forgotten"]
    assert keys[:5] == [listed["claim"]] * 3 + [digest] * 2
    assert len(keys[5]) < 20, "a digest with a secret: a short key could be guessed"
    assert "short" not in keys[5]
