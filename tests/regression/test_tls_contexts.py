"""Each TLS connection made a context of its own, which took 50 ms of the event loop: a URL's connections share one.

A claim after a cut took 180 ms on a slow machine, and takes 33 ms with the shared context.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme

from fastdedup import Dedup

from ..servers import RedisServer, free_port


@pytest.fixture(scope="module")
def ca(server: RedisServer) -> Path:
    """A server's authority, whose file lies beside the server's own."""
    authority = trustme.CA()
    pem = server.folder / "server.pem"
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(pem))
    authority.cert_pem.write_to_path(str(server.folder / "ca.pem"))
    return server.folder / "ca.pem"


@pytest.fixture(scope="module")
def url(ca: Path, server: RedisServer) -> str:
    port, pem = free_port(), str(ca.parent / "server.pem")
    with server.client() as raw:
        raw.config_set("tls-auth-clients", "no")
        raw.config_set("tls-ca-cert-file", str(ca))
        raw.config_set("tls-key-file", pem)
        raw.config_set("tls-cert-file", pem)
        raw.config_set("tls-port", port)
    return f"rediss://localhost:{port}/0?ssl_ca_certs={ca}"


@pytest.fixture
def contexts(monkeypatch: pytest.MonkeyPatch) -> list[ssl.SSLContext]:
    """The contexts that are made."""
    made: list[ssl.SSLContext] = []
    make = ssl.create_default_context

    def counted(*args: Any, **options: Any) -> ssl.SSLContext:
        made.append(make(*args, **options))
        return made[-1]

    monkeypatch.setattr(ssl, "create_default_context", counted)
    return made


async def cut_and_claim(server: RedisServer, dedup: Dedup, key: str) -> None:
    """Cut the store's connections, and claim over a new one."""
    with server.client() as raw:
        raw.client_kill_filter(_type="normal", skipme=True)
    async with asyncio.timeout(30):
        assert (await dedup.claim(key)).acquired


async def test_the_connections_of_a_store_share_a_context(
    server: RedisServer, url: str, contexts: list[ssl.SSLContext]
) -> None:
    async with Dedup(url, timeout=20, ttl=60) as dedup:
        assert (await dedup.claim("before a cut")).acquired
        await cut_and_claim(server, dedup, "after it")
    assert len(contexts) == 1


async def test_a_new_file_of_certificates_is_read(
    server: RedisServer, ca: Path, url: str, contexts: list[ssl.SSLContext]
) -> None:
    async with Dedup(url, timeout=20, ttl=60) as dedup:
        assert (await dedup.claim("before")).acquired
        before = len(contexts)
        os.utime(ca, (1, 1))
        await cut_and_claim(server, dedup, "renewed")
    assert (before, len(contexts)) == (1, 2)
