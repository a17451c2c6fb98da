"""How rows come into a shard: writes, stages and seals, and who wrote."""
