"""The messages of other tools."""
