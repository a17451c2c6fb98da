"""Layouts with awkward keys, rows of them, and batches of rows, for the tests of the arrangement."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import hypothesis.strategies as st
import pyarrow as pa

from tidelake.arrangement.batch.batch import FilterPlan, IndexBatch
from tidelake.arrangement.batch.cache import BlockCache
from tidelake.arrangement.batch.filebuilder import FileBuilder
from tidelake.arrangement.batch.layout import Layout
from tidelake.arrangement.batch.memory import MemoryBuilder
from tidelake.data.ingest.updates import normalize
from tidelake.data.kernel.consolidate import consolidate
from tidelake.data.kernel.types import schema_from_arrow
from tidelake.model.time import TimeDomain, parts
from tidelake.testing.oracle import canonical, rank
from tidelake.testing.strategies import FLOATS, INTS, TEXTS

COUNTER = TimeDomain()
PAIR = TimeDomain("tuple", 2)
Update = tuple[tuple[object, ...], object, int]

_SMALL = tuple(range(-3, 12))
KEYS: dict[str, tuple[tuple[pa.DataType, tuple[object, ...]], ...]] = {
    "int": ((pa.int64(), (*INTS, *_SMALL)),),
    "narrow": ((pa.int16(), (*_SMALL, 32767, -32768, None)),),
    "unsigned": ((pa.uint32(), (*range(9), 2**32 - 1, None)),),
    "float": ((pa.float64(), FLOATS),),
    "text": ((pa.string(), TEXTS),),
    "pair": ((pa.string(), TEXTS), (pa.int64(), INTS)),
    "bool": ((pa.bool_(), (True, False, None)),),
}


def layout(kind: str, domain: TimeDomain = COUNTER) -> Layout:
    """A layout with keys of a kind, and two value columns."""
    fields = [pa.field(f"k{i}", type_) for i, (type_, _) in enumerate(KEYS[kind])]
    key = [field.name for field in fields]
    arrow = pa.schema([*fields, pa.field("v", pa.string()), pa.field("x", pa.float64())])
    return Layout(schema_from_arrow(arrow, key), domain)


def keys(kind: str) -> st.SearchStrategy[tuple[object, ...]]:
    return st.tuples(*(st.sampled_from(values) for _, values in KEYS[kind]))


def updates(kind: str, *, last: int = 4, max_size: int = 40) -> st.SearchStrategy[list[Update]]:
    """Updates ((key ..., value, value), time, diff)."""
    row = st.tuples(keys(kind), st.sampled_from(("a", "b", None)), st.sampled_from((0.5, -1.0, None)))
    return st.lists(
        st.tuples(
            row.map(lambda r: (*r[0], r[1], r[2])), st.integers(0, last), st.sampled_from((1, 1, 2, -1, -2))
        ),
        max_size=max_size,
    )


def sorted_rows(held: Iterable[Update], of: Layout) -> pa.RecordBatch:
    """Updates as one batch: canonical, sorted, consolidated."""
    held = list(held)
    columns: dict[str, pa.Array] = {}
    for i, field in enumerate(list(of.arrow)[: of.row_width]):
        columns[field.name] = pa.array([row[i] for row, _, _ in held], field.type)
    for i, name in enumerate(of.domain.columns):
        columns[name] = pa.array([parts(time)[i] for _, time, _ in held], pa.int64())
    columns["_diff"] = pa.array([diff for _, _, diff in held], pa.int64())
    table = normalize(pa.table(columns), of.schema, of.domain)
    found = consolidate(table, of.schema, of.domain).combine_chunks().to_batches()
    return found[0] if found else of.empty


def memory_batch(rows: pa.RecordBatch, of: Layout, id_: str = "m") -> IndexBatch | None:
    builder = MemoryBuilder(of, id_)
    builder.add(rows)
    return builder.finish()


def file_batch(
    rows: pa.RecordBatch, of: Layout, folder: Path, id_: str, cache: BlockCache | None = None
) -> IndexBatch | None:
    """A batch in a file, added in two pieces."""
    plan = FilterPlan(rows.num_rows)
    if rows.num_rows:
        plan = FilterPlan(rows.num_rows, of.encoded_at(rows, 0), of.encoded_at(rows, rows.num_rows - 1))
    builder = FileBuilder(of, str(folder), id_, plan, cache or BlockCache(1 << 20))
    half = rows.num_rows // 2
    builder.add(rows.slice(0, half))
    builder.add(rows.slice(half))
    return builder.finish()


def plain(rows: pa.RecordBatch | pa.Table) -> list[tuple[object, ...]]:
    """The rows as canonical plain values, in order."""
    columns = [column.to_pylist() for column in rows.columns]
    return [tuple(canonical(value) for value in row) for row in zip(*columns, strict=True)]


def ranked(key: tuple[object, ...]) -> tuple[object, ...]:
    """What Python sorts keys, or rows, by."""
    return tuple(rank(canonical(value)) for value in key)


def contents(held: Iterable[Update], as_of: int | None = None) -> Counter[tuple[object, ...]]:
    """Row -> multiplicity of updates at times up to one."""
    counts: Counter[tuple[object, ...]] = Counter()
    for row, time, diff in held:
        if as_of is None or time <= as_of:  # type: ignore[operator]
            counts[tuple(canonical(value) for value in row)] += diff
    return Counter({row: count for row, count in counts.items() if count})
