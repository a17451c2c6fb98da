"""Arrangements that follow a collection, and what they are good for: old rows, the results of views."""
