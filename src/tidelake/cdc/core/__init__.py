"""What all feeds have in common: events as values, and how they, their tables and partitions are called."""
