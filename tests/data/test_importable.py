"""Polars and DuckDB import every nested column of an answer, also one that is a part of a longer column."""

import random

import pyarrow as pa
import pytest

from tidelake.data.answer.importable import check_for_duckdb, check_for_polars, hard_columns, importable
from tidelake.data.answer.rows import Rows
from tidelake.errors import UsageError
from tidelake.lake.api.embedded import Scan

polars = pytest.importorskip("polars")
duckdb = pytest.importorskip("duckdb")

NUMBERS = pa.int64()
PAIR = pa.list_(NUMBERS, 2)
ONE = pa.struct([("a", NUMBERS)])
KINDS = {
    "fixed": PAIR,
    "fixed of text": pa.list_(pa.string(), 3),
    "fixed of fixed": pa.list_(PAIR, 2),
    "fixed of list": pa.list_(pa.list_(NUMBERS), 2),
    "fixed of struct": pa.list_(ONE, 2),
    "list of fixed": pa.list_(PAIR),
    "struct with fixed": pa.struct([("a", PAIR), ("b", pa.string())]),
    "list of struct with fixed": pa.list_(pa.struct([("a", PAIR)])),
    "struct in struct": pa.struct([("a", ONE)]),
    "three structs": pa.struct([("a", pa.struct([("a", ONE)]))]),
    "struct with list of struct": pa.struct([("a", pa.list_(ONE))]),
    "list of list": pa.list_(pa.list_(NUMBERS)),
    "struct": ONE,
    "number": NUMBERS,
}


def value(kind: pa.DataType, nulls: float, rng: random.Random) -> object:
    """A random value, which is null, at each depth, with the probability `nulls`."""
    if rng.random() < nulls:
        return None
    if pa.types.is_fixed_size_list(kind):
        return [value(kind.value_type, nulls, rng) for _ in range(kind.list_size)]
    if pa.types.is_list(kind):
        return [value(kind.value_type, nulls, rng) for _ in range(rng.randrange(4))]
    if pa.types.is_struct(kind):
        return {kind.field(i).name: value(kind.field(i).type, nulls, rng) for i in range(kind.num_fields)}
    return rng.choice(["a", "text that is long"]) if pa.types.is_string(kind) else rng.randrange(100)


def parts(kind: pa.DataType) -> list[pa.Array]:
    """Parts of random columns: at the begin, at the end, within, and as a field and as items of others."""
    rng = random.Random(1)
    found = []
    for nulls in (0.0, 0.3, 1.0):
        whole = pa.array([value(kind, nulls, rng) for _ in range(40)], kind)
        cuts = [whole, *(whole.slice(at, n) for at, n in ((0, 20), (3, 20), (8, 16), (38, 2), (5, 0)))]
        found += cuts
        for cut in cuts:
            found.append(pa.StructArray.from_arrays([cut], ["f"]))
            offsets = pa.array(range(len(cut) + 1), pa.int32())
            found.append(pa.ListArray.from_arrays(offsets, cut))
            if len(cut) % 2 == 0:
                found.append(pa.FixedSizeListArray.from_arrays(cut, 2))
    return found


def plain(found: object) -> object:
    """The same value with lists for the tuples that DuckDB gives for fixed-size lists."""
    if isinstance(found, list | tuple):
        return [plain(item) for item in found]
    return {name: plain(item) for name, item in found.items()} if isinstance(found, dict) else found


@pytest.mark.promise(
    "polars and DuckDB get every nested column of an answer, also one that is a part of a longer column",
    rule="`data/answer/importable.py`",
    also=["lake/api/test_framing.py::test_parts_of_nested_columns_are_read_by_polars_and_duckdb"],
)
@pytest.mark.parametrize("name", KINDS)
def test_polars_and_duckdb_import_parts_of_nested_columns(name: str) -> None:
    with duckdb.connect() as connection:
        for array in parts(KINDS[name]):
            check_imported(array, connection)


def check_imported(array: pa.Array, connection: object) -> None:
    """Check that each library has the values of an array that is read in two batches."""
    batch, expected = pa.record_batch({"x": array}), array.to_pylist()

    def rows() -> Rows:
        return Rows(batch.schema, [batch.slice(0, 1), batch.slice(1)])

    assert rows().to_polars()["x"].to_list() == expected
    assert polars.DataFrame(rows())["x"].to_list() == expected
    assert [row for one in rows() for row in polars.from_arrow(one)["x"].to_list()] == expected
    assert plain([row[0] for row in rows().to_duckdb(connection).fetchall()]) == expected
    connection.register("t", Scan(batch.schema, lambda: iter([batch])))
    assert plain([row[0] for row in connection.execute("FROM t").fetchall()]) == expected


@pytest.mark.parametrize("name", KINDS)
def test_only_parts_are_copied(name: str) -> None:
    kind = KINDS[name]
    hard = hard_columns(pa.schema([("n", NUMBERS), ("x", kind)]))
    assert hard == (() if name in ("list of list", "struct", "number") else (1,))
    whole = pa.array([value(kind, 0.3, random.Random(i)) for i in range(20)], kind)
    batch = pa.record_batch({"n": pa.array(range(20), NUMBERS), "x": whole})
    assert importable(batch, hard) is batch
    cut = importable(batch.slice(3, 10), hard)
    assert cut.equals(batch.slice(3, 10))
    assert cut.schema.equals(batch.schema)
    assert cut.column(0).offset == 3


def test_a_fixed_size_list_without_nulls_is_not_copied() -> None:
    schema = pa.schema([("x", PAIR)])
    batch = pa.record_batch([pa.array([[i, i] for i in range(20)], PAIR)], schema=schema).slice(3, 10)
    assert importable(batch, hard_columns(schema)) is batch


@pytest.mark.parametrize(
    "kind", [pa.decimal256(39, 2), pa.float16(), pa.list_(pa.struct([("a", pa.float16())]))]
)
def test_a_type_that_a_library_lacks_is_named_with_its_column(kind):
    schema = pa.schema([("id", pa.int64()), ("odd", kind)])
    with pytest.raises(
        UsageError, match=r"column 'odd' is a .*, which DuckDB lacks: leave it out by columns="
    ):
        check_for_duckdb(schema)
    if kind == pa.decimal256(39, 2):
        with pytest.raises(UsageError, match=r"column 'odd' is a .*, which polars lacks"):
            check_for_polars(schema)
    else:
        check_for_polars(schema)
    check_for_duckdb(schema.remove(1))
