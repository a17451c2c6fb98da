"""What grows does not cost more: counts of the same work early and late, never times.

`bench/growth.py` shows the times. `shard/test_costs.py` has what opening and reading a long history costs.
"""

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from bench.growth import Directory, ObjectStore
from tables import SCHEMA, rows
from tidelake.state.core.codec import encode_state

EARLY, LATE, EACH = 200, 2_000, 200
# By the clock of the lake: garbage is two hundred appends old when it goes.
APPEND_S = 3.0


@dataclass(frozen=True)
class Cost:
    """What some work costs: store calls, bytes put into the log, and calls of Python functions."""

    calls: int
    log_bytes: int
    python: int


def cost(place: Directory | ObjectStore, work: Callable[[], object]) -> Cost:
    """Do some work, and count."""
    calls, log_bytes, python = place.calls(), place.log_bytes(), Counter[str]()
    sys.setprofile(lambda _frame, event, _of: python.update([event]))
    try:
        work()
    finally:
        sys.setprofile(None)
    return Cost(place.calls() - calls, place.log_bytes() - log_bytes, python["call"] + python["c_call"])


def replaced(n: int) -> pa.Table:
    """Row n of five in turn, in its next version."""
    before = pa.table({"id": [n % 5], "v": [f"{n - 5}"], "_diff": [-1]})
    return pa.concat_tables([before, pa.table({"id": [n % 5], "v": [f"{n}"], "_diff": [1]})])


@pytest.mark.full
@pytest.mark.parametrize("kind", ["directory", "object store"])
def test_an_append_costs_as_much_after_2000_commits_as_after_200(kind: str, tmp_path: Path) -> None:
    place = Directory(tmp_path) if kind == "directory" else ObjectStore()
    costs: dict[int, Cost] = {}
    opened: dict[int, Cost] = {}
    state_bytes: dict[int, int] = {}
    with place.open() as lake:
        c = lake.create("c", SCHEMA, key=["id"])

        def append(first: int, count: int) -> None:
            for n in range(first, first + count):
                c.append(replaced(n))
                place.clock.ahead_s += APPEND_S
                if n % 20 == 19:
                    c.advance_since(n)

        done = 0
        for point in (EARLY, LATE):
            append(done, point - done)
            costs[point] = cost(place, lambda point=point: append(point, EACH))  # type: ignore[misc]
            done = point + EACH
            with place.open() as fresh:
                opened[point] = cost(place, lambda fresh=fresh: fresh.collection("c"))  # type: ignore[misc]
            state_bytes[point] = len(encode_state(c.state()))
    early, late = costs[EARLY], costs[LATE]
    assert late.calls <= 1.2 * early.calls
    assert late.log_bytes <= 1.1 * early.log_bytes
    # Merges of more levels, and a rollup more or less.
    assert late.python <= 1.2 * early.python
    # The entries since the last rollup, which are at most some 64 KiB.
    assert max(opened[EARLY].calls, opened[LATE].calls) <= 100
    # The rows in it, and the objects that are not old enough to go.
    assert state_bytes[LATE] <= 2 * state_bytes[EARLY]


@pytest.mark.full
def test_one_of_1000_collections_costs_as_much_as_one_of_ten() -> None:
    found: dict[int, dict[str, Cost]] = {}
    place = ObjectStore()
    with place.open() as lake:
        made = 0
        for point in (10, 1_000):
            for number in range(made, point):
                lake.create(f"c{number}", SCHEMA, key=["id"])
            made = point + 1
            create = cost(place, lambda: lake.create(f"c{point}", SCHEMA, key=["id"]))  # noqa: B023
            with place.open() as fresh:
                opened = []
                found[point] = {
                    "create": create,
                    "open the lake": cost(place, lambda: fresh.id_of("c0")),
                    "open": cost(place, lambda: opened.append(fresh.collection("c7"))),  # noqa: B023
                    "append": cost(place, lambda: opened[0].append(rows(1))),  # noqa: B023
                }
    few, many = found[10], found[1_000]
    # The list of names has a run more for ten times the names. It is kept until others change it.
    assert many["open the lake"].calls <= few["open the lake"].calls + 40
    for work in ("create", "open", "append"):
        assert many[work].calls <= few[work].calls + 1
        assert many[work].log_bytes <= 1.1 * few[work].log_bytes
        assert many[work].python <= 1.3 * few[work].python
