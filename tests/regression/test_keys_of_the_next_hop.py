"""The key of a request within claimed work is the same at every attempt, and another one for each address.

Where the work itself imported the client, the first one of a process got a random key, and the attempt after a crash
another one. Two addresses that begin with the same 900 characters shared a key, so that the second request was
answered with the first one's response.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from fastdedup.downstream import ClaimedWork, downstream_key

PROGRAM = """
import asyncio
import httpx
from fastdedup import Dedup
{early}

async def main():
    async with Dedup("memory://", namespace="shop") as dedup, dedup.claim("order:42"):
        from fastdedup.client.httpx import AsyncIdempotentTransport
        told = lambda request: httpx.Response(200, text=request.headers["Idempotency-Key"])
        transport = AsyncIdempotentTransport(httpx.MockTransport(told))
        async with httpx.AsyncClient(transport=transport) as client:
            print((await client.post("https://bank.test/charges")).text)

asyncio.run(main())
"""


def test_it_does_not_depend_on_when_the_client_is_imported() -> None:
    keys = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM.format(early=early)], capture_output=True, text=True, check=True
        ).stdout
        for early in ("", "import fastdedup.client.httpx")
    ]
    assert keys[0] == keys[1] != ""


@pytest.mark.parametrize("length", [900, 901, 5000])
def test_long_addresses_have_keys_of_their_own(length: int) -> None:
    work, again = ClaimedWork(b"shop:=order:42"), ClaimedWork(b"shop:=order:42")
    urls = ["https://bank.test/" + "x" * length + end for end in ("/ann", "/bob")]
    keys = [work.key_for("POST", url) for url in urls]
    assert len({*keys}) == 2
    assert [again.key_for("POST", url) for url in urls] == keys


def test_other_addresses_keep_their_keys() -> None:
    """They are the same in a process of an older version, which may have begun the work."""
    work = ClaimedWork(b"shop:=order:42")
    key = work.key_for("post", "https://user:password@bank.test/charges?reference=7")
    assert key == downstream_key(b"shop:=order:42", "POST https://bank.test/charges 1")
