"""The sidecar as a process: its configuration, socket, log, metrics, start and stop."""
