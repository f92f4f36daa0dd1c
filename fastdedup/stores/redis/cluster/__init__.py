"""A Redis Cluster: nodes, the slots that they hold, and the way of each key to its node."""
