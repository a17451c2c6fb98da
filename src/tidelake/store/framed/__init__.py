"""A version log in a directory: one append-only file of frames for each key.

Must not know what the entries mean, nor retry anything.
"""
