"""The sidecar: fastdedup on a Unix socket, for every language on the host. `service/run.py` starts and stops it."""
