"""Mirrors of collections in tables of Delta Lake and Iceberg, and tables with their versions as times."""

import datetime
import math
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyiceberg.catalog import load_catalog

import tidelake
from tidelake.errors import HistoryCompacted, InvalidUpdates, UsageError
from tidelake.tables import import_history, mirror

SCHEMA = pa.schema([pa.field("Id", pa.int64()), pa.field("a `b`", pa.float64()), pa.field("v", pa.string())])
FORMATS = ["delta", "iceberg"]


class Place:
    """Tables of one format in a folder."""

    def __init__(self, format_: str, folder: Path) -> None:
        self.format, self.folder = format_, folder
        self.options: dict[str, str] = {}
        if format_ == "iceberg":
            folder.mkdir(parents=True, exist_ok=True)
            self.options = {
                "type": "sql",
                "uri": f"sqlite:///{folder}/catalog.db",
                "warehouse": folder.as_uri(),
            }
            self.catalog = load_catalog("here", **self.options)
            self.catalog.create_namespace_if_not_exists("db")

    def name(self, table: str) -> str:
        return str(self.folder / table) if self.format == "delta" else f"here.db.{table}"

    def rows(self, table: str) -> pa.Table:
        if self.format == "delta":
            return pa.table(DeltaTable(self.name(table)).scan())
        return self.catalog.load_table(f"db.{table}").scan().to_arrow()

    def write(self, table: str, rows: pa.Table, mode: str) -> None:
        if self.format == "delta":
            write_deltalake(
                self.name(table), rows, mode=mode, schema_mode="merge" if mode == "append" else None
            )
            return
        if not self.catalog.table_exists(f"db.{table}"):
            self.catalog.create_table(f"db.{table}", schema=rows.schema)
        found = self.catalog.load_table(f"db.{table}")
        with found.transaction() as transaction:
            with transaction.update_schema() as update:
                update.union_by_name(rows.schema)
            if mode == "append":
                transaction.append(rows)
            else:
                transaction.overwrite(rows)

    def mirror(self, collection: Any, table: str = "t", **how: Any) -> Any:
        return mirror(collection, self.name(table), format=self.format, options=self.options, **how)

    def take(self, lake: Any, name: str, table: str = "t", **how: Any) -> Any:
        return import_history(lake, name, self.name(table), format=self.format, options=self.options, **how)


@pytest.fixture(params=FORMATS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(request.param, tmp_path / "tables")


def _bag(table: pa.Table, names: list[str] | None = None) -> Counter[Any]:
    """The rows as a multiset; NaNs are equal."""

    def plain(value: Any) -> Any:
        return "NaN" if isinstance(value, float) and math.isnan(value) else value

    rows = table.select(names or table.column_names).to_pylist()
    return Counter(tuple(plain(v) for v in row.values()) for row in rows)


_ROWS = st.tuples(
    st.sampled_from([None, 0, 1, 2]),
    st.sampled_from([None, 0.0, 1.5, math.nan]),
    st.sampled_from([None, "", "x"]),
)
_STEPS = st.lists(st.tuples(st.dictionaries(_ROWS, st.integers(1, 2), max_size=5), st.booleans()), max_size=5)


@pytest.mark.promise(
    "A mirror has the rows of its time, also with nulls, NaNs and repeated rows; a run that is "
    "repeated, or meets another one, adds nothing twice",
    rule=(
        "`tables/mirroring.py`: the time is stored by the commit that brings the table there, from the "
        "version in which the last one was read"
    ),
    also=[
        "::test_a_second_run_writes_what_has_changed_and_a_third_nothing",
        "::test_two_runs_at_once_add_nothing_twice",
        "::test_changes_are_added_each_once",
    ],
)
@pytest.mark.parametrize("format_", FORMATS)
@settings(max_examples=4)
@example(steps=[({(None, None, "x"): 2, (None, math.nan, ""): 1, (1, 0.0, None): 1}, True), ({}, True)])
@given(steps=_STEPS)
def test_a_mirror_has_the_rows_of_its_time(tmp_path_factory: Any, format_: str, steps: Any) -> None:
    """Whatever changes, and whenever the mirror runs: nulls, NaNs and repeated rows in keys and values."""
    folder = tmp_path_factory.mktemp("mirror")
    place = Place(format_, folder / "tables")
    with tidelake.open(folder / "lake") as lake:
        of = lake.create("c", SCHEMA, key=["Id", "a `b`"])
        of.append(pa.Table.from_pylist([{"Id": 1, "a `b`": 0.0, "v": "x"}], SCHEMA))
        for contents, runs in steps:
            table = pa.Table.from_pylist(
                [dict(zip(SCHEMA.names, row, strict=True)) for row in contents], SCHEMA
            )
            counted = table.append_column("_diff", pa.array(list(contents.values()), pa.int64()))
            of.replace(counted, time=of.last_time() + 1)
            if runs:
                report = place.mirror(of)
                assert report.through == of.last_time()
                assert _bag(place.rows("t"), SCHEMA.names) == _bag(of.to_arrow())
        place.mirror(of)
        assert _bag(place.rows("t"), SCHEMA.names) == _bag(of.to_arrow())


def test_a_second_run_writes_what_has_changed_and_a_third_nothing(tmp_path: Path, place: Place) -> None:
    with tidelake.open(tmp_path / "lake") as lake:
        of = lake.create("c", {"id": "int64", "n": "int64"}, key=["id"])
        of.append(pa.table({"id": range(100), "n": range(100)}))
        assert (place.mirror(of).rows, place.mirror(of).rows) == (100, 0)
        of.upsert(pa.table({"id": [7, 200], "n": [70, 1]}))
        of.append(pa.table({"id": [3], "n": [3], "_diff": [-1]}))
        report = place.mirror(of, as_of=of.last_time())
        assert (report.keys, report.rows, report.after) == (3, 2, 0)
        assert _bag(place.rows("t")) == _bag(of.to_arrow())
        # A time that has no change of rows is stored too, so that history before it may go.
        of.append(pa.table({"id": [3, 3], "n": [3, 3], "_time": [8, 8], "_diff": [1, -1]}))
        assert place.mirror(of).after == 2
        of.advance_since(8)
        assert place.mirror(of).rows == 0


def test_changes_are_added_each_once(tmp_path: Path, place: Place) -> None:
    with tidelake.open(tmp_path / "lake") as lake:
        of = lake.create("c", {"id": "int64", "n": "int64"}, key=["id"])
        for time in range(4):
            of.upsert(pa.table({"id": [1, time], "n": [time, 0]}), time=time)
            place.mirror(of, "log", holds="changes")
        place.mirror(of, "log", holds="changes")
        assert _bag(place.rows("log")) == _bag(of.updates(0, 4).to_arrow())


def test_two_runs_at_once_add_nothing_twice(tmp_path: Path, place: Place) -> None:
    """The second one is refused by the table, also if its rows would fit behind those of the first."""
    from tidelake.tables import mirroring

    with tidelake.open(tmp_path / "lake") as lake:
        of = lake.create("c", {"id": "int64"}, key=["id"])
        of.append(pa.table({"id": [1]}))
        place.mirror(of, holds="changes")
        of.append(pa.table({"id": [2]}))
        target = mirroring._target(place.name("t"), place.format, place.options)
        work = mirroring._Work(of, target, "changes", of.last_time())
        assert work.had() == 0
        place.mirror(of, holds="changes")
        with pytest.raises(UsageError, match="another writer meanwhile"):
            work.add_changes(0)
        assert _bag(place.rows("t")) == _bag(of.updates(0, 2).to_arrow())


def test_what_a_mirror_cannot_do_is_refused_with_the_remedy(tmp_path: Path, place: Place) -> None:
    with tidelake.open(tmp_path / "lake") as lake:
        of = lake.create("c", {"id": "int64", "n": "int64"}, key=["id"])
        other = lake.create("d", {"id": "int64", "n": "int64"}, key=["id"])
        for one in (of, other):
            one.append(pa.table({"id": [1], "n": [1]}))
            one.append(pa.table({"id": [2], "n": [1]}))
        place.mirror(of)
        with pytest.raises(UsageError, match=r"no mirror of the contents of 'd'.*afresh=True"):
            place.mirror(other)
        with pytest.raises(UsageError, match=r"no mirror of the changes of 'c'"):
            place.mirror(of, holds="changes")
        with pytest.raises(UsageError, match=r"through 1, later than 0"):
            place.mirror(of, as_of=0)
        of.append(pa.table({"id": [3], "n": [1]}))
        of.append(pa.table({"id": [4], "n": [1]}))
        with pytest.raises(UsageError, match=r"column 'n' is int64 in table .* and absent"):
            place.mirror(of, columns=["id"])
        of.advance_since(3)
        with pytest.raises(HistoryCompacted, match="afresh=True"):
            place.mirror(of)
        assert place.mirror(of, afresh=True).rows == 4
        assert _bag(place.rows("t")) == _bag(of.to_arrow())
        of.append(pa.table({"id": [9], "n": [9], "_diff": [-1]}))
        for afresh in (False, True):
            with pytest.raises(InvalidUpdates, match="multiplicity -1"):
                place.mirror(of, afresh=afresh)
        with pytest.raises(UsageError, match="format='hudi' is unknown"):
            mirror(of, "t", format="hudi")  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="leaves key column 'id' out"):
            place.mirror(of, columns=["n"])


@pytest.mark.promise(
    "A column of a mirror is the column of the collection that has its name: two that changed "
    "names, one that was dropped and added again, and columns that change during a run are refused; "
    "so are names that differ by case only",
    rule=(
        "`tables/mirroring.py` (`_Work`): the mark has the id of the schema, whose column ids are "
        "compared with those of now; `tables/plaintypes.py`"
    ),
    also=[
        "::test_columns_that_change_while_a_mirror_reads_are_refused",
        "::test_names_that_differ_by_case_are_refused_by_both_names",
    ],
)
@pytest.mark.parametrize("holds", ["contents", "changes"])
def test_a_name_that_now_means_another_column_is_refused(tmp_path: Path, place: Place, holds: str) -> None:
    """Two columns that changed names, and one that was dropped and added again, also if it comes back."""
    with tidelake.open(tmp_path / "lake") as lake:
        of = lake.create("c", {"id": "int64", "a": "int64", "b": "int64"}, key=["id"])
        of.append(pa.table({"id": [1], "a": [10], "b": [20]}))
        place.mirror(of, holds=holds)
        for old, new in (("a", "x"), ("b", "a"), ("x", "b")):
            of.evolve(rename={old: new})
        of.append(pa.table({"id": [2], "a": [2], "b": [1]}))
        with pytest.raises(UsageError, match=r"column '[ab]' of table .* is not the column .*afresh=True"):
            place.mirror(of, holds=holds)
        if place.format == "iceberg":  # the columns are in another order
            place.catalog.drop_table("db.t")
        assert place.mirror(of, holds=holds, afresh=True).rows == 2
        # A stale handle reads the columns of now.
        stale = tidelake.open(tmp_path / "lake").collection("c")
        of.evolve(pa.schema([("id", pa.int64()), ("b", pa.int64())]), drop=["a"])
        of.evolve(pa.schema([("id", pa.int64()), ("b", pa.int64()), ("a", pa.int64())]))
        for one in (of, stale):
            with pytest.raises(UsageError, match="column 'a' of table"):
                place.mirror(one, holds=holds)
        wanted = of.to_arrow() if holds == "contents" else of.updates(0, of.upper).to_arrow()
        place.mirror(stale, holds=holds, afresh=True)
        assert _bag(place.rows("t"), wanted.column_names) == _bag(wanted)


def test_columns_that_change_while_a_mirror_reads_are_refused(tmp_path: Path) -> None:
    from tidelake.tables import mirroring

    with tidelake.open(tmp_path / "lake") as lake:
        of = lake.create("c", {"id": "int64", "a": "int64"}, key=["id"])
        of.append(pa.table({"id": [1], "a": [10]}))
        target = mirroring._target(str(tmp_path / "t"), "delta", {})
        work = mirroring._Work(of, target, "contents", 0)
        of.evolve(rename={"a": "b"})
        of.evolve(of.schema.append(pa.field("a", pa.int64())))
        with pytest.raises(UsageError, match="columns of 'c' changed while it was read"):
            work.write_all()
        assert not target.exists()


def test_names_that_differ_by_case_are_refused_by_both_names(tmp_path: Path, place: Place) -> None:
    with tidelake.open(tmp_path / "lake") as lake:
        of = lake.create("c", {"id": "int64", "Straße": "int64", "STRASSE": "int64"}, key=["id"])
        of.append(pa.table({"id": [1], "Straße": [10], "STRASSE": [20]}))
        with pytest.raises(UsageError, match="columns 'Straße' and 'STRASSE' differ by case only"):
            place.mirror(of)
        place.mirror(of, columns=["id", "STRASSE"])
        assert place.rows("t").to_pylist() == [{"id": 1, "STRASSE": 20}]


def _in_utc(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "ms": row["ms"] and row["ms"].astimezone(datetime.UTC)}


@pytest.mark.promise(
    "Values in a mirror are those of the collection; a type that would change them is refused",
    rule="`tables/plaintypes.py`",
)
def test_values_of_every_type_that_fits_come_back(tmp_path: Path, place: Place) -> None:
    when = datetime.datetime(2026, 11, 1, 12, 0, 0, 123000, tzinfo=datetime.UTC)
    columns = {
        "id": pa.array([2**64 - 1, 0, None], pa.uint64()),
        "i8": pa.array([-1, None, 1], pa.int8()),
        "u32": pa.array([2**32 - 1, None, 1], pa.uint32()),
        "f16": pa.array([1.5, None, 1], pa.float32()).cast(pa.float16()),
        "ms": pa.array([when, None, when], pa.timestamp("ms", tz="Europe/Rome")),
        "naive": pa.array([when.replace(tzinfo=None), None, None], pa.timestamp("us")),
        "dec": pa.array([Decimal("1.25"), None, None], pa.decimal128(38, 2)),
        "fixed": pa.array([b"ab", None, b"cd"], pa.binary(2)),
        "list": pa.array([[1, None], None, []], pa.list_(pa.int16())),
        "struct": pa.array([{"a": "x"}, None, {"a": None}], pa.struct([pa.field("a", pa.string())])),
        "date": pa.array([when.date(), None, None], pa.date32()),
        "bool": pa.array([True, None, False]),
    }
    table = pa.table(columns)
    with tidelake.open(tmp_path / "lake") as lake:
        of = lake.create("c", table, key=["id"])
        of.append(table)
        place.mirror(of)
        of.append(table.slice(0, 1).append_column("_diff", pa.array([-1])))
        of.append(table.slice(0, 1))
        of.upsert(table.slice(1, 1).set_column(1, "i8", pa.array([5], pa.int8())))
        place.mirror(of)
        found = sorted(place.rows("t").to_pylist(), key=lambda row: (row["id"] is None, row["id"]))
        assert [*map(_in_utc, found)] == [*map(_in_utc, of.to_arrow().to_pylist())]
        bad = lake.create("bad", {"id": "int64", "d": "duration[s]"}, key=["id"])
        bad.append(pa.table({"id": [1], "d": pa.array([1], pa.duration("s"))}))
        with pytest.raises(UsageError, match=r"column 'd' has type duration\[s\]"):
            place.mirror(bad, "bad")


@pytest.mark.promise(
    "Each version of an imported table is taken once, in order",
    rule="numbers of a named writer, `tables/history.py`",
    also=[
        "::test_times_of_a_clock_are_those_of_the_commits_and_never_go_back",
        "::test_what_cannot_be_imported_is_refused",
    ],
)
def test_versions_become_times_each_once(tmp_path: Path, place: Place) -> None:
    """Also with a column that a version adds, rows that repeat, and versions that come later."""
    narrow = pa.schema([("id", pa.int64()), ("n", pa.int32())])
    place.write("t", pa.table({"id": [1, 2, 2], "n": [1, 2, 2]}, narrow), "append")
    place.write("t", pa.table({"id": [3], "n": [3]}, narrow), "append")
    with tidelake.open(tmp_path / "lake") as lake:
        with pytest.raises(UsageError, match="name its key columns"):
            place.take(lake, "c")
        lake.create("days", narrow, key=["id"], time="date")
        for name in ("c", "days"):
            with pytest.raises(UsageError, match=f"times of '{name}' are days, and there may be several"):
                place.take(lake, name, key=["id"], time_unit="date")
        assert lake.list() == ["days"]
        first = place.take(lake, "c", key=["id"])
        wide = narrow.append(pa.field("s", pa.string()))
        place.write("t", pa.table({"id": [4], "n": [None], "s": ["x"]}, wide), "append")
        place.write("t", pa.table({"id": [5], "n": [5], "s": ["y"]}, wide), "overwrite")
        second, third = place.take(lake, "c"), place.take(lake, "c")
        # Iceberg's sequence numbers begin with 1, and its overwrite is a delete and an append.
        start, later = (0, 2) if place.format == "delta" else (1, 3)
        assert (first.versions, second.versions, third.versions) == (2, later, 0)
        assert (second.first, third.first, third.rows) == (start + 2, None, 0)
        of = lake.collection("c")
        assert of.to_arrow(start, columns=["id"])["id"].to_pylist() == [1, 2, 2]
        assert of.to_arrow(start + 1, columns=["id"])["id"].to_pylist() == [1, 2, 2, 3]
        assert of.to_arrow(start + 2)["s"].to_pylist() == [None, None, None, None, "x"]
        assert of.to_arrow(second.through).to_pylist() == place.rows("t").to_pylist()
        assert of.last_time() == second.through == third.through


def test_times_of_a_clock_are_those_of_the_commits_and_never_go_back(tmp_path: Path, place: Place) -> None:
    earliest = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=5)
    for n in range(3):
        place.write("t", pa.table({"id": [n]}), "append")
    latest = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=5)
    with tidelake.open(tmp_path / "lake") as lake:
        report = place.take(lake, "c", key=["id"], time_unit="us")
        of = lake.collection("c")
        at = [of.history(n, times="int64")["_time"].to_pylist() for n in range(3)]
        assert (report.versions, [len(times) for times in at]) == (3, [1, 1, 1])
        assert at[0] < at[1] < at[2]
        first, last = at[0][0], report.through
        assert earliest.timestamp() * 1e6 < first < last < latest.timestamp() * 1e6


def test_what_cannot_be_imported_is_refused(tmp_path: Path, place: Place) -> None:
    with tidelake.open(tmp_path / "lake") as lake:
        with pytest.raises(UsageError, match="there is no"):
            place.take(lake, "c", "absent", key=["id"])
        place.write("t", pa.table({"id": [1]}), "append")
        place.write("u", pa.table({"id": [1]}), "append")
        with pytest.raises(UsageError, match="first=77"):
            place.take(lake, "c", key=["id"], first=77)
        place.take(lake, "c", key=["id"])
        with pytest.raises(UsageError, match="versions of another table"):
            place.take(lake, "c", "u")
