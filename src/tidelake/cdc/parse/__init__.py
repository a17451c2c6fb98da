"""Lines of one collection, or of many, become rows: the rules on events."""
