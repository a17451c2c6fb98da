"""Copies of a whole shard: to another lake, and as a fork."""
