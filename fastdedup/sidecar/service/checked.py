"""The types of settings, each with its check. The text of its error is shown beside the place of the mistake."""

from __future__ import annotations

import grp
import os
import pwd
import re
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, GetPydanticSchema

from ...checks import check_seconds, shown
from ...errors import ConfigError
from ...keys import check_namespace
from ...stores import make_store
from ...stores.sidecar.store import LONGEST_PATH
from ..access import VERBS

_MOST_ID = 2**32 - 2
"""The greatest number of a user or a group: the next one tells chown to change nothing."""

# TCP addresses


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


def _no_flag(value: Any) -> Any:
    """Refuse true and false, which Python would take for the numbers 1 and 0."""
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


def _seconds(value: float) -> float:
    try:
        return check_seconds(value, "")
    except ConfigError:
        raise ValueError(f"must be a number of seconds from 0.001 to ten years, got {shown(value)}") from None


def _url(value: str) -> str:
    make_store(value, 1.0)
    return value


def _tcp(value: str) -> str:
    split_address(value)
    return value


def _absolute(value: Path) -> Path:
    if "\0" in str(value):
        raise ValueError("a path has no zero byte")
    try:
        return value.expanduser().absolute()
    except RuntimeError:
        raise ValueError(
            "this host has no home folder for the ~ at its beginning: write the whole path"
        ) from None


def _socket_path(value: Path) -> Path:
    path = _absolute(value)
    size = len(os.fsencode(path))
    if size > LONGEST_PATH:
        raise ValueError(
            f"the path of a socket has at most {LONGEST_PATH} bytes, got {size}: use a shorter folder"
        )
    return path


def _readable(value: Path) -> Path:
    path = _absolute(value)
    if not os.path.isfile(path):  # the path's own method raises an error if a folder may not be read
        raise ValueError("there is no such file")  # its name is not shown: it may be the password itself
    return path


def _user(value: Any) -> Any:
    return _id_of(value, lambda name: pwd.getpwnam(name).pw_uid, "user")


def _group(value: Any) -> Any:
    return _id_of(value, lambda name: grp.getgrnam(name).gr_gid, "group")


def _id_of(value: Any, find: Any, kind: str) -> Any:
    if not isinstance(value, str) or value.isdigit():
        return _no_flag(value)
    try:
        return find(value)
    except KeyError:
        raise ValueError(
            f"this host has no such {kind}: write a name that the host knows, or a number"
        ) from None


def _mode(value: Any) -> int:
    """Return a mode that is written as for chmod. A number would be read as decimal, so it is refused."""
    if isinstance(value, str) and re.fullmatch(r"0?[0-7]{3}", value):
        return int(value, 8)
    raise ValueError('must be text of octal digits such as "0660"')


Seconds = Annotated[float, BeforeValidator(_no_flag), AfterValidator(_seconds)]
Rate = Annotated[float, BeforeValidator(_no_flag), Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, BeforeValidator(_no_flag), Field(ge=1)]
CountOrZero = Annotated[int, BeforeValidator(_no_flag), Field(ge=0)]
Name = Annotated[str, AfterValidator(check_namespace)]
Uid = Annotated[int, BeforeValidator(_user), Field(ge=0, le=_MOST_ID)]
Gid = Annotated[int, BeforeValidator(_group), Field(ge=0, le=_MOST_ID)]
Mode = Annotated[int, BeforeValidator(_mode)]
StoreUrl = Annotated[str, AfterValidator(_url), Field(repr=False)]
TcpAddress = Annotated[str, AfterValidator(_tcp)]
SocketPath = Annotated[Path, AfterValidator(_socket_path)]
ReadableFile = Annotated[Path, AfterValidator(_readable)]
_literal: Any = Literal
SocketVerb = Annotated[str, GetPydanticSchema(lambda _, schema_of: schema_of(_literal[VERBS]))]
"""One of the verbs of the sidecar; a text for mypy, which takes no type that is computed."""
