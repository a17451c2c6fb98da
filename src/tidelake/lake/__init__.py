"""A lake: named collections in one place.

Owns names and the friendly arguments of the public API; everything below is `tidelake.shard`.
"""
