"""The sidecar store: the gate of another process on this host, over its Unix socket; `wire.py` is what both speak."""

from .store import SidecarStore

__all__ = ["SidecarStore"]
