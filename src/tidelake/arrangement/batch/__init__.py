"""Sorted updates in memory and in files, and how they are searched."""
