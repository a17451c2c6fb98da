"""The arrangement: an index of updates in this process, for look-ups and joins now.

Owns batches in memory and on local disk, how they merge, and how they are read. But for `follow`, it
knows neither shards nor lakes: somebody inserts sorted updates and says how far times may be folded.
"""
