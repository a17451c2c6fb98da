"""What tests of copies share: rows, a lake to copy, and the comparison of a copy with its source."""

import pyarrow as pa

from tables import SCHEMA
from tidelake.config import Config

TINY = Config(
    part_target_bytes=2048, row_group_rows=16, inline_part_bytes=300, merge_budget_s=0, slice_rows=32
)


def whats(report):
    return {one.name: one.what for one in report.collections}


def assert_same(copy, source):
    """Every read that the source answers, what is staged, and where it goes on."""
    start, upper = source.since.elements[0], source.upper.elements[0]
    assert (copy.upper, copy.schema, copy.key) == (source.upper, source.schema, source.key)
    assert copy.writers() == source.writers()
    for time in range(start, upper, 3):
        assert copy.changes(start, time).read_all() == source.changes(start, time).read_all()
    if upper > start:
        late = copy.snapshot(upper + 50, staged=True), source.snapshot(upper + 50, staged=True)
        assert late[0].read_all() == late[1].read_all()


def as_table(found, time=None):
    ids, texts = zip(*found, strict=True)
    times = {} if time is None else {"_time": pa.array([time] * len(ids), pa.int64())}
    return pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array(texts, pa.string()), **times})


def filled(lake):
    for name in "ab":
        lake.create(name, SCHEMA, key=["id"]).append(as_table([(n, "x" * 20) for n in range(120)]))
    lake.write({name: as_table([(1000, "together")]) for name in "ab"})
    lake.collection("a").stage(as_table([(2000, "staged")], 10))
    return lake


def grown(lake, number=3000):
    lake.write({name: as_table([(number + n, "y" * 20) for n in range(60)]) for name in "ab"})
    lake.collection("a").maintain(thorough=True)


def compared(target, lake):
    assert target.list() == lake.list()
    for name in lake.list():
        assert_same(target.collection(name), lake.collection(name))
    left = target.fsck().left
    assert left == (), left
