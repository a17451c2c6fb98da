"""One durable collection. This is the only layer with loops over I/O.

From the bottom: `engine` (the handle, the commit loop, history, leases), `runs` (read and write the rows of
runs, in any process), `upkeep` (background work), `writing` and `reading` (what users call), `care` (checks,
repairs, copies and forks of a whole shard).
"""
