"""The small tables that most tests write, and what they find of them."""

import pyarrow as pa

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])


def rows(*ids, v="x", **more):
    """Rows to add; `more` are further columns."""
    values = pa.array([v] * len(ids), None if ids else pa.string())
    return pa.table({"id": pa.array(ids, pa.int64()), "v": values, **more})


def at(time, *ids, diff=1, v="x"):
    """Updates at one time."""
    n = len(ids)
    return rows(*ids, v=v, _time=pa.array([time] * n, pa.int64()), _diff=pa.array([diff] * n, pa.int64()))


def contents(collection, as_of=None):
    """Rows with their multiplicity."""
    answer = collection.snapshot(as_of, timeout_s=0).read_all().to_pylist()
    return {(row["id"], row["v"]): row["_diff"] for row in answer}


def ids(collection, as_of=None):
    """id -> multiplicity, as of a time."""
    answer = collection.snapshot(as_of).read_all()
    return dict(zip(answer["id"].to_pylist(), answer["_diff"].to_pylist(), strict=True))
