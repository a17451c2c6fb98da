"""Contents of a collection as frames: the rows of a table, and no more of them read than a query needs."""

import datetime
import json
import random
import uuid
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lakes import SMALL_PARTS

import tidelake
from tidelake.data.kernel.types import schema_from_arrow
from tidelake.data.query.where import predicate
from tidelake.data.sql import arrowfilter, polarsfilter
from tidelake.errors import HistoryCompacted, InvalidUpdates, NotYetClosed, UsageError
from tiers import examples

polars = pytest.importorskip("polars")
duckdb = pytest.importorskip("duckdb")
col = polars.col

SCHEMA = {"id": "int64 not null", "s": str, "f": float, "b": bool, "day": datetime.date}
ROWS = [
    {"id": 1, "s": "a", "f": 0.5, "b": True, "day": datetime.date(2026, 1, 1)},
    {"id": 2, "s": None, "f": float("inf"), "b": None, "day": None},
    {"id": 3, "s": "ab", "f": -1.0, "b": False, "day": datetime.date(2026, 2, 1)},
]


@pytest.fixture
def lake():
    with tidelake.open(f"memory://{uuid.uuid4().hex}", config=SMALL_PARTS) as opened:
        yield opened


@pytest.fixture
def collection(lake):
    made = lake.create("c", SCHEMA, key=["id"])
    made.append(pa.Table.from_pylist(ROWS, made.schema))
    more = pa.Table.from_pylist([*ROWS[:1], ROWS[2]], made.schema)
    made.append(more.append_column("_diff", pa.array([-1, 1], pa.int64())))
    return made


def test_a_frame_has_each_row_as_often_as_it_is_there(collection):
    expected = [ROWS[1], ROWS[2], ROWS[2]]
    assert collection.to_arrow().to_pylist() == expected
    assert collection.to_polars().collect().to_dicts() == expected
    assert [dict(zip(SCHEMA, row, strict=True)) for row in collection.to_duckdb().fetchall()] == expected
    assert list(collection.to_pandas()["id"]) == [2, 3, 3]


def test_columns_rows_and_times_may_be_chosen(collection):
    how = {"columns": ["f", "id"], "where": "id > 1"}
    expected = [(float("inf"), 2), (-1.0, 3)]
    assert list(zip(*collection.to_arrow(0, **how).to_pydict().values(), strict=True)) == expected
    assert collection.to_polars(0, **how).collect().rows() == expected
    assert collection.to_duckdb(None, 0, **how).fetchall() == expected
    assert list(collection.to_pandas(0, **how)["f"]) == [float("inf"), -1.0]


def test_parts_of_nested_columns_are_read_by_polars_and_duckdb(lake):
    pair = pa.list_(pa.int64(), 2)
    deep = pa.struct([("a", pa.struct([("b", pair)]))])
    made = lake.create("nested", pa.schema([("id", pa.int64()), ("p", pair), ("d", deep)]), key=["id"])
    rows = [
        {"id": i, "p": None if i % 3 == 0 else [i, None], "d": None if i % 5 == 0 else {"a": {"b": [1, i]}}}
        for i in range(300)
    ]
    for some in (rows[:200], rows[200:]):
        made.append(pa.Table.from_pylist(some, made.schema))
    kept = "id >= 3 AND id < 190"
    expected = [(row["p"], row["d"]) for row in rows[3:190]]
    answers = [
        made.snapshot(where=kept).to_polars(),
        made.to_polars(where=kept).collect(),
        made.to_polars().filter((col("id") >= 3) & (col("id") < 190)).collect(),
    ]
    for answer in answers:
        assert answer.select("p", "d").rows() == expected
    text = "SELECT p::BIGINT[] AS p, d.a.b::BIGINT[] AS d FROM {} WHERE id >= 3 AND id < 190 ORDER BY id"
    with duckdb.connect() as connection:
        made.snapshot(where=kept).to_duckdb(connection).create_view("read")
        made.to_duckdb(connection, where=kept).create_view("scanned")
        found = [connection.execute(text.format(name)).fetchall() for name in ("read", "scanned")]
    found.append(lake.sql(text.format("nested")).to_polars().rows())
    assert found == [[(p, d and d["a"]["b"]) for p, d in expected]] * 3


def test_a_lazy_frame_stays_at_its_time(collection):
    lazy, relation = collection.to_polars(), collection.to_duckdb()
    collection.append(pa.Table.from_pylist([{**ROWS[0], "id": 9}], collection.schema))
    for _ in range(2):
        assert len(lazy.collect()) == len(relation.fetchall()) == 3
    collection.append(pa.Table.from_pylist([{**ROWS[0], "id": 10}], collection.schema))
    collection.advance_since(3)
    with pytest.raises(Exception, match="since"):
        lazy.collect()


@pytest.fixture
def asked(collection, monkeypatch):
    """The columns and the condition of each read of the collection."""
    found = []
    original = type(collection)._read

    def read(self, query, options, seen=None):
        found.append((options.columns, options.matching))
        return original(self, query, options, seen)

    monkeypatch.setattr(type(collection), "_read", read)
    return found


def means(text, schema):
    """The predicate of a condition in SQL."""
    return predicate(text, schema_from_arrow(schema, ["id"]))


def test_a_lazy_frame_reads_what_a_query_needs(collection, asked):
    lazy = collection.to_polars()
    asked.clear()
    found = lazy.filter((col("id") >= 3) & (col("s").str.to_uppercase() == "AB")).select("f").collect()
    assert found.rows() == [(-1.0,), (-1.0,)]
    ((columns, matching),) = asked
    assert set(columns) == {"f", "id", "s"}
    assert matching == means("id >= 3", collection.schema)
    assert lazy.select(polars.len()).collect().item() == 3
    assert len(lazy.head(1).collect()) == 1


def test_bad_arguments_are_told_by_the_call(lake, collection):
    for call in (collection.to_arrow, collection.to_polars, collection.to_pandas):
        with pytest.raises(UsageError, match="no column named 'nope'"):
            call(columns=["nope"])
        with pytest.raises(NotYetClosed):
            call(99)
    collection.append(pa.Table.from_pylist([{"id": 7, "_diff": -1}], collection.update_schema.remove(5)))
    with pytest.raises(InvalidUpdates, match="multiplicity -1"):
        collection.to_arrow()
    empty = lake.create("empty", SCHEMA, key=["id"])
    with pytest.raises(NotYetClosed):
        empty.to_polars()
    collection.advance_since(2)
    with pytest.raises(HistoryCompacted):
        collection.to_duckdb(None, 0)


FILTERS = [
    *(
        col("id") == 2,
        col("id") > 1,
        col("id") <= 2,
        col("id") != 3,
        col("id") < 1.5,
        col("id").is_in([1, 3]),
    ),
    *(col("s") == "a", col("s") < "b", col("s").is_in(["a", "x"]), col("s").str.starts_with("a")),
    *(col("s").str.starts_with("%"), col("s").is_null(), ~col("s").is_null(), col("s").is_not_null()),
    *(col("f") > 0.5, col("f") <= 0.1, col("f") != 0.5, col("f").is_nan(), col("f") < 7),
    *(col("b"), ~col("b"), col("b") == True, col("b").is_null()),  # noqa: E712
    *(
        col("day") > datetime.date(2026, 1, 1),
        col("day") < polars.date(10000, 1, 1),
        col("id").is_between(1, 2),
        col("id").is_between(1, 3, closed="left"),
    ),
    *(col("id") + 1 > 2, col("id") > col("f"), ~(col("id") > 1)),
]


VALUES = {
    "id": [0, 1, 2, 3, None],
    "s": ["", "a", "ab", "b", "%", "it's", None],
    "f": [0.5, 0.1, 7.0, -0.0, float("nan"), float("-inf"), None],
    "b": [True, False, None],
    "day": [datetime.date(2026, 1, 1), datetime.date(2026, 2, 1), None],
    "moment": [*(datetime.datetime(2026, 1, day, 1, tzinfo=datetime.UTC) for day in (1, 2)), None],
    "d": [Decimal("1.50"), Decimal("-2.00"), None],
    "x": [b"", b"a", None],
}
VALUES_SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("s", pa.string()),
        ("f", pa.float64()),
        ("b", pa.bool_()),
        ("day", pa.date32()),
        ("moment", pa.timestamp("us", "UTC")),
        ("d", pa.decimal128(8, 2)),
        ("x", pa.binary()),
    ]
)


def filled(lake, rng):
    rows = [{name: rng.choice(of) for name, of in VALUES.items()} for _ in range(rng.randrange(12))]
    made = lake.create("c", VALUES_SCHEMA, key=["id"])
    times = pa.array([0] * len(rows), pa.int64())
    made.append(pa.Table.from_pylist(rows, VALUES_SCHEMA).append_column("_time", times), upper=1)
    return made


@pytest.mark.promise(
    "A lazy frame of polars gives the answer that it gives on the whole contents, of the time of "
    "the call, each time it is collected",
    rule="`data/sql/polarsfilter.py`, `lake/api/lazyframe.py`",
    also=["::test_a_lazy_frame_stays_at_its_time", "::test_a_lazy_frame_reads_what_a_query_needs"],
)
@pytest.mark.grows
@settings(max_examples=examples(100))
@given(st.integers(0, 2**32).map(random.Random))
def test_a_filter_that_is_pushed_down_keeps_what_polars_keeps(rng):
    with tidelake.open(f"memory://{uuid.uuid4().hex}", config=SMALL_PARTS) as lake:
        made = filled(lake, rng)
        lazy, whole = made.to_polars(), made.to_polars().collect()
        for _ in range(6):
            chosen = [rng.choice(FILTERS) for _ in range(rng.randrange(1, 4))]
            asked = chosen[0]
            for one in chosen[1:]:
                asked = asked & one if rng.random() < 0.7 else asked | one
            shown = rng.sample(list(VALUES), rng.randrange(1, 4))
            found, expected = lazy.filter(asked).select(shown).collect(), whole.filter(asked).select(shown)
            assert found.equals(expected, null_equal=True) or str(found) == str(expected), str(asked)


CONDITIONS = [
    *("id = 2", "id > 1", "id <> 3", "id IN (1, 3)", "id NOT IN (1, 7)", "id IN (2, NULL)", "id + 1 > 2"),
    *("s = 'a'", "s < 'b'", "s LIKE 'a%'", "s = 'it''s'", "s IS NULL", "s IS NOT NULL", "s IN ('a', '%')"),
    *("f > 0.5", "f <= 0.1", "f <> 0.5", "f = 'nan'", "f < 'nan'", "f = 0", "f IN (0.0, 7)", "f >= '-inf'"),
    *("b", "b = false", "day > DATE '2026-01-01'", "moment > TIMESTAMPTZ '2026-01-01 02:00:00+01'"),
    *("d = 1.5", "d < 0", "x = 'a'::BLOB", "id > f", "id BETWEEN 1 AND 2", "TRUE"),
]


@pytest.mark.promise(
    "A relation of DuckDB gives the answer that it gives on the whole contents, whatever filters "
    "DuckDB hands on, and reads no other columns",
    rule="`data/sql/arrowfilter.py`, `lake/api/duckdbframe.py`",
    also=[
        "::test_a_relation_of_duckdb_reads_what_a_query_needs",
        "::test_filters_of_arrow_that_are_known_and_some_that_are_not",
    ],
)
@pytest.mark.grows
@settings(max_examples=examples(50))
@given(st.integers(0, 2**32).map(random.Random))
def test_a_filter_that_is_pushed_down_keeps_what_duckdb_keeps(rng):
    with tidelake.open(f"memory://{uuid.uuid4().hex}", config=SMALL_PARTS) as lake, duckdb.connect() as own:
        made = filled(lake, rng)
        relation, whole = made.to_duckdb(own), own.from_arrow(made.to_arrow())
        for _ in range(6):
            asked = rng.choice(CONDITIONS)
            for _ in range(rng.randrange(3)):
                word = rng.choice(["AND", "AND", "OR", "AND NOT"])
                asked = f"({asked}) {word} ({rng.choice(CONDITIONS)})"
            shown = ", ".join([*rng.sample(list(VALUES), rng.randrange(4)), "1"])
            found, expected = (str(one.filter(asked).project(shown).fetchall()) for one in (relation, whole))
            assert found == expected, asked


def test_a_relation_of_duckdb_reads_what_a_query_needs(collection, asked):
    relation = collection.to_duckdb()
    for query, columns, where in (
        (relation.filter("id >= 3 AND upper(s) = 'AB'").project("f"), ["id", "s", "f"], "id >= 3"),
        (relation.filter("id IN (3, 7) AND b = FALSE").project("f"), ["id", "f", "b"], None),
        (relation.filter("f <= 0.1 AND s IS NOT NULL").project("s"), ["s", "f"], None),
        (relation.aggregate("count(*)"), ["id"], None),
        (relation.project("s, id"), ["id", "s"], None),
    ):
        asked.clear()
        assert query.fetchall()
        ((found, condition),) = asked
        assert list(found) == columns
        assert where is None or condition == means(where, collection.schema)
    asked.clear()
    relation.filter("id IN (3, 7) AND b = FALSE AND f <= 0.1").fetchall()
    told = means("id IN (3, 7) AND b = FALSE AND f <= DOUBLE '0.1'", collection.schema)
    assert (asked[0][1].op, set(asked[0][1].of)) == ("and", set(told.of))


def test_filters_of_arrow_that_are_known_and_some_that_are_not(lake):
    field, scalar = pa.compute.field, pa.scalar

    kinds = pa.schema(
        zip(("id", "s", "f", "x"), (pa.int64(), pa.string(), pa.float64(), pa.binary()), strict=True)
    )

    def found(expression, names=("id", "s", "f", "x")):
        kinds = pa.schema(zip(names, (pa.int64(), pa.string(), pa.float64(), pa.binary()), strict=True))
        return arrowfilter.known(expression, schema_from_arrow(kinds, [names[0]]))

    inner = (field("id") == 5) & ~(field("s").isin(["a"]) | field("f").is_null())
    assert found(inner) == arrowfilter.KnownFilter(
        means("id = 5 AND NOT (s IN ('a') OR f IS NULL)", kinds), frozenset({"id", "s", "f"})
    )
    for unknown in (
        field("f") > scalar(0.5),  # NaN is greater here, and not in Arrow
        field("f").is_null(nan_is_null=True),
        field("id").isin([1, None]),
        field("id") + 1 > scalar(2),
        field("id") > field("f"),
        pa.compute.if_else(field("s").is_valid(), field("id").isin([1]), scalar(None, pa.bool_())),
        pa.compute.if_else(field("id").is_valid(), field("id").isin([1]), scalar(True)),
    ):
        assert found(unknown).where is None
        assert found(unknown & (field("id") == 1)).where == means("id = 1", kinds)
        assert found(unknown | (field("id") == 1)).where is None
    # A name that could look like the rest of an expression.
    names = ("id", "s'\nend: 'call", "f", "x")
    assert found(field("id") == 1, names) == arrowfilter.KnownFilter(None, None)
    made = lake.create("hostile", pa.schema([(name, pa.int64()) for name in names]), key=["id"])
    made.append(pa.table({name: [1, 2] for name in names}))
    assert made.to_duckdb().filter("id = 2 AND f = 2").project("x").fetchall() == [(2,)]


def test_filters_that_are_known_and_some_that_are_not():
    kinds = pa.schema([("id", pa.int64()), ("s", pa.string()), ("d", pa.decimal128(8, 2))])
    schema = schema_from_arrow(kinds, ["id"])

    def found(one):
        return polarsfilter.condition(json.loads(one.meta.serialize(format="json")), schema)

    for one, text in (
        ((col("id") > 5) & (col("s") == "it's"), "id > 5 AND s = 'it''s'"),
        (col("id").is_in([1, 2]) | (col("id") == -7), "id IN (1, 2) OR id = -7"),
        (~((col("id") < 3) | col("s").is_null()), "NOT (id < 3 OR s IS NULL)"),
        (~col("id").is_between(1, 3) & (col("id") <= 5), "id NOT BETWEEN 1 AND 3 AND id <= 5"),
        (col("s").str.starts_with("a"), "s LIKE 'a%'"),
        (~col("s").str.starts_with("a_"), "s NOT LIKE 'a!_%' ESCAPE '!'"),
    ):
        assert found(one) == means(text, kinds), text
    for unknown in (
        col("d") == 1.5,
        col("id") == 1.5,
        col("nope") == 1,
        col("id").is_in([1, None]),
        col("id") > col("id"),
    ):
        assert found(unknown) is None


@pytest.mark.promise(
    "`columns=[]` means no columns in every call", rule="`model/selection.py`, `lake/api/tablecontents.py`"
)
def test_no_columns_are_no_columns_in_every_call(collection):
    none = {"columns": []}
    assert collection.snapshot(**none).to_arrow().column_names == ["_time", "_diff"]
    assert collection.lookup(pa.table({"id": [1]}), **none).column_names == ["_time", "_diff"]
    assert (collection.to_arrow(**none).num_columns, collection.to_arrow(**none).num_rows) == (0, 3)
    assert collection.to_arrow(**none, where="id > 2").num_rows == 2
    assert collection.to_pandas(**none).shape == (3, 0)
    assert collection.to_polars(**none).collect().columns == []
    with pytest.raises(UsageError, match="DuckDB has no relations without columns"):
        collection.to_duckdb(**none)


@pytest.mark.promise(
    "A zone that is an offset is stored as UTC, the instant unchanged; an unknown zone is refused",
    rule="`data/kernel/types.py`",
)
def test_zones_that_are_offsets_are_stored_as_utc(lake):
    at = datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=5, minutes=30)))
    utc = at.astimezone(datetime.UTC)
    for n, zone in enumerate(["+05:30", "-0800", "Z", "utc", "+01"]):
        given = pa.table({"id": [1], "seen": pa.array([at], pa.timestamp("us", zone))})
        made = lake.create(f"zone{n}", given, key=["id", "seen"])
        made.append(given)
        assert str(made.schema.field("seen").type) == "timestamp[us, tz=UTC]"
        assert made.to_polars().collect()["seen"].to_list() == [utc]
        assert made.to_duckdb().project("seen = '2023-12-31 18:30Z'::timestamptz").fetchall() == [(True,)]
        assert list(made.to_pandas()["seen"]) == [utc]
        assert made.lookup(given.select(["id", "seen"])).num_rows == 1
    for zone in ("Mars/Phobos", "localtime", "Factory", "right/UTC", "CEST-2"):
        odd = pa.schema([("id", pa.int64()), ("seen", pa.list_(pa.timestamp("us", zone)))])
        with pytest.raises(UsageError, match=r"column 'seen'.*zone is unknown.*UTC"):
            lake.create("odd", odd, key=["id"])
        kind = pa.timestamp("us", zone)
        with pytest.raises(InvalidUpdates, match=r"column 'seen'.*zone is unknown"):
            made.append(pa.table({"id": [1], "seen": pa.array([1], pa.int64()).cast(kind)}))
    assert "odd" not in lake.list()
