import io
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_reference import ALL, ORDER, array, compare, numbers, rows_of, updates
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelake.data.ingest.updates import normalize
from tidelake.data.kernel.consolidate import consolidate
from tidelake.data.kernel.encode import encode, encode_key
from tidelake.data.kernel.types import schema_from_arrow, update_schema
from tidelake.data.keys.keyset import KeySet
from tidelake.data.part import container
from tidelake.data.part import part as part_module
from tidelake.data.part.part import PartWriter, checksum, read_index, read_part, verify, write_parts
from tidelake.data.part.stats import StatsSettings, Tally, summary
from tidelake.errors import CorruptionError, FormatTooNew, InternalError, StoreUnavailable
from tidelake.model.time import TimeDomain
from tidelake.shard.engine.overlap import prefetch
from tiers import examples

INT = TimeDomain("counter")


def written(table, schema, domain, *, group=16, budget=10_000, bound=64, name="p1", filtered=True):
    stats = StatsSettings(budget, bound)
    writer = PartWriter(schema, domain, 3, row_group_rows=group, stats=stats, filtered=filtered)
    for batch in table.to_batches(max_chunksize=7):
        writer.write(batch)
    assert writer.rows == table.num_rows
    return writer.finish(name)


def back(data, part, schema, domain, batch_rows=10, **range_):
    batches = list(read_part(io.BytesIO(data), part, schema, domain, batch_rows=batch_rows, **range_))
    assert all(0 < b.num_rows <= batch_rows for b in batches)
    return pa.Table.from_batches(batches, update_schema(schema, domain))


def same(found, expected):
    """Equal with NaN equal to itself, unlike Arrow's `equals`."""
    return found.schema.equals(expected.schema) and repr(rows_of(found)) == repr(rows_of(expected))


def sample(n=100, kinds=ALL):
    rng = np.random.default_rng(n)
    columns = {"k": pa.array(np.arange(n) // 3), "k2": pa.array([f"key-{i % 5}" for i in range(n)])}
    for i, (kind, values) in enumerate(kinds):
        picks = rng.integers(0, len(values) + 1, n)
        columns[f"v{i}"] = array(kind, [[*values, None][j] for j in picks])
    table = pa.table({**columns, "_time": rng.integers(5, 50, n), "_diff": rng.choice([-2, -1, 1, 3], n)})
    names = [c for c in table.column_names if not c.startswith("_")]
    schema = schema_from_arrow(table.select(names).schema, ["k", "k2"])
    return schema, consolidate(normalize(table, schema, INT), schema, INT)


@pytest.mark.promise(
    "Every type comes back from a part as it was", rule="`data/part/part.py`, `data/part/scan.py`"
)
def test_every_type_comes_back_as_it_was():
    schema, table = sample()
    part, data = written(table, schema, INT)
    assert same(back(data, part, schema, INT), table)
    assert pq.read_table(pa.BufferReader(data)).num_rows == table.num_rows
    fields = pq.read_schema(pa.BufferReader(data))
    assert [fields.field(c.name).metadata[b"PARQUET:field_id"] for c in schema.columns] == [
        str(c.id).encode() for c in schema.columns
    ]
    meta = pq.read_metadata(pa.BufferReader(data))
    assert meta.row_group(0).column(0).compression == "ZSTD"
    assert "DELTA_BINARY_PACKED" in meta.row_group(0).column(0).encodings
    assert meta.metadata[b"tidelake.format"] == b"1"


@settings(max_examples=examples(60))
@given(updates(columns=2), st.integers(1, 20), st.integers(1, 20), st.integers(9, 30), st.data())
def test_round_trip_description_and_key_ranges(drawn, group, batch_rows, bound, data):
    schema, domain, table = drawn
    table = consolidate(table, schema, domain)
    if not table.num_rows:
        return
    part, blob = written(table, schema, domain, group=group, bound=bound)
    assert same(back(blob, part, schema, domain, batch_rows), table)
    verify(blob, part)
    diffs = table.column("_diff").to_pylist()
    assert (part.rows, part.diff_sum, part.negative_rows) == (
        len(diffs), sum(diffs), sum(d < 0 for d in diffs)
    )  # fmt: skip
    components = [table.column(c).to_pylist() for c in domain.columns]
    lower, upper = tuple(map(min, components)), tuple(map(max, components))
    assert (part.time_lower, part.time_upper) == (
        (lower, upper) if domain.unit == "tuple" else (lower[0], upper[0])
    )
    keys = encode_key(table, schema).to_pylist()
    assert part.key_lower <= keys[0]
    assert part.key_upper is None or part.key_upper >= keys[-1]
    check_stats(part, schema, table)
    index = read_index(io.BytesIO(blob), part)
    starts = np.cumsum((0, *index.rows))
    assert index.first_keys == tuple(keys[i] for i in starts[:-1])
    assert starts[-1] == part.rows
    bounds = st.none() | st.sampled_from(keys) | st.sampled_from(keys).map(lambda k: k + b"\0")
    low, high = data.draw(bounds), data.draw(bounds)
    inside = [(low is None or k >= low) and (high is None or k < high) for k in keys]
    found = back(blob, part, schema, domain, batch_rows, key_from=low, key_below=high)
    assert same(found, table.filter(pa.array(inside)))
    asked = sorted(data.draw(st.sets(st.sampled_from(keys), min_size=1)))
    among, read = KeySet(pa.array(asked, pa.binary())), []
    found = back(blob, part, schema, domain, batch_rows, among=among, filtered=read.append)
    assert same(found, table.filter(pa.array([k in asked for k in keys])))
    assert len(read) <= 1


def check_stats(part, schema, table):
    for column in schema.columns:
        values = table.column(column.name).combine_chunks()
        values = values if isinstance(values, pa.Array) else pa.concat_arrays(values.chunks)
        stats = part.stats[column.id]
        assert stats.null_count == values.null_count
        encoded = encode(values.drop_null(), column.type).to_pylist()
        assert (stats.lower is None) == (not encoded)
        assert all(stats.lower <= e for e in encoded)
        assert stats.upper is None or all(stats.upper >= e for e in encoded)
        if encoded and not column.type.nested and max(map(len, encoded)) <= 9:
            assert (stats.lower, stats.upper) == (min(encoded), max(encoded))


def test_statistics_are_tight_and_trimmed_to_the_budget():
    schema, table = sample()
    part, _ = written(table, schema, INT, bound=1_000)
    check_stats(part, schema, table)
    for column in schema.columns:
        if not column.type.nested:
            plain = table.column(column.name).combine_chunks().drop_null()
            least = min(numbers(plain), key=ORDER)
            (row,) = [i for i, x in enumerate(numbers(plain)) if compare(x, least) == 0][:1]
            assert part.stats[column.id].lower == encode(plain.slice(row, 1), column.type)[0].as_py()
    small, _ = written(table, schema, INT, budget=300)
    cost = {i: len(s.lower or b"") + len(s.upper or b"") for i, s in part.stats.items()}
    assert 0 < sum(cost[i] for i in small.stats) <= 300
    assert max(cost[i] for i in small.stats) <= min(cost[i] for i in part.stats if i not in small.stats)
    assert written(table, schema, INT, budget=0)[0].stats == {}


def test_a_sum_of_diffs_may_exceed_an_int64():
    schema = schema_from_arrow(pa.schema([("k", pa.int64())]), ["k"])
    table = normalize(pa.table({"k": [1, 2, 3], "_diff": [2**63 - 1] * 3}), schema, INT, time=0)
    part, data = written(table, schema, INT)
    assert part.diff_sum == 3 * (2**63 - 1)
    assert same(back(data, part, schema, INT), table)


def test_write_parts_cuts_at_the_target_and_loses_nothing():
    schema, table = sample(2_000, ALL[:3])
    names = iter(f"p{i}" for i in range(1000))
    settings_ = {"row_group_rows": 64, "stats": StatsSettings(500, 32)}
    batches = table.to_batches(max_chunksize=300)
    parts = list(
        write_parts(batches, schema, INT, 3, target_bytes=8_000, name=lambda: next(names), **settings_)
    )
    assert len(parts) > 3
    assert [p.name for p, _ in parts] == [f"p{i}" for i in range(len(parts))]
    assert pa.concat_tables([back(d, p, schema, INT, 100) for p, d in parts]).equals(table)
    assert all(p.size_bytes == len(d) and p.checksum[:32] == checksum(d) for p, d in parts)
    for (a, _), (b, _) in pairwise(parts):
        assert a.key_lower <= b.key_lower
    assert list(write_parts([], schema, INT, 3, target_bytes=1, name=lambda: "x", **settings_)) == []
    empty = table.slice(0, 0).to_batches()
    assert list(write_parts(empty, schema, INT, 3, target_bytes=1, name=lambda: "x", **settings_)) == []
    with pytest.raises(InternalError, match="needs a row"):
        PartWriter(schema, INT, 3, **settings_).finish("x")


def damage_is_noticed(data, part, schema, table):
    keys = KeySet.of(table.slice(0, 1), schema)
    try:
        found = back(bytes(data), part, schema, INT)
        of_key = back(bytes(data), part, schema, INT, among=keys, filtered=lambda _: None)
    except CorruptionError:
        return True
    assert same(found, table)
    assert of_key.num_rows
    return False


@pytest.mark.promise(
    "Every flipped byte and every truncation of a part is noticed",
    rule="`data/part/container.py`",
    also=["::test_flipped_bytes_in_a_larger_part_are_noticed"],
)
def test_every_flipped_byte_and_every_truncation_is_noticed():
    schema, table = sample(20, [ALL[9]])
    part, data = written(table, schema, INT, group=8)
    noticed = 0
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << (position % 8) if position % 3 else 0xFF
        noticed += damage_is_noticed(damaged, part, schema, table)
        if position % 5 == 0:
            with pytest.raises(CorruptionError, match="checksum"):
                verify(bytes(damaged), part)
    # All but the magic bytes in front, which carry nothing.
    assert noticed == len(data) - 4
    for length in range(0, len(data), 3):
        with pytest.raises(CorruptionError):
            back(data[:length], part, schema, INT)
        # The same where the length of the file is not known to be short.
        with pytest.raises(CorruptionError):
            back(data[:length], replace(part, size_bytes=length), schema, INT)
        with pytest.raises(CorruptionError):
            verify(data[:length], part)


@pytest.mark.full
def test_flipped_bytes_in_a_larger_part_are_noticed():
    schema, table = sample(1_000)
    part, data = written(table, schema, INT, group=100)
    rng = np.random.default_rng(1)
    for position in rng.integers(4, len(data), 100):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        assert damage_is_noticed(damaged, part, schema, table)


@pytest.mark.promise(
    "A part that replaces another one is noticed",
    rule="a state names the digest of each part's footer",
    also=["lake/test_file_fuzz.py"],
)
@pytest.mark.promise("An object that replaces a part is refused", rule="`read_footer`")
def test_an_object_that_is_not_the_part_is_refused():
    schema, table = sample(50, ALL[:2])
    part, data = written(table, schema, INT)
    other, wrong = sample(50, ALL[2:4])
    foreign = io.BytesIO()
    pq.write_table(table, foreign)
    plain = foreign.getvalue()
    for bad, described in [
        (b"", part),
        (b"PAR1", replace(part, size_bytes=4)),
        (plain, part),
        (plain, replace(part, size_bytes=len(plain))),
        (bytes(len(data)), part),
        (data, replace(part, rows=part.rows + 1)),
        (data, replace(part, key_lower=b"\xff")),
    ]:
        with pytest.raises(CorruptionError, match="'p1'"):
            back(bad, described, schema, INT)
    # Another part of the same shape and size, whose bytes are sound.
    swapped, sound = written(table.set_column(0, table.field(0), table.column(0)[::-1]), schema, INT)
    for stored, described in [(sound, part), (data, swapped)]:
        with pytest.raises(CorruptionError, match="of another part"):
            back(stored, replace(described, size_bytes=len(stored), key_lower=b""), schema, INT)
    with pytest.raises(CorruptionError, match="of another part"):
        back(data, replace(part, checksum=part.checksum[:32]), schema, INT)
    with pytest.raises(CorruptionError, match=r"stored as|columns"):
        back(data, part, other, INT)
    with pytest.raises(CorruptionError, match="columns"):
        back(data, part, schema, TimeDomain("tuple", 2))
    assert wrong.num_rows


@pytest.mark.promise(
    "Newer formats are refused as newer, not as damage",
    rule="`FormatTooNew`",
    also=[
        "state/test_codec.py::test_a_newer_format_is_refused_before_its_body_is_looked_at",
        "store/framed/test_framed_damage.py::test_a_newer_file_is_too_new",
        "store/test_url.py::test_a_newer_marker_is_too_new",
    ],
)
def test_a_newer_format_is_told_apart_from_damage(monkeypatch):
    schema, table = sample(50, ALL[:2])
    monkeypatch.setattr(container, "FORMAT", 2)
    part, data = written(table, schema, INT)
    monkeypatch.undo()
    for read in (lambda: back(data, part, schema, INT), lambda: read_index(io.BytesIO(data), part)):
        with pytest.raises(FormatTooNew, match="format 2"):
            read()


def test_an_error_of_the_file_passes_through():
    schema, table = sample(500, ALL[:2])
    part, data = written(table, schema, INT)

    class Flaky(io.BytesIO):
        left = 0

        def read(self, size=-1, /):
            self.left -= 1
            if self.left < 0:
                raise StoreUnavailable("the store is away")
            return super().read(size)

    for left in range(3):
        file = Flaky(data)
        file.left = left
        with pytest.raises(StoreUnavailable, match="away"):
            list(read_part(file, part, schema, INT, batch_rows=10))


@pytest.mark.promise("A key range reads few row groups", rule="`read_part`")
def test_a_key_range_reads_little(tmp_path):
    schema, table = sample(5_000, ALL[:2])
    part, data = written(table, schema, INT, group=50)
    read = []

    class Counted(io.BytesIO):
        def read(self, size=-1, /):
            read.append(size)
            return super().read(size)

    key = encode_key(table.slice(2_500, 1), schema)[0].as_py()
    found = list(
        read_part(Counted(data), part, schema, INT, batch_rows=50, key_from=key, key_below=key + b"\0")
    )
    assert 1 <= sum(b.num_rows for b in found) <= 3
    footer = container.read_footer(io.BytesIO(data), part)
    groups = sorted(footer.ends[i] - footer.start(i) for i in range(len(footer.ends)))
    assert sum(read[2:]) <= 2 * groups[-1]
    path = tmp_path / "part"
    path.write_bytes(data)
    assert pa.Table.from_batches(read_part(str(path), part, schema, INT, batch_rows=100)).equals(table)
    assert read_index(str(path), part).rows[0] == 50


def test_a_key_range_begins_and_ends_within_long_batches():
    schema, table = sample(3_000, ALL[:1])
    part, data = written(table, schema, INT, group=5_000)
    keys = encode_key(table, schema).to_pylist()
    for first in range(0, table.num_rows, 97):
        for low, high in ((keys[first], keys[-1 - first]), (keys[first] + b"\0", keys[first] + b"\1")):
            found = back(data, part, schema, INT, 5_000, key_from=low, key_below=high)
            assert found.equals(table.filter(pa.array([low <= key < high for key in keys])))


def test_row_groups_are_exact_whatever_the_batches_are():
    schema, table = sample(100, ALL[:1])
    n = table.num_rows
    for group in (1, 7, n - 1, n, n + 1):
        part, data = written(table, schema, INT, group=group)
        rows = read_index(io.BytesIO(data), part).rows
        assert rows[:-1] == (group,) * (len(rows) - 1)
        assert sum(rows) == n
        assert same(back(data, part, schema, INT), table)


def test_row_groups_that_fit_are_whole_where_two_would_be_too_large():
    table = pa.table({"k": range(100), "v": [bytes(100)] * 100, "_time": [0] * 100})
    schema = schema_from_arrow(table.select(["k", "v"]).schema, ["k"])
    table = normalize(table, schema, INT)
    options = {"row_group_rows": 10, "stats": StatsSettings(10_000, 64), "target_bytes": 1 << 20}
    batches = table.combine_chunks().to_batches(max_chunksize=9)
    ((part, data),) = write_parts(batches, schema, INT, 0, **options, name=lambda: "p", group_bytes=2_000)
    assert read_index(io.BytesIO(data), part).rows == (10,) * 10


def test_wide_rows_are_cut_by_bytes(monkeypatch):
    rng = np.random.default_rng(1)
    wide = [rng.bytes(2_000 if i > 20 else 20) for i in range(40)]
    table = pa.table({"k": range(40), "v": wide, "_time": [0] * 40})
    schema = schema_from_arrow(table.select(["k", "v"]).schema, ["k"])
    table = normalize(table, schema, INT)
    monkeypatch.setattr(part_module, "_GROUP_BYTES", 5_000)
    part, data = written(table, schema, INT, group=1_000)
    index = read_index(io.BytesIO(data), part)
    assert len(index.rows) > 1
    assert index.rows[0] > index.rows[1]
    assert same(back(data, part, schema, INT), table)
    options = {"row_group_rows": 1_000, "stats": StatsSettings(10_000, 64)}
    cut = write_parts(table.to_batches(), schema, INT, 0, **options, target_bytes=5_000, name=lambda: "p")
    parts = list(cut)
    assert len(parts) > 2
    assert all(p.rows <= 6 for p, _ in parts[1:])
    assert same(pa.concat_tables([back(d, p, schema, INT) for p, d in parts]), table)


def test_nulls_under_null_parents_are_stored():
    inner = pa.struct([pa.field("s", pa.string(), nullable=False), ("n", pa.int64())])
    outer = pa.struct([
        pa.field("i", pa.int64(), nullable=False),
        pa.field("d", pa.date64(), nullable=False),
        pa.field("f", pa.float64(), nullable=False),
        pa.field("x", inner, nullable=False),
        pa.field("l", pa.list_(pa.field("item", pa.int32(), nullable=False)), nullable=False),
        pa.field("z", pa.list_(pa.float32(), 2)),
    ])  # fmt: skip
    value = {"i": 1, "d": 0, "f": -0.5, "x": {"s": "a", "n": None}, "l": [1, 2], "z": [1.0, None]}
    structs = pa.array([None, value, None, value], outer).take(pa.array([0, 1, None, 3, 1]))
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 2, 3, 5, 5], pa.int32()), structs)
    table = pa.table({"k": range(5), "v": structs, "w": lists, "_time": [0] * 5})
    assert table["v"].chunk(0).field("i").null_count
    schema = schema_from_arrow(table.select(["k", "v", "w"]).schema, ["k"])
    for source in (table, table.slice(1)):
        rows = normalize(source, schema, INT)
        for kept in (rows, consolidate(rows, schema, INT), rows.take([0, 2, 3])):
            part, data = written(kept, schema, INT, group=2)
            assert same(back(data, part, schema, INT), kept)


@pytest.mark.parametrize("names", [["a.b", "a"], ["a", "a.b"]])
def test_a_dot_in_a_name_is_no_path(names):
    columns = {"a.b": [f"x{i}" for i in range(40)], "a": [{"b": f"y{i}"} for i in range(40)]}
    table = pa.table({"k": range(40), **{n: columns[n] for n in names}, "_time": [0] * 40})
    schema = schema_from_arrow(table.select(["k", *names]).schema, ["k"])
    table = normalize(table, schema, INT)
    part, data = written(table, schema, INT)
    assert same(back(data, part, schema, INT), table)


@settings(max_examples=examples(150))
@given(updates(columns=3), st.lists(st.integers(1, 39), max_size=5))
def test_statistics_do_not_depend_on_how_rows_are_cut(drawn, cuts):
    schema, domain, table = drawn
    batches = consolidate(table, schema, domain).combine_chunks().to_batches()
    if not batches or not batches[0].num_rows:
        return
    rows = batches[0]
    ends = sorted({min(cut, rows.num_rows) for cut in cuts} | {0, rows.num_rows})
    whole, cut = Tally(schema.columns, domain), Tally(schema.columns, domain)
    whole.add(summary(rows, schema, domain))
    for a, b in pairwise(ends):
        cut.add(summary(rows.slice(a, b - a), schema, domain))
    parts = [tally.part("p", b"", 0, (b"a", b"b"), StatsSettings(10_000, 64)) for tally in (whole, cut)]
    # Where buckets of times begin depends on what came first; each of them counts every row.
    assert len({sum(n for _, n in part.time_counts) for part in parts}) == 1
    assert replace(parts[0], time_counts=()) == replace(parts[1], time_counts=())


def test_summaries_made_elsewhere_give_the_same_parts():
    schema, table = sample(200)
    options = {"row_group_rows": 16, "stats": StatsSettings(10_000, 64), "target_bytes": 8_000}

    def made(**more):
        batches = table.to_batches(max_chunksize=50)
        return list(write_parts(batches, schema, INT, 3, name=lambda: "p", **options, **more))

    seen = []

    def ahead(items):
        # Summaries, and what is encoded of them.
        for item in items:
            if isinstance(item, list):
                seen.extend(piece.rows.num_rows for piece in item)
            yield item

    assert made(ahead=ahead) == made()
    assert sum(seen) == table.num_rows
    assert max(seen) <= 16


def test_parts_are_the_same_however_far_threads_run_ahead(monkeypatch):
    schema, table = sample(800)
    options = {"row_group_rows": 16, "stats": StatsSettings(10_000, 64), "target_bytes": 8_000}

    def made(ahead, most):
        batches = table.to_batches(max_chunksize=50)
        more = {"filtered": True, "rows_max": most, "ahead": ahead}
        return list(write_parts(batches, schema, INT, 3, name=lambda: "p", **more, **options))

    monkeypatch.setattr(part_module, "_PLANNED_GROUPS", 2)
    for most in (None, 800, 2_000):
        alone = made(iter, most)
        assert len(alone) > 3
        assert made(lambda items: iter(list(items)), most) == made(partial(prefetch, depth=3), most) == alone
