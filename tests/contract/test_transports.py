"""redis:// and rediss://, on a server with TLS and a password; unix:// carries all other tests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from urllib.parse import quote

import pytest
import trustme

from fastdedup import ConfigError, Dedup, Outcome, UnavailableError

from ..servers import RedisServer, free_port

PASSWORD = "s3cret/with:odd@signs"


class Secured:
    """A server with a TLS port, a plain port and a password."""

    def __init__(self, server: RedisServer, port: int, tls_port: int) -> None:
        self.server = server
        login = f":{quote(PASSWORD, safe='')}@"
        self.ca = server.folder / "ca.pem"
        self.plain = f"redis://{login}127.0.0.1:{port}/0"
        self.tls = f"rediss://{login}localhost:{tls_port}/0?ssl_ca_certs={self.ca}"
        self.untrusted = f"rediss://{login}localhost:{tls_port}/0"
        self.tls_at_plain = f"rediss://{login}localhost:{port}/0?ssl_ca_certs={self.ca}"
        self.plain_at_tls = f"redis://{login}localhost:{tls_port}/0"


@pytest.fixture(scope="module")
def secured() -> Iterator[Secured]:
    server = RedisServer()
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    authority.cert_pem.write_to_path(str(server.folder / "ca.pem"))
    certificate.private_key_pem.write_to_path(str(server.folder / "key.pem"))
    certificate.cert_chain_pems[0].write_to_path(str(server.folder / "cert.pem"))
    port, tls_port = free_port(), free_port()
    server = RedisServer.at(
        server.folder,
        *("--port", str(port), "--tls-port", str(tls_port), "--requirepass", PASSWORD),
        *(
            "--tls-cert-file",
            str(server.folder / "cert.pem"),
            "--tls-key-file",
            str(server.folder / "key.pem"),
        ),
        *("--tls-ca-cert-file", str(server.folder / "ca.pem"), "--tls-auth-clients", "no"),
    ).start()
    yield Secured(server, port, tls_port)
    server.stop()


@pytest.mark.parametrize("scheme", ["plain", "tls"])
async def test_claims_work_over_tcp_and_tls(secured: Secured, scheme: str) -> None:
    async with Dedup(getattr(secured, scheme), namespace=scheme, timeout=5) as dedup:
        claims = await asyncio.gather(*(dedup.claim(f"key-{n % 50}") for n in range(500)))
        winners = [claim for claim in claims if claim.acquired]
        assert len(winners) == 50
        await asyncio.gather(*(claim.complete("x" * 10_000) for claim in winners))
        again = await asyncio.gather(*(dedup.claim(f"key-{n}") for n in range(50)))
        assert {claim.result for claim in again} == {"x" * 10_000}


async def test_waiting_works_over_tls(secured: Secured) -> None:
    async with Dedup(secured.tls, namespace="wait", timeout=5) as dedup:
        first = await dedup.claim("key")
        waiter = asyncio.create_task(dedup.claim("key", wait=30))
        await asyncio.sleep(0)
        await first.complete("told")
        claim = await waiter
        assert (claim.outcome, claim.result) == (Outcome.SUCCEEDED, "told")


async def test_a_certificate_that_is_not_trusted_is_unavailable(secured: Secured) -> None:
    async with Dedup(secured.untrusted, timeout=1) as dedup:
        with pytest.raises(UnavailableError, match=r"(?i)certificate"):
            await dedup.claim("key")


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("tls_at_plain", "this port does not speak TLS: write redis for rediss"),
        ("plain_at_tls", "this port speaks TLS: write rediss for redis"),
    ],
)
async def test_the_wrong_protocol_for_a_port_is_an_error_at_opening(
    secured: Secured, url: str, advice: str
) -> None:
    """It said that the connection was closed, or that there was no answer in time."""
    dedup = Dedup(getattr(secured, url), timeout=1)
    with pytest.raises(ConfigError, match=advice) as caught:
        await dedup.open()
    assert PASSWORD not in str(caught.value)
    await dedup.aclose()


async def test_the_wrong_protocol_is_an_outage_later(secured: Secured) -> None:
    """Nobody answered at opening; what then comes up speaks TLS: the policy answers, and the reason is told."""
    port = free_port()
    async with Dedup(f"redis://localhost:{port}/0", timeout=1) as dedup:
        with pytest.raises(UnavailableError, match="Connection refused"):
            await dedup.claim("key")
        files = ("cert", "key", "ca-cert")
        pems = [(f"--tls-{name}-file", secured.server.folder / f"{name.split('-')[0]}.pem") for name in files]
        late = RedisServer("--tls-port", str(port), *[str(one) for pem in pems for one in pem]).start()
        try:
            with pytest.raises(UnavailableError, match="this port speaks TLS"):
                await dedup.claim("key")
        finally:
            late.stop()


async def test_a_frozen_server_is_not_taken_for_another_protocol(secured: Secured) -> None:
    """It answers neither way: an outage."""
    secured.server.freeze()
    try:
        for url in (secured.plain, secured.tls):
            async with Dedup(url, timeout=0.2) as dedup:
                with pytest.raises(UnavailableError, match=r"no answer|in time"):
                    await dedup.claim("key")
    finally:
        secured.server.thaw()
