"""Batches: what waits, what is under way, and whether the store is asked at all."""
