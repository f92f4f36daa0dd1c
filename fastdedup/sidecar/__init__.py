"""The sidecar: the gate on a Unix socket, for every language on the host. `server.py` is its life."""
