"""The demonstrations: a flash sale, the same through a sidecar, and a shop for a browser."""
