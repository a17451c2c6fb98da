"""Queries, readers, tails and critical holds."""
