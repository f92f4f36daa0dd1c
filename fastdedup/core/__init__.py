"""The core below every public API: a namespace over one connection, claims and their lives, orphans."""
