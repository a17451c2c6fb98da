"""The handle of one shard: the commit loop, its history, its leases."""
