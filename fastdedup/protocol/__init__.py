"""What a store is asked and what it answers, and how keys and owners look on the way."""
