"""One durable collection. This is the only layer with loops over I/O.

The modules of this folder are the handle and its parts: `machine` commits commands, `history` reads and
writes states, `lease` and `renewer` hold what is being read. The subfolders build on them, from the bottom:
`runs` (read and write the rows of runs, in any process), `upkeep` (background work), `writing` and `reading`
(what users call), `checking` and `copying` (of a whole shard).
"""
