"""The migrations of the inbox's table."""
