"""Writes updates to a shard: tables, and batches that were built before."""
