"""What every operation of a gate passes: its namespace, its one connection, its policy."""
