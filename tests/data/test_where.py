"""Conditions on rows: SQL's truth on every value, what is refused, and what may be left unread."""

import io
import math
import random
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_reference import PRIMITIVES
from hypothesis import given
from hypothesis import strategies as st

from tidelake.data.ingest.updates import normalize
from tidelake.data.kernel.encode import encode, encode_key
from tidelake.data.kernel.types import data_type, schema_from_arrow
from tidelake.data.part.part import PartWriter
from tidelake.data.part.scan import read_part
from tidelake.data.part.stats import StatsSettings
from tidelake.data.query import literal
from tidelake.data.query.filter import RowFilter
from tidelake.data.query.prune import Pruning
from tidelake.data.query.where import predicate
from tidelake.errors import UsageError
from tidelake.model.predicate import key_bounds, keys_asked
from tidelake.model.schema import Column, Schema
from tidelake.model.time import TimeDomain
from where_reference import FIELDS, MORE, condition, random_rows

COUNTER = TimeDomain("counter")
ALL = FIELDS + MORE
KEY = ["s", "k", "b"]
SCHEMA = schema_from_arrow(pa.schema([field for field, _ in ALL]), KEY)
# Bounds of a few bytes are truncated, and statistics of many columns are dropped.
SETTINGS = [StatsSettings(2**20, 64), StatsSettings(2**20, 3), StatsSettings(60, 2)]


def updates(rng, count):
    table = random_rows(rng, ALL, count)
    times = pa.array([rng.randrange(3) for _ in range(count)], pa.int64())
    return normalize(table.append_column("_time", times), SCHEMA, COUNTER)


def batch_of(table):
    return table.combine_chunks().to_batches()[0]


def ours(sql):
    # Spark's name of a timestamp without a zone, which only it needs.
    return sql.replace("TIMESTAMP_NTZ", "TIMESTAMP")


def satisfying(batch, test):
    return [row for row in batch.to_pylist() if test(row) is True]


@pytest.mark.promise(
    "`where` gives the rows for which the condition is true in SQL, not false or NULL, for every type",
    rule="`data/query/where.py`, `data/query/filter.py`",
    also=["spark/reading/test_selected_frames.py::test_spark_sql_finds_the_same_rows"],
)
@given(st.integers(0, 2**32).map(random.Random))
def test_a_condition_keeps_the_rows_of_which_sql_says_that_it_is_true(rng):
    rows = batch_of(updates(rng, 1 + rng.randrange(30)))
    sql, test = condition(rng, ALL)
    kept = RowFilter(predicate(ours(sql), SCHEMA), SCHEMA)(rows)
    assert str(kept.to_pylist()) == str(satisfying(rows, test)), sql


@given(st.integers(0, 2**32).map(random.Random))
def test_rows_that_satisfy_a_condition_lie_between_its_key_bounds(rng):
    rows = batch_of(updates(rng, 20))
    sql, _ = condition(rng, [f for f in ALL if f[0].name in KEY])
    bound = predicate(ours(sql), SCHEMA)
    start, stop = key_bounds(bound, [column.id for column in SCHEMA.key])
    for key in encode_key(RowFilter(bound, SCHEMA)(rows), SCHEMA).to_pylist():
        assert (start is None or start <= key) and (stop is None or key < stop), sql


@given(st.integers(0, 2**32).map(random.Random))
def test_rows_that_satisfy_a_condition_have_the_keys_that_it_fixes(rng):
    field = rng.choice([f for f in ALL if not pa.types.is_nested(f[0].type)])
    schema = schema_from_arrow(pa.schema([f[0] for f in ALL]), [field[0].name])
    rows = batch_of(updates(rng, 20))
    sql, _ = condition(rng, [field], depth=rng.randrange(3))
    bound = predicate(ours(sql), schema)
    fixed = keys_asked(bound, [column.id for column in schema.key], 5)
    assert fixed is None or (0 < len(fixed) <= 5 and fixed == sorted(set(fixed)))
    for key in encode_key(RowFilter(bound, schema)(rows), schema).to_pylist():
        assert fixed is None or key in fixed, sql


@pytest.mark.parametrize(
    ("sql", "keys"),
    [
        ("s = 'a' AND k = 1 AND b", 1),
        ("s IN ('a', 'b') AND k = 1 AND b = TRUE AND f > 0", 2),
        ("s IN ('a', 'b') AND k IN (1, 2) AND b", 4),
        ("s = 'a' AND k = 1 AND b OR s = 'b' AND k = 2 AND b IS NULL", 2),
        ("s = 'a' AND k = 1 AND b OR s = 'b' AND k = 2", None),
        ("s = 'a' AND k = 1", None),
        ("s LIKE 'a%' AND k = 1 AND b", None),
        ("s = 'a' AND k IN (1, 2, 3, 4, 5) AND b", None),
        ("f > 0", None),
    ],
)
def test_a_condition_fixes_keys(sql, keys):
    bound = predicate(sql, SCHEMA)
    fixed = keys_asked(bound, [column.id for column in SCHEMA.key], 4)
    assert (None if fixed is None else len(fixed)) == keys


def written(rows, settings, row_group_rows):
    writer = PartWriter(SCHEMA, COUNTER, 0, row_group_rows=row_group_rows, stats=settings)
    writer.write(rows)
    return writer.finish("p")


@pytest.mark.promise(
    "Skipped parts and row groups hold no matching row, and a selective read costs what it finds",
    rule="`model/predicate.py`, `data/query/prune.py`",
    also=["lake/api/test_selected_reads.py::test_a_selective_read_costs_the_row_groups_that_hold_its_rows"],
)
@given(st.integers(0, 2**32).map(random.Random), st.sampled_from(SETTINGS), st.integers(1, 4))
def test_parts_and_row_groups_that_are_left_out_hold_no_such_row(rng, settings, row_group_rows):
    from tidelake.data.kernel.consolidate import consolidate

    rows = batch_of(consolidate(pa.table(updates(rng, 1 + rng.randrange(8))), SCHEMA, COUNTER, 100))
    part, data = written(rows, settings, row_group_rows)
    sql, _ = condition(rng, ALL, depth=rng.randrange(3))
    bound = predicate(ours(sql), SCHEMA)
    pruning = Pruning.of(bound, SCHEMA, SCHEMA, {c.id for c in SCHEMA.columns})
    kept = RowFilter(bound, SCHEMA)(rows)
    assert pruning.part(part) or not kept.num_rows, sql
    read = read_part(io.BytesIO(data), part, SCHEMA, COUNTER, batch_rows=3, row_groups=pruning.row_groups)
    found = [row for batch in read for row in RowFilter(bound, SCHEMA)(batch).to_pylist()]
    assert str(found) == str(kept.to_pylist()), sql


def row_groups_read(sql, table, **options):
    """How many row groups of one row each a condition reads."""
    schema = schema_from_arrow(table.schema, table.schema.names[:1])
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=1, **options)
    metadata = pq.read_metadata(pa.BufferReader(sink.getvalue()))
    pruning = Pruning.of(predicate(sql, schema), schema, schema, {c.id for c in schema.columns})
    return pruning.row_groups(metadata).count(True)


@pytest.mark.parametrize(
    ("field", "values", "sql", "read"),
    [
        (pa.field("x", pa.int8()), [-1, 0, 1], "x < 0", 1),
        (pa.field("x", pa.uint32()), [0, 1, 2**32 - 1], "x > 1", 1),
        (pa.field("x", pa.uint64()), [0, 1, 2**64 - 1], "x > 1", 1),
        (pa.field("x", pa.string()), ["a", "b", "ba"], "x LIKE 'b%'", 2),
        (pa.field("x", pa.bool_()), [False, True, None], "NOT x", 1),
        (pa.field("x", pa.decimal128(10, 2)), [Decimal("-1.00"), Decimal("0.50"), None], "x < 0", 1),
        (pa.field("x", pa.decimal256(50, 2)), [Decimal("-1.00"), Decimal("0.50"), None], "x < 0", 1),
        (pa.field("x", pa.date32()), [0, 1, 2], "x = DATE '1970-01-02'", 1),
        (
            pa.field("x", pa.timestamp("ns", "UTC")),
            [0, 1, 2],
            "x > TIMESTAMP '1970-01-01 00:00:00.000000001Z'",
            1,
        ),
        (pa.field("x", pa.timestamp("s")), [0, 1, 2], "x >= TIMESTAMP '1970-01-01 00:00:01'", 2),
        # NaN is not in Parquet's bounds: any row group of floats may hold one.
        (pa.field("x", pa.float64()), [1.0, 5.0, math.nan], "x < 2", 2),
        (pa.field("x", pa.float64()), [1.0, 5.0, math.nan], "x > 2", 3),
        (pa.field("x", pa.float32()), [None, 5.0, math.nan], "x IS NULL", 1),
        (pa.field("x", pa.string()), [None, "a", "b"], "x IS NOT NULL", 2),
        (pa.field("x", pa.string()), ["a", "b", "c"], "x IN ('a', 'c')", 2),
        (pa.field("x", pa.string()), ["a", "b", "c"], "x <> 'b'", 2),
    ],
)
def test_row_groups_are_left_out_by_parquet_statistics(field, values, sql, read):
    before = pa.array([{"a": 1, "x": 2}] * 3)
    table = pa.table({"k": pa.array([1, 2, 3]), "s": before, "x": pa.array(values, field.type)})
    assert row_groups_read(sql, table) == read


def test_columns_are_found_beside_nested_ones_of_the_same_path():
    table = pa.table({"k": [1, 2], "a": pa.array([{"b": 7}, {"b": 8}]), "a.b": [1, 2]})
    assert row_groups_read('"a.b" = 1', table) == 1


@pytest.mark.parametrize(
    ("arrow", "values"), PRIMITIVES, ids=lambda x: str(x) if isinstance(x, pa.DataType) else ""
)
def test_single_values_are_encoded_as_columns_are(arrow, values):
    array, type_ = pa.array(values, arrow), data_type(arrow, "x")
    for value, encoded in zip(array, encode(array, type_).to_pylist(), strict=True):
        assert one_encoded(value, type_.name) == encoded


def one_encoded(scalar, name):
    if name.startswith("float"):
        return literal.encoded_float(float(scalar.as_py()))
    if name.startswith("decimal"):
        sign, digits, _ = scalar.as_py().as_tuple()
        return literal.encoded_decimal(int("".join(map(str, digits))) * (-1 if sign else 1))
    if name == "string":
        return literal.encoded_text(scalar.as_py().encode())
    if "binary" in name:
        return literal.encoded_text(scalar.as_py())
    number = scalar.value if hasattr(scalar, "value") else int(scalar.as_py())
    return literal.encoded_word(int(number), signed=not name.startswith(("uint", "bool")))


def column(type_):
    return Schema((Column(0, "k", data_type(pa.int64(), "k")), Column(1, "x", data_type(type_, "x"))))


def kept(sql, type_, values):
    schema = column(type_)
    batch = pa.record_batch({"k": pa.array([0] * len(values)), "x": pa.array(values, type_)})
    return RowFilter(predicate(sql, schema), schema)(batch).column("x").to_pylist()


def test_numbers_are_compared_exactly():
    big = [2**53, 2**53 + 1, -(2**63), 2**63 - 1]
    assert kept("x = 9007199254740993", pa.int64(), big) == [2**53 + 1]
    assert kept("x < 9007199254740992.5", pa.int64(), big) == [2**53, -(2**63)]
    assert kept("x < 1e400", pa.int64(), big) == big
    assert kept("x >= 9223372036854775808", pa.int64(), big) == []
    assert kept("x > -1e-999999999", pa.int64(), [-1, 0]) == [0]
    assert kept("x = 1.505", pa.decimal128(5, 2), [Decimal("1.50"), Decimal("1.51")]) == []
    assert kept("x < 1e400", pa.float64(), [1e308, math.inf]) == [1e308]
    assert kept("x >= -1e400", pa.float64(), [-math.inf, 0.0]) == [0.0]
    assert kept("x = 0.1", pa.float64(), [0.1]) == [0.1]
    assert kept("x = 0", pa.float64(), [-0.0]) == [0.0]


def test_thousands_of_values_joined_by_or_are_one_set():
    sql = " OR ".join(f"x = {i}" for i in range(0, 6000, 2))
    assert len(kept(sql, pa.int64(), list(range(6000)))) == 3000


@pytest.mark.promise("Unsupported SQL is refused with its name", rule="`data/query/where.py`")
@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("s = 1", "'s' is a string.*single quotes"),
        ("k = '1'", "'k' is a int64.*write a number"),
        ("k = TRUE", "'k' is a int64"),
        ("day = '2024-01-01'", "write DATE"),
        ("ts = DATE '2024-02-30'", "'2024-02-30' is no date"),
        ("ts = TIMESTAMP '2024-01-01 00:00:00Z'", "without a zone"),
        ("`Über` = TIMESTAMP '2024-01-01 00:00:00'", "with a zone"),
        ("l = 1", "IS NULL"),
        ("k", "'k' is a int64, not a bool"),
        ("nope = 1", "no column named 'nope': there are 's'"),
        ("_time > 1", "where says nothing of times"),
        ('s = "a"', "single quotes|column where a literal"),
        ("k = s", "`s` is a column where a literal is expected"),
        ("lower(s) = 'a'", r"`LOWER\(s\)"),
        ("k + 1 = 2", r"`k \+ 1"),
        ("s LIKE '%a'", "not a prefix"),
        ("s LIKE 'a_%'", "not a prefix"),
        (r"s LIKE 'a\_%'", "ESCAPE"),
        ("s ILIKE 'a%'", "ILIKE"),
        ("k IN (SELECT 1)", "SELECT"),
        ("k BETWEEN SYMMETRIC 2 AND 1", "not supported"),
        ("t.k = 1", "`t.k`"),
        ("k = 1 k", "cannot be parsed"),
        ("k = 1; DROP TABLE x", "cannot be parsed"),
        ("k = 1)", "column"),
        ("", "cannot be parsed"),
        ("s = 'a", "cannot be parsed"),
        ("s = '\ud800'", "not valid text"),
        ("k = CAST(1 AS INT)", "not supported"),
        ("CASE WHEN b THEN b END", "CASE"),
        ("f = DOUBLE 'x'", "'x' is no double"),
        ("(" * 5000 + "k = 1" + ")" * 5000, "nested too deeply"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(sql, names):
    with pytest.raises(UsageError, match=names):
        predicate(sql, SCHEMA)


def test_names_are_found_whatever_their_case_unless_that_is_ambiguous():
    schema = schema_from_arrow(pa.schema([("k", pa.int64()), ("A", pa.int64()), ("a", pa.int64())]), ["k"])
    assert predicate("K = 1", schema) == predicate("k = 1", schema)
    assert predicate("A = 1", schema) != predicate("a = 1", schema)
    lone = schema_from_arrow(pa.schema([("Ka", pa.int64()), ("kA", pa.int64())]), ["Ka"])
    with pytest.raises(UsageError, match="several columns"):
        predicate("ka = 1", lone)


def test_a_column_that_was_widened_from_unsigned_is_not_judged_by_old_statistics():
    old = column(pa.uint32())
    new = column(pa.int64())
    pruning = Pruning.of(predicate("x < 0", new), old, new, {0, 1})
    assert not pruning.known and not pruning.gone
