"""Filters of parts: no key that is there is denied, and few others pass."""

import io

import numpy as np
import pyarrow as pa
import pytest
from data_reference import updates
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelake.data.kernel.encode import encode_key
from tidelake.data.kernel.types import schema_from_arrow, update_schema
from tidelake.data.keys.keyset import KeySet
from tidelake.data.part import part as part_module
from tidelake.data.part import partfilter
from tidelake.data.part.container import read_footer
from tidelake.data.part.part import PartWriter, write_parts
from tidelake.data.part.partfilter import PartFilter, PartFilterBuilder, key_hashes
from tidelake.data.part.scan import read_part
from tidelake.data.part.stats import StatsSettings
from tidelake.model.time import TimeDomain
from tiers import examples

INT = TimeDomain("counter")
STATS = StatsSettings(500, 32)


@pytest.mark.promise(
    "No filter denies a key that its part has, few other keys pass, and a damaged filter is noticed",
    rule="`data/part/partfilter.py`, `data/keys/bloom.py`",
    also=[
        "::test_few_keys_that_are_not_there_pass",
        "::test_a_filter_of_planned_size_denies_no_key_and_few_others_pass",
        "::test_parts_have_the_filter_of_their_keys_wherever_they_end",
        "data/test_part.py::test_every_flipped_byte_and_every_truncation_is_noticed",
    ],
)
@settings(max_examples=examples(60))
@given(updates(columns=2), st.integers(0, 20), st.none() | st.integers(0, 200), st.booleans())
def test_no_key_that_is_there_is_denied(drawn, cut, planned, late):
    schema, _, table = drawn
    if not table.num_rows:
        return
    rows = table.combine_chunks().to_batches()[0].take(pa.array(np.argsort(encode_key(table, schema))))
    builder = PartFilterBuilder()
    for number, piece in enumerate((rows.slice(0, cut), rows.slice(cut))):
        if planned is not None and number == late:
            builder.plan(planned)
        if piece.num_rows:
            builder.add(key_hashes(piece, schema))
    keys = KeySet.of(table, schema)
    found = PartFilter.from_bytes(builder.finish().to_bytes())
    assert found.among(keys, schema) is keys
    for key in keys.keys:
        assert found.among(KeySet(pa.array([key])), schema) is not None


@pytest.mark.parametrize("make", [np.asarray, lambda ids: [f"key {i}" for i in ids]], ids=["int", "text"])
def test_few_keys_that_are_not_there_pass(make):
    there, others = np.arange(0, 40_000, 2), np.arange(1, 40_000, 2)
    tables = [pa.table({"k": make(ids)}) for ids in (there, others)]
    schema = schema_from_arrow(tables[0].schema, ["k"])
    builder = PartFilterBuilder()
    for batch in tables[0].to_batches(max_chunksize=7_000):
        builder.add(key_hashes(batch, schema))
    found = builder.finish()
    assert found.size_bytes <= 20_000 * 1.25 + 8
    passed = found.among(KeySet.of(tables[1], schema), schema)
    assert passed is not None and 0 < len(passed) < 20_000 / 40


def test_a_filter_does_not_depend_on_how_rows_are_cut():
    keys = np.repeat(np.arange(500), 3)
    schema = schema_from_arrow(pa.schema([("k", pa.int64())]), ["k"])
    rows = pa.RecordBatch.from_arrays([pa.array(keys)], ["k"])
    made = []
    for size in (1_500, 500, 4, 1):
        builder = PartFilterBuilder()
        for start in range(0, len(keys), size):
            builder.add(key_hashes(rows.slice(start, size), schema))
        made.append(builder.finish().to_bytes())
    assert len(made[0]) == 8 * -(-500 * 10 // 64) and made == made[:1] * 4


def test_a_filter_of_planned_size_denies_no_key_and_few_others_pass(monkeypatch):
    monkeypatch.setattr(partfilter, "_WAITING", 1_000)
    there, others = np.arange(0, 80_000, 2), np.arange(1, 80_000, 2)
    tables = [pa.table({"k": ids}) for ids in (there, others)]
    schema = schema_from_arrow(tables[0].schema, ["k"])
    held, passed, sizes = {}, {}, {}
    for planned in (40_000, 60_000, 100_000, 400_000, 30_000, 4_000, 0):
        builder = PartFilterBuilder()
        for number, batch in enumerate(tables[0].to_batches(max_chunksize=1_500)):
            if number == 2:
                builder.plan(planned)
            builder.add(key_hashes(batch, schema))
            if number >= 2:
                held[planned] = max(held.get(planned, 0), builder.waiting)
        found = builder.finish()
        sizes[planned] = found.size_bytes
        own = KeySet.of(tables[0], schema)
        assert found.among(own, schema) is own
        passed[planned] = len(found.among(KeySet.of(tables[1], schema), schema)) / 40_000
    assert max(held.values()) < 1_000
    # With a plan that is far too small, one other key in four passes.
    assert all(share < (1 / 40 if planned >= 40_000 else 1 / 3) for planned, share in passed.items())
    assert passed[30_000] < 1 / 15
    assert 50_000 <= sizes[40_000] <= 50_000 + 8 * 64
    # Of ten bits a key, at least eight, and at most twice as many.
    assert all(40_000 <= size < 101_000 for size in sizes.values())


def test_parts_have_the_filter_of_their_keys_wherever_they_end(monkeypatch):
    monkeypatch.setattr(partfilter, "_WAITING", 100)
    monkeypatch.setattr(partfilter, "_UNIT", 2)
    monkeypatch.setattr(part_module, "_PLANNED_GROUPS", 2)
    ids = np.arange(0, 12_000, 2)
    columns = {"k": ids, "v": ids, "_time": np.zeros(6_000, np.int64), "_diff": np.ones(6_000, np.int64)}
    schema = schema_from_arrow(pa.table(columns).select(["k", "v"]).schema, ["k"])
    table = pa.table(columns).cast(update_schema(schema, INT))
    options = {"row_group_rows": 64, "stats": STATS, "filtered": True, "name": lambda: "p"}
    batches = table.to_batches(max_chunksize=100)
    for target in (2_500, 4_000, 5_500, 1_000_000):
        for most in (None, 6_000, 9_000):
            made = write_parts(batches, schema, INT, 0, target_bytes=target, rows_max=most, **options)
            first = 0
            for part, data in made:
                footer = read_footer(io.BytesIO(data), part)
                size = footer.filter_bytes
                assert part.rows * 8 <= size * 8 <= part.rows * 21 + 2 * 64
                found = PartFilter.from_bytes(data[footer.ends[-1] :][:size])
                own = KeySet.of(pa.table({"k": ids[first : first + part.rows]}), schema)
                assert found.among(own, schema) is own
                first += part.rows
                # The last part has all rows that are left.
                if most == 6_000 == first:
                    assert size * 8 <= part.rows * 10 + 2 * 64
            assert first == 6_000


def part_of(rows, *, filtered, group=16):
    ids = np.arange(0, 4 * rows, 4)
    columns = {"k": ids, "v": ids, "_time": np.zeros(rows, np.int64), "_diff": np.ones(rows, np.int64)}
    schema = schema_from_arrow(pa.table(columns).select(["k", "v"]).schema, ["k"])
    writer = PartWriter(schema, INT, 0, row_group_rows=group, stats=STATS, filtered=filtered)
    writer.write(pa.table(columns).cast(update_schema(schema, INT)).to_batches()[0])
    return schema, *writer.finish("p")


def read_of(schema, part, data, ids):
    """The rows of some ids, how many rows were decoded, and how many filters were read."""
    decoded, filters = [], []
    keys = KeySet.of(pa.table({"k": pa.array(ids)}), schema)
    how = {"watch": lambda rows, _: decoded.append(rows), "filtered": filters.append, "probed": True}
    found = list(read_part(io.BytesIO(data), part, schema, INT, batch_rows=100, among=keys, **how))
    return sorted(i for batch in found for i in batch["k"].to_pylist()), sum(decoded), len(filters)


def test_row_groups_are_read_for_keys_that_the_filter_does_not_deny():
    schema, part, data = part_of(1_000, filtered=True)
    absent = list(range(101, 4_000, 400))
    assert read_of(schema, part, data, absent) == ([], 0, 1)
    assert read_of(schema, part, data, [100, *absent[1:]]) == ([100], 16, 1)
    # So many keys in a row group that one of them is there.
    assert read_of(schema, part, data, list(range(1_000)))[2] == 0
    # A filter that is larger than the row group.
    schema, part, data = part_of(2_000, filtered=True)
    assert read_of(schema, part, data, [101]) == ([], 16, 0)


def test_keys_that_were_decoded_in_vain_count_as_rows_if_they_are_all_of_a_part():
    for rows, group, counted in ((9, 100, 9), (9, 9, 9), (9, 8, 0)):
        values = [f"a wide value number {i:>50}" for i in range(rows)]
        ids = pa.array(range(0, 4 * rows, 4))
        columns = {"k": ids, "v": values, "_time": [0] * rows, "_diff": [1] * rows}
        schema = schema_from_arrow(pa.table(columns).select(["k", "v"]).schema, ["k"])
        writer = PartWriter(schema, INT, 0, row_group_rows=group, stats=STATS)
        writer.write(pa.table(columns).cast(update_schema(schema, INT)).to_batches()[0])
        part, data = writer.finish("p")
        assert read_of(schema, part, data, [5]) == ([], counted, 0)
        assert read_of(schema, part, data, [4]) == ([4], min(rows, group), 0)


def test_a_part_without_a_filter_is_read_as_one_with_it():
    for made in (part_of(1_000, filtered=False), part_of(9, filtered=True, group=100)):
        assert read_footer(io.BytesIO(made[2]), made[1]).filter_bytes == 0
        assert read_of(*made, [0, 3, 8])[0] == [0, 8]


@pytest.mark.promise(
    "Few keys are looked for in their columns first; a row group without them is not decoded whole, "
    "and none with them is left out",
    rule="`_having` in `data/part/scan.py`",
    also=["::test_row_groups_without_the_few_keys_that_are_asked_for_are_not_decoded_whole"],
)
@settings(max_examples=examples(40))
@given(
    st.lists(st.integers(0, 400), min_size=1, max_size=300),
    st.lists(st.integers(-5, 405), min_size=1, max_size=9),
)
def test_few_keys_are_found_by_their_columns_alone_wherever_they_are(ids, asked):
    # Several rows of a key may lie in two row groups, and the values are wide: only keys are decoded first.
    ids = sorted(ids)
    columns = {
        "k": ids,
        "v": [f"a wide value number {i:>50}" for i in range(len(ids))],
        "_time": [0] * len(ids),
        "_diff": [1] * len(ids),
    }
    schema = schema_from_arrow(pa.table(columns).select(["k", "v"]).schema, ["k"])
    writer = PartWriter(schema, INT, 0, row_group_rows=8, stats=STATS, filtered=False)
    writer.write(pa.table(columns).cast(update_schema(schema, INT)).to_batches()[0])
    part, data = writer.finish("p")
    found, decoded, _ = read_of(schema, part, data, asked)
    assert found == [i for i in ids if i in asked]
    assert decoded >= len(found)


def test_row_groups_without_the_few_keys_that_are_asked_for_are_not_decoded_whole():
    schema, part, data = wide_part()
    assert read_of(schema, part, data, [100]) == ([100], 16, 0)
    assert read_of(schema, part, data, [101]) == ([], 0, 0)
    # The second and the third row group are read at once, and only the third has a key.
    assert read_of(schema, part, data, [0, 101, 128]) == ([0, 128], 32, 0)
    # With many keys their columns would be decoded twice for nothing.
    assert read_of(schema, part, data, list(range(1, 4_000, 4)))[1] == 1_000


def wide_part():
    """Ids 0, 4, 8 ... with wide values and no filter."""
    ids = np.arange(0, 4_000, 4)
    columns = {"k": ids, "v": [f"a wide value number {i:>50}" for i in ids]}
    columns |= {"_time": np.zeros(1_000, np.int64), "_diff": np.ones(1_000, np.int64)}
    schema = schema_from_arrow(pa.table(columns).select(["k", "v"]).schema, ["k"])
    writer = PartWriter(schema, INT, 0, row_group_rows=16, stats=STATS, filtered=False)
    writer.write(pa.table(columns).cast(update_schema(schema, INT)).to_batches()[0])
    return schema, *writer.finish("p")
