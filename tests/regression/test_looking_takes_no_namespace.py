"""Looking into made-up namespaces takes no place from those that claim, and `configured` names are the only ones.

A thousand FD.GET of made-up namespaces used up what clients may name: the next claim in a new one was refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import pytest
import redis

from fastdedup import Dedup
from fastdedup.sidecar.client import UnixConnection
from fastdedup.sidecar.namespaces import Namespaces, RawCodec
from fastdedup.sidecar.service.config import load

from ..servers import RedisServer
from ..sidecar.running import Sidecar

PLACES = 5
LOOKS = ("FD.GET k", "FD.FORGET k", "FD.RELEASE k me", "FD.RENEW k me", "FD.COMPLETE k me done")


def look(path: Path, namespace: str, method: str) -> int:
    connection = UnixConnection(path)
    try:
        connection.request(method, f"/v1/records?key=k&namespace={quote(namespace)}")
        return connection.getresponse().status
    finally:
        connection.close()


def test_looking_at_made_up_namespaces_locks_nobody_out(server: RedisServer) -> None:
    with (
        Sidecar("--url", server.url, config=f"[limits]\nnamespaces = {PLACES}\n") as sidecar,
        sidecar.client() as ask,
    ):
        ask.execute_command("FD.CLAIM", "k", "NS", "kept")
        for number in range(PLACES + 1):
            for each in LOOKS:
                with suppress(redis.ResponseError):  # CLAIMLOST
                    ask.execute_command(*each.split(), "NS", f"made-up-{each[3:6]}-{number}")
            assert look(sidecar.path, f"made-up-{number}", "GET") == 404
            assert look(sidecar.path, f"made-up-{number}", "DELETE") == 200
        for number in range(PLACES - 1):
            assert ask.execute_command("FD.CLAIM", "k", "NS", f"payments-{number}")[0] == b"acquired"
        with pytest.raises(redis.ResponseError, match="clients have named more than 5"):
            ask.execute_command("FD.CLAIM", "k", "NS", "one-too-many")
        figures = sidecar.figures()
        assert "made-up" not in figures
        assert 'namespace="(others)",outcome="absent",verb="get"' in figures
        assert 'namespace="kept"' in figures


async def test_a_record_of_another_namespace_is_found(server: RedisServer) -> None:
    async with (
        Dedup(server.url, namespace="elsewhere") as elsewhere,
        Dedup(server.url, codec=RawCodec()) as root,
    ):
        await elsewhere.claim("k", owner="me")
        looking = Namespaces(root).passing("elsewhere")
        record = await looking.get("k")
        assert record is not None
        assert record.owner == "me"
        assert await looking.forget("k")
        assert await elsewhere.get("k") is None
        assert "elsewhere" not in root._namespace.connection.recent._tables


@pytest.mark.parametrize("words", ["FD.CLAIM k", *LOOKS])
def test_only_configured_namespaces_are_served(sidecar_with_payments: Sidecar, words: str) -> None:
    with sidecar_with_payments.client() as ask:
        with pytest.raises(
            redis.ResponseError, match=r"'made-up' is not configured: add a table \[namespaces"
        ):
            ask.execute_command(*words.split(), "NS", "made-up")
        assert ask.execute_command("FD.GET", "unknown", "NS", "payments") is None
        assert ask.execute_command("FD.GET", "unknown", "NS", "fastdedup") is None


@pytest.fixture(scope="module")
def sidecar_with_payments(server: RedisServer) -> Iterator[Sidecar]:
    with Sidecar("--url", server.url, config="[namespaces.payments]\nttl = 60\n") as sidecar:
        yield sidecar


@pytest.mark.parametrize(
    ("text", "only"),
    [
        ("", False),
        ("[namespaces.sms]\n", True),
        ('allow_namespaces = "any"\n[namespaces.sms]\n', False),
        ('allow_namespaces = "configured"\n', True),
    ],
)
def test_a_table_of_a_namespace_turns_the_switch_on(tmp_path: Path, text: str, only: bool) -> None:
    file = tmp_path / "fastdedup.toml"
    file.write_text(text)
    assert load(file, environment=False).configured_only is only
