"""The work of operators: to show, list and forget records; to settle work that a crash left open."""
