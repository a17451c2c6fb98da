"""A whole shard looked at: is everything there and as it says; and a copy of it."""
