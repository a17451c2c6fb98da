"""A shard's state and its commands: pure transitions over immutable values.

Owns what a shard remembers and which steps are legal. No I/O, no clock, no randomness, no Arrow:
a command is a function of (state, arguments, now_ms), and its outcome is a value.
"""
