"""The sidecar as a process: its configuration, socket, log, metrics and life."""
