"""The sidecar over the Redis protocol (RESP)."""
