"""One durable collection: the only place with loops over I/O.

Here stand the handle and what it is made of: machine and history commit and read states, lease and keeper
hold what is read. Above it, from the bottom: `runs` (rows of runs, in and out, in any process), `upkeep`
(what nobody waits for), `writing` and `reading` (what users ask for), `checking` (a whole shard).
"""
