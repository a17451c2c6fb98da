"""Inline parts and the counts of times: what is said of rows is true of them."""

import itertools
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from data_reference import updates
from hypothesis import given, settings
from hypothesis import strategies as st
from test_part import INT, same, sample

from tidelake.config import Config
from tidelake.data.ingest.updates import normalize
from tidelake.data.kernel.consolidate import consolidate
from tidelake.data.kernel.encode import encode_key
from tidelake.data.kernel.types import schema_from_arrow
from tidelake.data.keys.keyset import KeySet
from tidelake.data.part.container import checksum
from tidelake.data.part.inline import decode_inline, encode_inline
from tidelake.data.part.part import PartWriter
from tidelake.data.part.stats import BUCKETS_MAX, StatsSettings, TimeCounts
from tidelake.errors import CorruptionError, InternalError
from tidelake.model.time import TimeDomain
from tiers import examples

STATS = StatsSettings(10_000, 64)


def inline(table, schema, domain, limit=1 << 20, stats=STATS):
    rows = table.combine_chunks().to_batches()[0]
    return encode_inline(rows, schema, domain, 7, limit_bytes=limit, stats=stats, name="i1")


def read(part, schema, domain, **keys):
    return pa.Table.from_batches([decode_inline([part], schema, domain, **keys)])


@pytest.mark.promise(
    "Every type comes back from an inline part, whose description has the form of a stored part's; "
    "damage is noticed",
    rule="`data/part/inline.py`",
    also=[
        "::test_an_inline_part_is_described_like_a_stored_one_and_read_by_key_range",
        "::test_a_flipped_bit_of_an_inline_part_is_noticed",
    ],
)
def test_every_type_comes_back_from_an_inline_part_as_it_was():
    schema, table = sample(40)
    part = inline(table, schema, INT)
    assert part.inline is not None and part.size_bytes == len(part.inline)
    assert same(read(part, schema, INT), table)


@settings(max_examples=examples(60))
@given(updates(columns=2), st.integers(9, 30), st.data())
def test_an_inline_part_is_described_like_a_stored_one_and_read_by_key_range(drawn, bound, data):
    schema, domain, table = drawn
    table = consolidate(table, schema, domain)
    if not table.num_rows:
        return
    stats = StatsSettings(10_000, bound)
    part = inline(table, schema, domain, stats=stats)
    writer = PartWriter(schema, domain, 7, row_group_rows=4, stats=stats)
    for batch in table.to_batches():
        writer.write(batch)
    stored, _ = writer.finish("i1")
    other = {"size_bytes": 0, "checksum": "", "inline": None, "stats": {}}
    assert replace(part, **other) == replace(stored, **other)
    assert part.stats == {}
    keys = encode_key(table, schema).to_pylist()
    bounds = st.none() | st.sampled_from(keys) | st.sampled_from(keys).map(lambda k: k + b"\0")
    low, high = data.draw(bounds), data.draw(bounds)
    inside = [(low is None or k >= low) and (high is None or k < high) for k in keys]
    found = read(part, schema, domain, key_from=low, key_below=high)
    assert same(found, table.filter(pa.array(inside)))


@settings(max_examples=examples(60))
@given(updates(columns=2), updates(columns=2), st.data())
def test_several_inline_parts_read_together_have_the_rows_that_each_has(one, other, data):
    schema, domain, table = one
    tables = [consolidate(table, schema, domain)]
    if other[0] == schema and other[1] == domain:
        tables.append(consolidate(other[2], schema, domain))
    tables = [table for table in (*tables, tables[0].slice(1)) if table.num_rows]
    if not tables:
        return
    parts = [inline(table, schema, domain) for table in tables]
    keys = encode_key(pa.concat_tables(tables), schema)
    bounds = st.none() | st.sampled_from(keys.to_pylist()) | st.sampled_from([b"", b"\xff"])
    wanted = {"key_from": data.draw(bounds), "key_below": data.draw(bounds)}
    whole, chosen = pa.concat_tables(tables), {*keys.to_pylist()}
    low, high = wanted["key_from"], wanted["key_below"]
    if data.draw(st.booleans()):
        few = data.draw(st.lists(st.sampled_from(range(len(keys))), min_size=1))
        wanted["among"], chosen = KeySet.of(whole.take(few), schema), {keys[i].as_py() for i in few}
    inside = [
        k in chosen and (low is None or k >= low) and (high is None or k < high) for k in keys.to_pylist()
    ]
    found = pa.Table.from_batches([decode_inline(parts, schema, domain, **wanted)])
    assert same(found, whole.filter(pa.array(inside)))


def test_damage_to_any_of_several_inline_parts_is_noticed():
    schema, table = sample(12)
    part = inline(table, schema, INT)
    damaged = replace(part, name="i2", inline=part.inline[:-1] + b"x")
    with pytest.raises(CorruptionError, match="'i2' is damaged"):
        decode_inline([part, damaged, part], schema, INT)


def test_the_limit_of_inline_parts_is_exclusive():
    schema, table = sample(12)
    size = inline(table, schema, INT).size_bytes
    assert inline(table, schema, INT, limit=size) is None
    assert inline(table, schema, INT, limit=size + 1).size_bytes == size
    assert inline(table, schema, INT, limit=0) is None


def test_a_flipped_bit_of_an_inline_part_is_noticed():
    schema, table = sample(12)
    part = inline(table, schema, INT)
    for at in range(0, part.size_bytes, 7):
        damaged = bytearray(part.inline)
        damaged[at] ^= 1 << at % 8
        with pytest.raises(CorruptionError, match="'i1' is damaged"):
            decode_inline([replace(part, inline=bytes(damaged))], schema, INT)
    with pytest.raises(CorruptionError, match="bytes instead of"):
        decode_inline([replace(part, inline=part.inline[:-1])], schema, INT)
    with pytest.raises(CorruptionError, match="rows instead of"):
        decode_inline([replace(part, rows=part.rows + 1)], schema, INT)
    with pytest.raises(InternalError, match="is not inline"):
        decode_inline([replace(part, inline=None)], schema, INT)


def test_bytes_that_pass_the_checksum_and_are_no_rows_are_damage_all_the_same():
    schema, table = sample(12)
    part = inline(table, schema, INT)

    def forged(data):
        return replace(part, inline=data, size_bytes=len(data), checksum=checksum(data))

    for data in (b"no message", part.inline[:200], part.inline[:8] + bytes(len(part.inline) - 8)):
        with pytest.raises(CorruptionError, match="'i1' is damaged"):
            decode_inline([forged(data)], schema, INT)
    # A message of other columns: strings whose offsets lead outside of their bytes.
    texts = pa.table({"k": ["a", "b"], "_time": [0, 1], "_diff": [1, 1]})
    text_schema = schema_from_arrow(texts.select(["k"]).schema, ["k"])
    bad = bytearray(inline(normalize(texts, text_schema, INT), text_schema, INT).inline)
    offsets = np.array([0, 1, 2], np.int32).tobytes()
    at = bytes(bad).index(offsets)
    bad[at : at + 12] = np.array([0, 1, 2000], np.int32).tobytes()
    whole = inline(normalize(texts, text_schema, INT), text_schema, INT)
    data = bytes(bad)
    with pytest.raises(CorruptionError, match="cannot be decoded"):
        decode_inline(
            [replace(whole, inline=data, size_bytes=len(data), checksum=checksum(data))], text_schema, INT
        )


# Statistics that are never trimmed


def stored(table, schema, stats):
    """The description of a stored part; inline ones have no statistics of columns."""
    writer = PartWriter(schema, INT, 7, row_group_rows=4, stats=stats)
    for batch in table.combine_chunks().to_batches():
        writer.write(batch)
    return writer.finish("p")[0]


def test_columns_that_are_always_kept_survive_any_budget():
    names = ["ID", "Last_Name", "created_AT", "ts", "id2", "x_ats", "v"]
    table = pa.table({**{name: [1, 2] for name in names}, "_diff": [1, 1]})
    schema = schema_from_arrow(table.select(names).schema, ["ID"])
    table = normalize(table, schema, INT, time=3)
    ids = {column.name: column.id for column in schema.columns}

    def kept(budget):
        part = stored(table, schema, StatsSettings.of(Config(stats_budget_bytes=budget)))
        return {name for name in names if ids[name] in part.stats}

    always = {"ID", "Last_Name", "created_AT", "ts"}
    assert kept(0) == always
    assert kept(4 * 30 - 1) == always  # they count towards the budget
    assert always < kept(5 * 30) < set(names)
    assert kept(10_000) == set(names)


def test_the_default_budget_trims_the_largest_columns_first():
    wide = {f"w{i}": ["x" * 200, "y" * 200] for i in range(12)}
    table = pa.table({"k": [1, 2], **wide, "n": [1, 2], "_diff": [1, 1]})
    schema = schema_from_arrow(table.drop_columns(["_diff"]).schema, ["k"])
    part = stored(normalize(table, schema, INT, time=0), schema, StatsSettings.of(Config()))
    ids = {column.name: column.id for column in schema.columns}
    assert {ids["k"], ids["n"]} < part.stats.keys() and len(part.stats) == 8
    assert sum(12 + len(s.lower) + len(s.upper) for s in part.stats.values()) <= 1024


# Counts of times


def check_counts(pairs, batches):
    times = np.concatenate([np.asarray(b, np.int64) for b in batches])
    firsts = [first for first, _ in pairs]
    assert 1 <= len(pairs) <= BUCKETS_MAX
    assert firsts == sorted(set(firsts)) and firsts[0] == times.min()
    assert pairs[0][1] == np.count_nonzero(times == times.min())
    assert all(rows > 0 for _, rows in pairs) and sum(rows for _, rows in pairs) == len(times)
    for i, (first, rows) in enumerate(pairs):
        below = pairs[i + 1][0] if i + 1 < len(pairs) else 2**63
        assert i == 0 or rows == sum(1 for t in times.tolist() if first <= t < below)
    for s in {*times.tolist(), *(f - 1 for f in firsts), *firsts}:
        assert np.count_nonzero(times <= s) <= sum(rows for first, rows in pairs if first <= s)


def counted(batches):
    counts = TimeCounts()
    for batch in batches:
        times = np.array(batch, np.int64)
        counts.add(times, int(times.min()), int(times.max()))
    return counts.result()


TIMES = st.one_of(st.integers(0, 5), st.integers(0, 1000), st.sampled_from([0, 2**63 - 1, 2**63 - 2]))


@pytest.mark.promise("Counts of times are never too small", rule="`data/part/stats.py`")
@settings(max_examples=examples(300))
@given(st.lists(st.lists(TIMES, min_size=1, max_size=60), min_size=1, max_size=8))
def test_counts_of_times_are_never_too_small(batches):
    check_counts(counted(batches), batches)


@pytest.mark.full
@pytest.mark.parametrize("order", ["mixed", "ascending", "descending"])
def test_counts_of_long_streams_stay_true_and_even(order):
    rng = np.random.default_rng(3)
    times = rng.integers(0, 100_000, 50 * 2_000)
    times = {"mixed": times, "ascending": np.sort(times), "descending": np.sort(times)[::-1]}[order]
    batches = np.split(times, 50)
    pairs = counted(batches)
    check_counts(pairs, batches)
    assert len(pairs) == BUCKETS_MAX
    assert max(rows for _, rows in pairs) < 0.35 * len(times)


@pytest.mark.parametrize("order", itertools.permutations([[7, 7, 7], [7, 7], [9], [3, 3]]))
def test_batches_of_one_time_each_are_counted(order):
    check_counts(counted(order), order)
    assert counted([[7, 7, 7], [7, 7]]) == ((7, 5),)


def test_folded_rows_at_the_least_time_are_counted_apart():
    batches = [np.concatenate([np.full(900, 7), np.arange(8, 108)]) for _ in range(20)]
    pairs = counted(batches)
    check_counts(pairs, batches)
    assert pairs[0] == (7, 18_000) and len(pairs) == BUCKETS_MAX


def test_tuple_times_are_not_counted():
    domain = TimeDomain("tuple", 2)
    table = pa.table({"k": [1, 2], "_time_0": [0, 1], "_time_1": [1, 0], "_diff": [1, 1]})
    schema = schema_from_arrow(table.select(["k"]).schema, ["k"])
    assert inline(normalize(table, schema, domain), schema, domain).time_counts == ()
    table = normalize(pa.table({"k": [1, 2, 3], "_time": [4, 9, 4]}), schema, INT)
    assert inline(table, schema, INT).time_counts == ((4, 2), (9, 1))
