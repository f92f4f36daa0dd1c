"""Asking for a key: the call that becomes a claim, and waiting for a present owner."""
