"""All I/O on stored data: a store of immutable objects, and a log of versions per key.

`protocols` defines what a store promises. `url` opens the stores of a lake and wraps them in layers. This
package knows bytes and names, and nothing of updates.
"""
