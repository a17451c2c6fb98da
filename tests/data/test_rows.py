"""Rows of an answer are printed, read once, and converted."""

import datetime
import sys
from collections.abc import Iterator
from decimal import Decimal

import pyarrow as pa
import pytest

from tidelake.data.answer.rows import SHOWN_COLUMNS, SHOWN_ROWS, Rows
from tidelake.errors import CorruptionError, UsageError
from tidelake.model.time import TimeDomain

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def batch(*ids: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(ids, pa.int64()), pa.array([f"n{i}" for i in ids])], schema=SCHEMA)


def rows(*batches: pa.RecordBatch) -> Rows:
    return Rows(SCHEMA, iter(batches))


def wide(n: int) -> Rows:
    found = pa.table({f"c{i}": [i] for i in range(n)})
    return Rows(found.schema, found.to_batches())


def test_printed_rows_are_given_to_who_reads_them_later() -> None:
    found = rows(batch(1, 2), batch(), batch(3))
    assert repr(found) == "id  name\n1   n1\n2   n2\n3   n3\n3 rows"
    assert repr(found) == repr(found)
    assert found.to_arrow()["id"].to_pylist() == [1, 2, 3]


def test_only_the_first_rows_are_read_to_be_printed() -> None:
    given = []

    def batches() -> Iterator[pa.RecordBatch]:
        for i in range(100):
            given.append(i)
            yield batch(*range(i * 8, i * 8 + 8))

    found = Rows(SCHEMA, batches())
    assert str(found).endswith(f"the first {SHOWN_ROWS} rows")
    assert len(str(found).splitlines()) == SHOWN_ROWS + 2
    assert given == [0, 1]
    assert found.read_all()["id"].to_pylist() == list(range(800))


def test_rows_that_were_taken_from_are_printed_without_reading() -> None:
    found = rows(batch(1), batch(2))
    assert found.read_next_batch() == batch(1)
    assert "ask again" in repr(found)
    assert "ask again" in found._repr_html_()
    assert [one["id"].to_pylist() for one in found] == [[2]]
    with pytest.raises(StopIteration):
        found.read_next_batch()


@pytest.mark.parametrize("columns", [0, 1, SHOWN_COLUMNS, SHOWN_COLUMNS + 1, 10_000])
def test_the_first_and_last_columns_of_many_are_printed(columns: int) -> None:
    found = wide(columns)
    head = repr(found).splitlines()[0].split()
    if columns <= SHOWN_COLUMNS:
        assert head == ([f"c{i}" for i in range(columns)] or ["Rows():", "no", "rows"])
    else:
        assert (len(head), head[-1], head[-4]) == (SHOWN_COLUMNS + 1, f"c{columns - 1}", "…")
        assert f"{SHOWN_COLUMNS} of {columns:,} columns" in repr(found)
    assert found.to_arrow().num_columns == columns


HOSTILE = "<script>alert(1)</script>\x1b[31m\u202eabc\n\x00</td>"


def test_hostile_names_and_values_are_shown_and_not_run() -> None:
    table = pa.table({HOSTILE: [HOSTILE, "x" * 1_000_000], "bytes": [b"\x1b" * 1_000_000, None]})
    for text in (
        repr(Rows(table.schema, table.to_batches())),
        Rows(table.schema, table.to_batches())._repr_html_(),
    ):
        assert len(text) < 2_000
        assert all(c.isprintable() or c == "\n" for c in text)
        assert r"\x1b[31m\u202eabc\n" in text
    assert "<script" not in text
    assert text.count("</td>") == 4


def test_each_type_of_an_arrow_table_is_printed() -> None:
    values = {
        "late": pa.array([300_000_000], pa.int32()).view(pa.date32()),
        "stamp": pa.array([2**62], pa.timestamp("us", "UTC")),
        "long": pa.array([2**63], pa.uint64()),
        "nan": pa.array([float("nan")]),
        "list": pa.array([list(range(100_000))]),
        "struct": pa.array([{"a": 1, "b": None}]),
        "duration": pa.array([7], pa.duration("s")),
        "nothing": pa.array([None], pa.null()),
        "map": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
        "dictionary": pa.array(["x"]).dictionary_encode(),
        "view": pa.array(["v"], pa.string_view()),
        "interval": pa.array([(1, 2, 3)], pa.month_day_nano_interval()),
    }
    table = pa.table(values)
    text = repr(Rows(table.schema, table.to_batches()))
    assert "300000000" in text
    assert str(2**62) in text
    assert "9223372036854775808" in text
    assert "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]" in text


def test_times_of_a_clock_are_printed_as_people_write_them() -> None:
    table = pa.table({"_time": pa.array([1_767_225_600_000], pa.int64())})
    assert "2026-01-01 00:00Z" in repr(Rows(table.schema, table.to_batches(), TimeDomain("ms")))
    assert "1767225600000" in repr(Rows(table.schema, table.to_batches(), TimeDomain()))


def failing() -> Iterator[pa.RecordBatch]:
    yield batch(1)
    raise CorruptionError("parts/x", "it is damaged")


def test_an_error_is_printed_and_still_raised_where_rows_are_read() -> None:
    found = Rows(SCHEMA, failing())
    assert "n1" in repr(found)
    assert "cannot be read further" in repr(found)
    assert found.read_next_batch() == batch(1)
    with pytest.raises(CorruptionError):
        found.read_next_batch()
    with pytest.raises(UsageError, match="ended with CorruptionError: ask for them again"):
        found.read_all()


def test_an_interrupted_read_is_never_taken_for_the_end() -> None:
    def interrupted() -> Iterator[pa.RecordBatch]:
        yield batch(1)
        raise KeyboardInterrupt

    found = Rows(SCHEMA, interrupted())
    with pytest.raises(KeyboardInterrupt):
        repr(found)
    with pytest.raises(UsageError, match="KeyboardInterrupt"):
        found.to_arrow()


def test_closed_rows_close_what_they_read_from() -> None:
    ended = []

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            yield batch(1)
            yield batch(2)
        finally:
            ended.append(True)

    with Rows(SCHEMA, batches()) as found:
        next(found)
    assert ended == [True]
    found.close()
    with pytest.raises(UsageError, match="were closed"):
        found.read_all()


def test_rows_convert_to_what_others_read() -> None:
    pytest.importorskip("pandas")
    assert rows(batch(1), batch(2)).to_pandas().to_dict("list") == {"id": [1, 2], "name": ["n1", "n2"]}
    assert rows(batch(1), batch(2)).read_pandas()["id"].tolist() == [1, 2]
    one = rows(batch(1)).to_pandas()
    one.loc[0, "id"] = 7  # its memory is its own
    assert one["id"].tolist() == [7]
    assert pa.table(rows(batch(1), batch(2))) == pa.Table.from_batches([batch(1), batch(2)])
    assert pa.RecordBatchReader.from_stream(rows(batch(1))).read_all().num_rows == 1
    printed = rows(batch(1), batch(2))
    repr(printed)
    assert pa.table(printed).num_rows == 2


def test_rows_convert_to_polars() -> None:
    polars = pytest.importorskip("polars")
    assert rows(batch(1), batch(2)).to_polars()["id"].to_list() == [1, 2]
    assert rows().to_polars().columns == ["id", "name"]
    assert polars.DataFrame(rows(batch(1)))["name"].to_list() == ["n1"]


def test_rows_convert_to_a_relation_that_is_asked_again() -> None:
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        relation = rows(batch(1), batch(2)).to_duckdb(connection)
        assert relation.filter("id > 1").fetchall() == [(2, "n2")]
        assert relation.fetchall() == [(1, "n1"), (2, "n2")]
    assert rows(batch(5)).to_duckdb().fetchall() == [(5, "n5")]


@pytest.mark.parametrize("call", ["to_arrow", "to_pandas", "to_polars", "to_duckdb"])
def test_a_second_conversion_is_refused(call: str) -> None:
    if call != "to_arrow":
        pytest.importorskip(call.removeprefix("to_"))
    found = rows(batch(1))
    getattr(found, call)()
    with pytest.raises(UsageError, match="ask again"):
        getattr(found, call)()


@pytest.mark.parametrize(
    ("call", "remedy"),
    [
        ("to_polars", r"tidelake\[polars\]"),
        ("to_duckdb", r"tidelake\[sql\]"),
        ("to_pandas", "pip install 'pandas'"),
    ],
)
def test_a_library_that_is_missing_is_named_and_no_row_is_lost(
    call: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, call.removeprefix("to_"), None)
    found = rows(batch(1))
    with pytest.raises(UsageError, match=remedy):
        getattr(found, call)()
    assert found.to_arrow().num_rows == 1


def test_a_frame_is_that_of_arrow_for_all_names_and_options():
    pandas = pytest.importorskip("pandas")
    table = pa.table(
        [
            [1, 2],
            ["a", None],
            [datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), None],
            [True, False],
            pa.array([b"", None]),
            pa.array([Decimal("1.5"), None]),
            [1.5, None],
        ],
        names=["n", "s", "t", "n", "x", "d", "f"],
    )
    for options in ({}, {"integer_object_nulls": True}, {"date_as_object": False}):
        for pieces in (table, pa.concat_tables([table, table]), table.slice(0, 0), table.select([1])):
            found = Rows(pieces.schema, pieces.to_batches()).to_pandas(**options)
            pandas.testing.assert_frame_equal(found, pieces.to_pandas(**options))
            assert found.index.equals(pieces.to_pandas(**options).index)
    none = table.select([])
    assert len(Rows(none.schema, none.to_batches()).to_pandas()) == len(none.to_pandas())
