"""Endpoints that commit with their work: row, work and response in one transaction."""
