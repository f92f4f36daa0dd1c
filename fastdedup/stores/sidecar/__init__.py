"""The sidecar store: asks a sidecar on this host, over its Unix socket. `wire.py` describes what both send."""

from .store import SidecarStore

__all__ = ["SidecarStore"]
