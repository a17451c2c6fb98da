"""Names of collections, the shards that they lead to, and what dropped ones leave."""
