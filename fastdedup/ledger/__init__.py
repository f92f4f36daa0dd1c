"""The ledger: the ids that were seen in the last days. It is not on the path of a claim."""
