"""The hash of rows: the same for the same rows, however they are cut, ordered, summed and timed."""

import io
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from data_reference import updates
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelake.data.kernel.consolidate import consolidate
from tidelake.data.kernel.select import select
from tidelake.data.kernel.types import schema_from_arrow
from tidelake.data.part import rowhash
from tidelake.data.part.check import PartCheck
from tidelake.data.part.inline import encode_inline
from tidelake.data.part.part import read_part, write_parts
from tidelake.data.part.rowhash import row_hash
from tidelake.data.part.stats import StatsSettings
from tidelake.model.batch import ROW_HASHES
from tidelake.model.frontier import Frontier
from tidelake.model.query import Fold
from tidelake.model.time import TimeDomain
from tiers import examples

INT = TimeDomain("counter")
STATS = StatsSettings(10_000, 64)
MASK = ROW_HASHES - 1


def batch_of(table):
    return table.combine_chunks().to_batches()[0]


def schema_of(rows):
    fields = [field for field in rows.schema if not field.name.startswith("_")]
    return schema_from_arrow(pa.schema(fields), ["k"])


def hash_of(table, schema):
    return sum(row_hash(batch, schema) for batch in table.to_batches()) % ROW_HASHES


@pytest.mark.promise(
    "The hash of rows depends on neither their order nor their times nor how they are summed, and "
    "adds up; rows that were swapped have another one",
    rule="`data/part/rowhash.py`",
    also=[
        "data/test_rowhash.py",
        "formats/test_formats.py::test_parts_with_rows_of_every_type_are_described_as_they_were",
    ],
)
@pytest.mark.promise(
    "A writer's epoch and sequence never go back",
    rule="`epoch-never-goes-back`, `sequence-never-goes-back`",
    also=["data/test_rowhash.py"],
)
@settings(max_examples=examples(60))
@given(updates(columns=3), st.integers(0, 20), st.randoms(use_true_random=False))
def test_the_hash_depends_on_neither_order_nor_cuts_nor_times_nor_sums(drawn, cut, random):
    schema, domain, table = drawn
    if not table.num_rows:
        return
    expected = hash_of(table, schema)
    order = list(range(table.num_rows))
    random.shuffle(order)
    shuffled = batch_of(table.take(pa.array(order)))
    pieces = [shuffled.slice(0, cut), shuffled.slice(cut)]
    assert sum(row_hash(piece, schema) for piece in pieces) % ROW_HASHES == expected
    summed = consolidate(table, schema, domain)
    assert hash_of(summed, schema) == expected
    latest = Frontier.of(9 if domain.unit != "tuple" else (9,) * domain.arity)
    folded = [select(batch, Fold(latest), domain) for batch in table.to_batches()]
    again = consolidate(pa.Table.from_batches(folded, table.schema), schema, domain)
    assert hash_of(again, schema) == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rowhash, "_BLOCK_ROWS", 3)
        assert row_hash(shuffled, schema) == expected
        assert row_hash(shuffled.slice(cut), schema) == hash_of(
            pa.Table.from_batches([shuffled.slice(cut)]), schema
        )


def finished(number):
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & MASK
    number = (number ^ number >> 27) * 0x94D049BB133111EB & MASK
    return number ^ number >> 31


def mixed(number):
    number = number * 0x9E3779B97F4A7C15 & MASK
    return number ^ number >> 32


def value_of(value):
    """Of an integer, a text or null."""
    if value is None:
        return 0xD1B54A32D192ED03
    if isinstance(value, int):
        return value & MASK
    data = value.encode()
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)]
    found = len(data) * 0x9E3779B97F4A7C15 & MASK
    for word in words[:8]:
        found = mixed(found ^ word)
    rest = [mixed(mixed(word ^ finished(n))) for n, word in enumerate(words) if n >= 8]
    return (found + sum(rest)) & MASK


TEXTS = ["", "a", "abcdefgh", "abcdefghi", "x" * 64, "x" * 65, "yz" * 100, "z" * 1000, None, "ä" * 33]


@settings(max_examples=examples(40))
@given(st.lists(st.tuples(st.sampled_from(TEXTS), st.integers(-(2**63), 2**63 - 1)), min_size=1, max_size=12))
def test_a_hash_is_the_sum_of_those_of_rows_one_at_a_time(rows):
    texts, numbers = map(list, zip(*rows, strict=True))
    diffs = [(-1) ** n * (n + 1) for n in range(len(rows))]
    columns = {"k": numbers, "v": pa.array(texts, pa.string()), "_time": [0] * len(rows), "_diff": diffs}
    # A slice: offsets and bytes do not begin at zero.
    batch = batch_of(pa.concat_tables([pa.table(columns).slice(0, 1), pa.table(columns)])).slice(1)
    schema = schema_of(batch)
    by_row = [finished(mixed(mixed(value_of(number)) ^ value_of(text))) for text, number in rows]
    expected = sum(one * diff for one, diff in zip(by_row, diffs, strict=True)) % ROW_HASHES
    assert row_hash(batch, schema) == expected


@settings(max_examples=examples(40))
@given(st.integers(0, 90), st.integers(1, 9), st.randoms(use_true_random=False))
def test_texts_of_one_length_have_the_hashes_of_any_texts(length, count, random):
    texts = ["".join(random.choices("abc", k=length)) for _ in range(count)]
    columns = {"k": pa.array(["before", *texts]), "_time": [0] * (count + 1), "_diff": [1] * (count + 1)}
    batch = batch_of(pa.table(columns)).slice(1)
    expected = sum(finished(mixed(value_of(text))) for text in texts) % ROW_HASHES
    assert row_hash(batch, schema_of(batch)) == expected


@settings(max_examples=examples(60))
@given(updates(columns=3), st.data())
def test_rows_that_were_changed_or_swapped_have_another_hash(drawn, data):
    schema, domain, table = drawn
    rows = consolidate(table, schema, domain)
    if rows.num_rows < 2:
        return
    name = data.draw(st.sampled_from([column.name for column in schema.columns]))
    order = np.arange(rows.num_rows)
    order[[0, -1]] = order[[-1, 0]]
    column = rows[name].combine_chunks()
    at = rows.schema.get_field_index(name)
    swapped = rows.set_column(at, rows.schema.field(at), column.take(pa.array(order)))
    same = consolidate(swapped, schema, domain).equals(rows) or hash_of(swapped, schema) == hash_of(
        consolidate(rows, schema, domain), schema
    )
    # Swapping changes nothing if both rows have the same value, or if the other values are the same.
    first, last = (
        rows.slice(i, 1).drop_columns([*domain.columns]).to_pydict() for i in (0, rows.num_rows - 1)
    )
    alike = repr(first[name]) == repr(last[name])
    others_alike = all(repr(first[n]) == repr(last[n]) for n in first if n != name)
    assert same == (alike or others_alike)


def test_every_part_of_a_run_has_its_hash_stored_and_inline():
    ids = np.arange(5_000)
    table = pa.table({"k": ids, "v": [f"v{i}" for i in ids], "_time": ids % 7, "_diff": ids % 3 + 1})
    schema = schema_of(table)
    options = {"row_group_rows": 256, "stats": STATS, "target_bytes": 5_000, "name": lambda: "p"}
    made = list(write_parts(table.to_batches(max_chunksize=700), schema, INT, 0, **options))
    assert len(made) > 2 and sum(part.row_hash for part, _ in made) % ROW_HASHES == hash_of(table, schema)
    for part, data in made:
        [rows] = [pa.concat_batches(read_part(io.BytesIO(data), part, schema, INT, batch_rows=10_000))]
        assert row_hash(rows, schema) == part.row_hash
    few = batch_of(table.slice(0, 9))
    tiny = encode_inline(few, schema, INT, 0, limit_bytes=1 << 20, stats=STATS, name="p")
    assert tiny.row_hash == row_hash(few, schema)


@pytest.mark.parametrize("wrong", [0, 1])
def test_a_check_of_a_part_compares_its_hash(wrong):
    ids = np.arange(9)
    table = pa.table({"k": ids, "_time": ids, "_diff": pc.add(ids, 1)})
    schema = schema_of(table)
    part = encode_inline(batch_of(table), schema, INT, 0, limit_bytes=1 << 20, stats=STATS, name="p")
    other = replace(part, checksum=f"{part.checksum.partition('+')[0]}+{part.row_hash ^ wrong:016x}")
    check = PartCheck(other, schema, INT)
    check.add(batch_of(table))
    assert ["row_hash" in one.message for one in check.complaints()] == [True] * wrong
