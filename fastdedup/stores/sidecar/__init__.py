"""The sidecar store: asks a sidecar on this host, over its Unix socket. `wire.py` describes their protocol."""

from .store import SidecarStore

__all__ = ["SidecarStore"]
