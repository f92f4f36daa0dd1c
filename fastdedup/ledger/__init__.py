"""The ledger: which ids were seen in the last days, beside the path of a claim."""
