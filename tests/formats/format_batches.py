"""Batches of arrangements as they stand on disk, one of each filter."""

import pyarrow as pa

from tidelake.arrangement.batch.batch import FilterPlan
from tidelake.arrangement.batch.cache import BlockCache
from tidelake.arrangement.batch.filebuilder import FileBuilder
from tidelake.arrangement.batch.layout import Layout
from tidelake.data.types import schema_from_arrow
from tidelake.model.time import TimeDomain

KINDS = ("bitmap", "bloom")


def layout(kind):
    """Of whole numbers, or of text and doubles."""
    key = [("k", pa.int32())] if kind == "bitmap" else [("k", pa.string()), ("f", pa.float64())]
    schema = pa.schema([*key, ("v", pa.string())])
    domain = TimeDomain() if kind == "bitmap" else TimeDomain("tuple", 2)
    return Layout(schema_from_arrow(schema, [name for name, _ in key]), domain)


def rows(kind):
    """Sorted rows with a null and a retraction."""
    n = 300
    values = [None if i == 3 else f"v{i % 9}" * 200 for i in range(n)]
    diffs = [-2 if i == 7 else 1 for i in range(n)]
    if kind == "bitmap":
        columns = [list(range(-100, n - 100)), values, [i % 4 for i in range(n)], diffs]
    else:
        keys = sorted(f"key {i}" for i in range(n - 1))
        columns = [
            [*keys, None],
            [i / 2 for i in range(n)],
            values,
            [1] * n,
            [i % 3 for i in range(n)],
            diffs,
        ]
    of = layout(kind).arrow
    return pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, of, strict=True)], schema=of
    )


def write(kind, folder):
    """The file of these rows."""
    of, held = layout(kind), rows(kind)
    ends = [of.encoded_at(held, at) for at in (0, held.num_rows - 1)]
    builder = FileBuilder(of, str(folder), kind, FilterPlan(held.num_rows, *ends), BlockCache(0))
    builder.add(held)
    batch = builder.finish()
    batch.owner.keep()
    batch.release()
    return folder / f"{kind}.batch"
