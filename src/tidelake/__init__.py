"""Tidelake: collections that change over time."""
