"""Background work on a shard: merges, drains, garbage collection, and the removal of dropped shards."""
