"""What a shard remembers, as one value: its fields, steps, rules and bytes."""
