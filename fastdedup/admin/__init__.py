"""What operators do by hand: a record shown, listed, forgotten; work settled that a crash left open."""
