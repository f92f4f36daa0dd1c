"""The slots of a Redis Cluster: a key's slot, and the layout from the servers' reports. No I/O."""

from __future__ import annotations

import re
from binascii import crc_hqx
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ..url import Address

SLOTS: Final = 16_384
# As a number: Python 3.11 looks for b"{" only after an exception of its own, which costs 0.2 µs.
_BRACE: Final = ord("{")


def slot_of(wire: bytes) -> int:
    """Return a key's slot: that of the text between the first braces, or of the whole key if that text is empty."""
    if _BRACE in wire:
        tag, closed, _ = wire.partition(b"{")[2].partition(b"}")
        if tag and closed:
            wire = tag
    return crc_hqx(wire, 0) & 16_383


@dataclass(frozen=True, slots=True)
class Redirection:
    """A node's answer for a key that it does not hold. `moved`: for good (MOVED), or only this time (ASK)."""

    moved: bool
    slot: int
    address: Address


def read_redirection(error: str, host: str) -> Redirection | None:
    """Read `MOVED 3999 10.0.0.1:7000` or `ASK …`; None for any other error. `host`: of the node that sent it."""
    kind, _, rest = error.partition(" ")
    if kind not in ("MOVED", "ASK"):
        return None
    slot, _, place = rest.partition(" ")
    named, _, port = place.rpartition(":")
    if not (slot.isdecimal() and port.isdecimal() and int(slot) < SLOTS):
        return None
    return Redirection(kind == "MOVED", int(slot), (host_or(named, host), int(port)))


@dataclass(slots=True)
class Layout:
    """The nodes and their slots, from one node's report."""

    ranges: list[tuple[int, int, Address]] = field(default_factory=list)
    """First slot, last slot, primary."""
    replicas: set[Address] = field(default_factory=set)
    epoch: int = 0
    """The cluster's epoch that the node knows: higher is newer. 0 if the login may not ask for it."""
    ok: bool = True
    """False if the node says that the cluster is down: it may be cut off from most of the other nodes."""
    ids: set[bytes] = field(default_factory=set)
    """Redis's own names of the primaries. Every node gives the same names."""


def read_layout(slots: Sequence[Any], info: Any, host: str) -> Layout:
    """Read the answers to CLUSTER SLOTS and CLUSTER INFO. `host`: of the node that was asked."""
    epoch = re.search(rb"cluster_current_epoch:(\d+)", info) if isinstance(info, bytes) else None
    layout = Layout(epoch=int(epoch[1]) if epoch else 0, ok=is_ok(info))
    for first, last, primary, *replicas in slots:
        layout.ranges.append((first, last, _address(primary, host)))
        layout.ids.update(primary[2:3])
        layout.replicas.update(_address(replica, host) for replica in replicas)
    return layout


def is_ok(info: Any) -> bool:
    """True unless the answer to CLUSTER INFO says that the cluster is down."""
    return not (isinstance(info, bytes) and b"cluster_state:fail" in info)


def _address(node: Sequence[Any], host: str) -> Address:
    named = node[0].decode() if isinstance(node[0], bytes) else ""
    return host_or(named, host), int(node[1])


def host_or(named: str, host: str) -> str:
    """Return the host that a node announces. If it announces none, return the host of the node that was asked."""
    return named if named not in ("", "?") else host
