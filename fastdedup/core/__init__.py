"""What every face calls: a namespace over one connection, claims and their lives, what was given up."""
