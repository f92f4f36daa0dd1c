"""Consumers of messages: the rules, and each broker."""
