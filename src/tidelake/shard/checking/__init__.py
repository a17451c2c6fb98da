"""Checks, repairs, copies and forks a whole shard."""
