"""Batches: the operations that wait, the batches under way, and the breaker that stops them in an outage."""
