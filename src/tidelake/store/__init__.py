"""The only I/O: immutable objects by name, and a version log per key.

`protocols` says what a store promises, `url` opens the stores of a lake and puts the layers over them.
Knows bytes and names, nothing of updates.
"""
