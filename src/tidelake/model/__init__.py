"""The nouns and their algebra: time, frontier, bounds, schema, batch. Standard library only.

Owns what a collection *is*; must not know how it is stored, read or changed.
"""
