"""The spine of a shard and what stands at its boundaries: values, and rules on them alone."""
