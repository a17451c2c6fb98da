"""Columns: Arrow in, Arrow or bytes out.

Owns types, order, consolidation, merging and the encoding of parts; must not know shards, stores, or more of
time than its algebra. Nothing here keeps state between calls or loops over rows in Python.
"""
