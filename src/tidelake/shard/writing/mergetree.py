"""Chooses which runs a batch builder merges while it builds.

Owns the policy alone: takes sizes, returns a range of neighbours. Neighbours of similar size are merged
`fan_in` at a time, so that runs form levels, each with runs `fan_in` times as large as the one below, and a
byte is rewritten once per level. At the end the smallest neighbours are merged until there are few enough
runs.
"""

Range = tuple[int, int]


def similar_neighbours(sizes: list[int], fan_in: int) -> Range | None:
    """The last `fan_in` neighbours none of which is larger than 1.5 times their average.

    Args:
        sizes: sizes of the runs, in their order.
        fan_in: number of runs to merge.

    Returns:
        A half-open range of positions; None if there are no such neighbours.
    """
    for start in range(len(sizes) - fan_in, -1, -1):
        group = sizes[start : start + fan_in]
        if 2 * fan_in * max(group) <= 3 * sum(group):
            return start, start + fan_in
    return None


def smallest_neighbours(sizes: list[int], count: int) -> Range:
    """The `count` neighbours with the smallest total size.

    Args:
        sizes: sizes of the runs, in their order; at least `count`.
        count: number of runs to merge.

    Returns:
        A half-open range of positions.
    """
    before = [0]
    for size in sizes:
        before.append(before[-1] + size)
    start = min(range(len(sizes) - count + 1), key=lambda s: before[s + count] - before[s])
    return start, start + count


def next_merge(sizes: list[int], runs_max: int, fan_in: int, *, last: bool) -> Range | None:
    """What to merge next, or None if nothing needs to be.

    Args:
        sizes: sizes of the runs, in their order.
        runs_max: the most runs that may be left at the end.
        fan_in: the most runs of one merge.
        last: whether no further run will come.
    """
    excess = len(sizes) - runs_max
    if excess <= 0:
        return None
    if last:
        return smallest_neighbours(sizes, min(fan_in, excess + 1))
    similar = similar_neighbours(sizes, fan_in)
    if similar is None and excess > runs_waiting_max(fan_in):
        return smallest_neighbours(sizes, fan_in)
    return similar


def runs_waiting_max(fan_in: int) -> int:
    """How many runs more than `runs_max` there may be while building: a few levels of the tree."""
    return 4 * fan_in
