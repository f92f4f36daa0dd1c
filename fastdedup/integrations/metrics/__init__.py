"""The part that `prometheus` and `opentelemetry` share: the figures of gates, and their instruments."""
