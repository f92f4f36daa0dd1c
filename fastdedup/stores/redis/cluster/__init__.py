"""A Redis Cluster: its nodes, their slots, and the way of each key to its node."""
