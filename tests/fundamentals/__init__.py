"""The tutorial in tests: one idea a test. Read the files in the order of their numbers.

Nothing is faked: the tests run on `memory://`, the store inside the process, and on a redis-server of their own.
"""
