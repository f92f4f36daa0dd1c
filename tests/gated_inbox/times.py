"""Times of these tests, apart, so that the consumer that is killed imports little."""

WEEK = 7 * 86_400.0
LEASE = 0.4
"""Seconds, where a test waits for the end of a lease."""
