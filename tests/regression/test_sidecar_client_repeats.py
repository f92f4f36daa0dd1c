"""A `sidecar://` store whose sidecar refuses a batch, or shuts down for a new one in its place."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import nullcontext
from pathlib import Path

import pytest

from fastdedup import ConfigError, Dedup, UnavailableError
from fastdedup.kernel.codes import Code
from fastdedup.kernel.operations import ReleaseOp
from fastdedup.kernel.verbs import Verb
from fastdedup.stores.sidecar.answers import encode
from fastdedup.stores.sidecar.store import SidecarStore

from ..resp import resp_server

REFUSED = b"-ERR the namespace 'other' is not configured\r\n"
LEAVING = b"-UNAVAILABLE 1000 the sidecar is shutting down; connect again\r\n"
CUT = b""
OK = encode([Code.OK])


class Played:
    """Plays a sidecar: the next reply to FD.RUN for each first key; the last one stays."""

    def __init__(self, **replies: list[bytes]) -> None:
        self.replies = replies
        self.asked: list[list[bytes]] = []

    def __call__(self, command: list[bytes], writer: asyncio.StreamWriter) -> Awaitable[None] | None:
        if command[0] == b"FD.STORE":
            writer.write(b"*2\r\n:2\r\n:1000000\r\n")
        elif command[0] == b"FD.RUN":
            self.asked.append(command)
            both = command[2] == b"2"
            left = self.replies["both" if both else command[3].decode().partition("=")[2]]
            reply = left.pop(0) if len(left) > 1 else left[0]
            writer.write(reply)
            if reply == CUT:
                writer.close()
        return None


def of(key: str) -> ReleaseOp:
    return ReleaseOp(key.encode(), b"me", 1)


@pytest.mark.parametrize("fate", [LEAVING, CUT], ids=["leaving", "cut"])
async def test_an_operation_of_a_refused_batch_is_sent_again(tmp_path: Path, fate: bytes) -> None:
    """Those of a batch that was refused were sent once each: a takeover in that moment was an outage to them."""
    sidecar = Played(both=[REFUSED], a=[fate, OK], b=[REFUSED])
    async with resp_server(tmp_path, sidecar):
        store = SidecarStore(f"sidecar://{tmp_path}/resp.sock", timeout=5)
        mine, other = of("t:=a"), of("other:=b")
        done, refused = await store.execute(Verb.RELEASE, [mine, other])
        await store.aclose()
    assert done is Code.OK
    assert isinstance(refused, ConfigError)
    assert mine.resent, "the first sending may have taken effect"


@pytest.mark.parametrize(("fate", "sent"), [(LEAVING, 2), (CUT, 1)], ids=["leaving", "cut"])
async def test_forget_is_repeated_only_if_it_cannot_have_taken_effect(
    tmp_path: Path, fate: bytes, sent: int
) -> None:
    """A sidecar that leaves says that it has executed nothing, and `forget` failed."""
    sidecar = Played(a=[fate, OK])
    async with (
        resp_server(tmp_path, sidecar),
        Dedup(f"sidecar://{tmp_path}/resp.sock", namespace="t") as dedup,
    ):
        with nullcontext() if fate == LEAVING else pytest.raises(UnavailableError):
            assert await dedup.forget("a") is True
    assert len(sidecar.asked) == sent


async def test_an_error_gives_the_sidecars_own_reason(tmp_path: Path) -> None:
    """Every refusal of a connection was told as a sidecar that shuts down."""
    sidecar = Played(a=[b"-UNAVAILABLE 1000 requests take too much memory\r\n"])
    async with (
        resp_server(tmp_path, sidecar),
        Dedup(f"sidecar://{tmp_path}/resp.sock", namespace="t") as dedup,
    ):
        with pytest.raises(UnavailableError, match=r"resp\.sock: requests take too much memory"):
            await dedup.forget("a")
    assert len(sidecar.asked) == 2
