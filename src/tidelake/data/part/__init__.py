"""The bytes of a part, and its description."""
