"""TLS: checks the host name on every version of redis-py, and detects a port that speaks the other protocol."""

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
    """Let redis-py check the certificate's host name, unless the URL says otherwise: 5.2 did not by default."""
    if not issubclass(connection_class, SSLConnection):
        return
    if options.get("ssl_cert_reqs") == "none":
        options["ssl_check_hostname"] = False  # without a certificate check, checking the name is an error
    else:
        options.setdefault("ssl_check_hostname", True)


def may_be_other_protocol(error: Exception, *, tls: bool) -> bool:
    """True if a connection may have failed because one side speaks TLS and the other does not.

    Args:
        error: the error of the connection.
        tls: whether our side speaks TLS.
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
"""Errors that have another cause: the server cannot be reached, or it speaks our protocol."""


async def has_other_protocol(address: tuple[str, int], *, tls: bool, timeout: float) -> bool:
    """Find out whether a port speaks the protocol that our side does not speak. The port gets no login.

    Args:
        address: the server's host and port.
        tls: whether our side speaks TLS.
        timeout: seconds for the attempt.
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
        return "ALERT" in reason_of(error)  # this is TLS too: the server may ask for a certificate
    writer.transport.abort()
    return True
