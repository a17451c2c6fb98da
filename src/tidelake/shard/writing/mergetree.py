"""Which runs a batch builder merges while it builds.

Owns the policy alone: sizes in, a range of neighbours out. Neighbours of similar size are merged `fan_in`
at a time, so that runs form levels, each `fan_in` times as large as the one below, and a byte is
rewritten once a level. At the end as few bytes as it takes are merged until there are few enough runs.
"""

Range = tuple[int, int]


def similar_neighbours(sizes: list[int], fan_in: int) -> Range | None:
    """The last `fan_in` neighbours none of which is half as large again as their average, if there are any.

    Args:
        sizes: of the runs, in their order.
        fan_in: how many are merged.

    Returns:
        A half-open range of positions, or None.
    """
    for start in range(len(sizes) - fan_in, -1, -1):
        group = sizes[start : start + fan_in]
        if 2 * fan_in * max(group) <= 3 * sum(group):
            return start, start + fan_in
    return None


def smallest_neighbours(sizes: list[int], count: int) -> Range:
    """The `count` neighbours that are together the smallest.

    Args:
        sizes: of the runs, in their order; at least `count`.
        count: how many are merged.

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
        sizes: of the runs, in their order.
        runs_max: as many may be left in the end.
        fan_in: most runs of a merge.
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
    """How many runs too many there may be while building: a few levels of the tree."""
    return 4 * fan_in
