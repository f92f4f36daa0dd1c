"""TLS: the host name is checked on every redis-py, and a port that speaks the other protocol is found out."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import Any

import redis.exceptions as driver
from redis.asyncio.connection import AbstractConnection, SSLConnection

from .errors import causes, reason_of


def check_host_name(options: dict[str, Any], connection_class: type[AbstractConnection]) -> None:
    """Have the certificate's host name checked, unless the URL says otherwise: redis-py 5.2 did not by default."""
    if not issubclass(connection_class, SSLConnection):
        return
    if options.get("ssl_cert_reqs") == "none":
        options["ssl_check_hostname"] = False  # no certificate is looked at; both together are an error
    else:
        options.setdefault("ssl_check_hostname", True)


def may_be_other_protocol(error: Exception, *, tls: bool) -> bool:
    """True where a connection may have failed because one side speaks TLS and the other does not.

    Args:
        error: why it failed.
        tls: whether our side speaks it.
    """
    chain = list(causes(error))
    if any(isinstance(each, _TELLING) for each in chain):
        return False
    late = any(isinstance(each, TimeoutError | driver.TimeoutError) for each in chain)
    return tls or not late  # a TLS port refuses plain text at once


_TELLING = (
    driver.ResponseError,
    driver.AuthenticationError,
    ConnectionRefusedError,
    FileNotFoundError,
    socket.gaierror,
    ssl.SSLCertVerificationError,
)
"""Errors of a server that is away, or that was understood."""


async def has_other_protocol(address: tuple[str, int], *, tls: bool, timeout: float) -> bool:
    """Ask a port for the protocol that our side does not speak. It gets no login.

    Args:
        address: the server's host and port.
        tls: whether our side speaks TLS.
        timeout: seconds for the question.
    """
    ask = _answers_plain if tls else _answers_tls
    with contextlib.suppress(OSError, EOFError):
        async with asyncio.timeout(timeout):
            return await ask(address)
    return False


async def _answers_plain(address: tuple[str, int]) -> bool:
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(b"PING\r\n")
        return await reader.read(1) in (b"+", b"-")
    finally:
        writer.transport.abort()


async def _answers_tls(address: tuple[str, int]) -> bool:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        _, writer = await asyncio.open_connection(*address, ssl=context)
    except ssl.SSLError as error:
        return "ALERT" in reason_of(error)  # it wants a certificate of ours, say
    writer.transport.abort()
    return True
