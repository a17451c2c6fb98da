"""Checks, repairs, copies and forks of a whole shard."""
