"""What Python does for a tiny append and a tiny upsert: calls, depth of calls, modules.

    python -m bench.calls            (a table)
    python -m bench.calls append     (the functions that an append calls, by how often)

*Calls* are of Python functions, which a profiler counts alike on every machine. *Deep* is how many are open
at once, *modules* are those of the package that take part. All three are medians over `COUNTED` writes of ten
rows into a directory, so that merges, which some of them bring, do not count.
"""

import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import FrameType

import pyarrow as pa

import tidelake
from bench.appends import SCHEMA, inserts

WARM, COUNTED = 30, 11
PACKAGE = str(Path(tidelake.__file__).parent)
Work = Callable[[tidelake.Collection, pa.Table], object]

WRITES: dict[str, Work] = {
    "append": lambda collection, table: collection.append(table),
    "upsert": lambda collection, table: collection.upsert(table.drop_columns(["_diff"])),
}


@dataclass(frozen=True)
class Calls:
    """What one write took; the functions by `file:name`."""

    functions: Counter[str]
    deep: int

    @property
    def count(self) -> int:
        return self.functions.total()

    @property
    def modules(self) -> int:
        files = {name.partition(":")[0] for name in self.functions}
        return sum(file.startswith(PACKAGE) for file in files)


def profiled(work: Callable[[], object]) -> Calls:
    """Count what some work calls in this thread."""
    functions, depth, deep = Counter[str](), 0, 0

    def profile(frame: FrameType, event: str, _given: object) -> None:
        nonlocal depth, deep
        if event == "call":
            functions[f"{frame.f_code.co_filename}:{frame.f_code.co_qualname}"] += 1
            depth += 1
            deep = max(deep, depth)
        elif event == "return":
            depth -= 1

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return Calls(functions, deep)


def writes(kind: str) -> list[Calls]:
    """Carry out writes of a kind in a lake of its own, and count the last ones."""
    with tempfile.TemporaryDirectory() as place, tidelake.open(Path(place) / "lake") as lake:
        collection, tables = lake.create("c", SCHEMA, key=["key"]), inserts(WARM + COUNTED)
        write = WRITES[kind]
        for table in islice(tables, WARM):
            write(collection, table)
        return [_one(write, collection, table) for table in tables]


def _one(write: Work, collection: tidelake.Collection, table: pa.Table) -> Calls:
    return profiled(lambda: write(collection, table))


def median(found: list[Calls]) -> Calls:
    """The one with as many calls as the middle of them."""
    middle = statistics.median_low(one.count for one in found)
    return next(one for one in found if one.count == middle)


def _lines(kind: str) -> Iterator[str]:
    for name, count in median(writes(kind)).functions.most_common():
        yield f"{count:5} {name.removeprefix(PACKAGE + '/')}"


if __name__ == "__main__":
    if sys.argv[1:]:
        print("\n".join(_lines(sys.argv[1])))
    else:
        print(f"{'':8} calls  deep  modules")
        for kind in WRITES:
            one = median(writes(kind))
            print(f"{kind:8} {one.count:5}  {one.deep:4}  {one.modules:7}")
