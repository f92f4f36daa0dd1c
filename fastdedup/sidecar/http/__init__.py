"""The sidecar's HTTP side."""
