"""Programs to read, to run and to copy. Each says in its first lines how to run it, and uses public names alone."""
