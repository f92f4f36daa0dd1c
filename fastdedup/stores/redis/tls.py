"""TLS: checks host names on every version of redis-py, shares a context, detects a port of the other protocol."""

from __future__ import annotations

import asyncio
import contextlib
import os
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


class SharedContext:
    """What the connections of one URL share: a context takes 50 ms of the event loop, with the system's certificates.

    When a file of certificates changes, the next connection makes a new one.
    """

    def __init__(self) -> None:
        # Mutable: redis-py's maker of the context, which keeps it, and the state of the files that it has read.
        self._kept: Any = None
        self._read: list[int] = []

    def of(self, own: Any, options: dict[str, Any]) -> Any:
        """Return the maker for a connection with these options, whose own one has made no context yet."""
        system = ssl.get_default_verify_paths()
        files = [system.cafile, system.capath, *[options.get(name) for name in _FILES]]
        read = [os.stat(path).st_mtime_ns for path in files if path and os.path.exists(path)]
        if self._kept is None or read != self._read:
            self._kept, self._read = own, read
        return self._kept


_FILES = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")


class SharingConnection(SSLConnection):
    """A TLS connection whose context may be another connection's too."""

    def __init__(self, shared_context: SharedContext, **options: Any) -> None:
        super().__init__(**options)
        self.ssl_context = shared_context.of(self.ssl_context, options)


def share_context(
    options: dict[str, Any], connection_class: type[AbstractConnection]
) -> tuple[dict[str, Any], type[AbstractConnection]]:
    """Return the options and the class of connections that share a context if they speak TLS."""
    if not issubclass(connection_class, SSLConnection):
        return options, connection_class
    return options | {"shared_context": SharedContext()}, SharingConnection


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
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        _, writer = await asyncio.open_connection(*address, ssl=context)
    except ssl.SSLError as error:
        return "ALERT" in reason_of(error)  # this is TLS too: the server may ask for a certificate
    writer.transport.abort()
    return True
