"""Store URLs for logs and screens."""

from __future__ import annotations

from urllib.parse import urlsplit


def without_secrets(url: str) -> str:
    """Return a store's URL without user, password and options."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
