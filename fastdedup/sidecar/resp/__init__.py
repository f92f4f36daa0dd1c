"""The sidecar's side of the Redis protocol."""
