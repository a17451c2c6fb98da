"""The arrangement: an index of updates in this process, for look-ups and joins now.

Owns batches in memory and on local disk, how they merge, and how they are read. Only `follow` knows
shards; everything else takes updates from its caller, who also says how far times may be folded. The
subfolders, from the bottom: `batch`, `read`, `merge`, `checkpoint`, and `follow`.
"""
