"""The lines of change feeds, as commits of collections: each micro-batch is in once, or not at all."""
