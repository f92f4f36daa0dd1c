"""The operations that a store executes, its replies, and the form of keys and owners on the way."""
