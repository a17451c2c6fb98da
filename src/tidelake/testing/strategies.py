"""Hypothesis strategies for times, frontiers, rows with awkward values, and diffs.

Needs `hypothesis`, which the product itself does not need.
"""

from collections.abc import Sequence
from decimal import Decimal

import hypothesis.strategies as st

from tidelake.model.frontier import Frontier
from tidelake.model.time import Time, TimeDomain
from tidelake.testing.oracle import Row


def times(domain: TimeDomain, last: int = 6) -> st.SearchStrategy[Time]:
    """Times with small components, so that equal times are frequent."""
    component = st.integers(0, last)
    if domain.unit == "tuple":
        return st.tuples(*[component] * domain.arity)
    return component


def frontiers(domain: TimeDomain, last: int = 6) -> st.SearchStrategy[Frontier]:
    """Frontiers of up to four elements, including the empty frontier, which closes all times."""
    return st.lists(times(domain, last), max_size=4).map(Frontier.of_all)


# Few distinct values of each kind, so that equal rows are frequent and sums are tested. Each list holds the
# values that sort or compare in unusual ways.
TEXTS: Sequence[str | None] = ("", "a", "ab", "b", "ä", "日本", "𝄞", "\x00", "a\x00", None)
FLOATS: Sequence[float | None] = (0.0, -0.0, 1.5, -1.5, float("inf"), float("-inf"), float("nan"), None)
INTS: Sequence[int | None] = (0, 1, -1, 2**63 - 1, -(2**63), None)
DECIMALS: Sequence[Decimal | None] = (Decimal("0.00"), Decimal("-1.25"), Decimal("99.99"), None)
LISTS: Sequence[list[int | None] | None] = ([], [1], [1, 2], [None], [1, None], None)


def rows() -> st.SearchStrategy[Row]:
    """Rows of (text key, int key, double, decimal, list of ints), with nulls and NaN."""
    return st.tuples(
        st.sampled_from(TEXTS),
        st.sampled_from(INTS),
        st.sampled_from(FLOATS),
        st.sampled_from(DECIMALS),
        st.sampled_from(LISTS),
    )


def diffs() -> st.SearchStrategy[int]:
    """Differences other than zero, mostly small."""
    return st.sampled_from((1, 1, 1, -1, -1, 2, -2, 1000, -(2**40)))
