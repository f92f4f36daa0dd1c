"""TCP addresses in a configuration."""

from __future__ import annotations

from ipaddress import ip_address


def split_address(value: str) -> tuple[str, int]:
    """Return the host and the port of `127.0.0.1:9464` or `[::1]:9464`.

    Raises:
        ValueError: it is not an IP address and a port.
    """
    host, _, port = value.rpartition(":")
    inner = host[1:-1] if host[:1] == "[" and host[-1:] == "]" else host
    try:
        address = ip_address("127.0.0.1" if inner == "localhost" else inner)
        number = int(port) if port.isascii() and port.isdigit() else -1
        if not 0 <= number <= 65535 or (address.version == 6) != (inner != host):
            raise ValueError
    except ValueError:
        raise ValueError(
            'must be an IP address and a port, such as "127.0.0.1:9464" or "[::1]:9464"'
        ) from None
    return str(address), number
