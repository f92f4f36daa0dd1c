"""Fault: a client that closed its sending side after its request got no answer over HTTP, as it does over RESP."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from ..sidecar.conftest import Running, serve, sidecar

__all__ = ["serve", "sidecar"]

LOOK = b"GET /healthz HTTP/1.1\r\nhost: s\r\n\r\n"
CLAIM = b"POST /v1/claims HTTP/1.1\r\nhost: s\r\ncontent-length: %d\r\n\r\n%b"


@pytest.mark.parametrize(("sent", "answers"), [(LOOK, 1), (3 * LOOK, 3), (CLAIM % (11, b'{"key":"a"}'), 1)])
def test_all_that_it_asked_is_answered(serve: Callable[..., Running], sent: bytes, answers: int) -> None:
    with serve().raw() as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        assert client.makefile("rb").read().count(b"HTTP/1.1 20") == answers


def test_half_a_request_ends_the_connection(serve: Callable[..., Running]) -> None:
    with serve().raw() as client:
        client.sendall(LOOK[:20])
        client.shutdown(socket.SHUT_WR)
        assert client.recv(100) == b""
