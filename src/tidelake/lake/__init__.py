"""A lake: named collections in one place.

Owns names and the friendly arguments of the public API; everything below is `tidelake.shard`. The subfolders,
from the bottom: `arguments` (what users hand in), `catalog` (names and settings), `groups` (transactions of
several collections), `admin` (checks, copies, history of all) and `api` (the methods that users call).
"""
