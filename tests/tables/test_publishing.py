"""Published tables: other engines read the stored parts of a collection, and exactly its contents."""

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.table import StaticTable

import inside
import tidelake
from killed import killed
from tidelake.config import Config
from tidelake.errors import CollectionInUse, InvalidUpdates, UsageError
from tidelake.tables import PublishReport, publish, unpublish
from tidelake.tables.publishedfiles import TableFile
from tiers import examples

FORMATS = ["delta", "iceberg"]
# No part is inline, and what is not needed goes at once.
CONFIG = Config(inline_part_bytes=0, garbage_age_s=0, merge_budget_s=0)
SCHEMA = pa.schema([("id", pa.int64()), ("price", pa.float64()), ("note", pa.string())])


@pytest.fixture(params=FORMATS)
def format_(request: pytest.FixtureRequest) -> str:
    return request.param


def bag(table: pa.Table) -> Counter[Any]:
    """The rows with their names, as a multiset; NaNs are equal."""

    def plain(value: Any) -> Any:
        return "NaN" if isinstance(value, float) and math.isnan(value) else value

    return Counter(tuple((name, plain(v)) for name, v in row.items()) for row in table.to_pylist())


def files(folder: Path, ending: str) -> list[Path]:
    return sorted(filter(Path.is_file, folder.rglob(f"*{ending}")), key=lambda path: path.name)


def versions(folder: Path, format_: str) -> Iterator[tuple[int, pa.Table]]:
    """The versions that a reader of the folder finds, oldest first: the time of each, and its rows."""
    if format_ == "delta":
        numbers = sorted({int(path.name.partition(".")[0]) for path in files(folder, ".json")})
        for number in numbers:
            table = DeltaTable(folder, version=number)
            yield int(table.metadata().configuration["tidelake.time"]), pa.table(table.scan())
        return
    known = sorted(files(folder, ".metadata.json"), key=lambda path: int(path.name.split(".")[0][1:]))
    if known:
        table = StaticTable.from_metadata(str(known[-1]))
        for snapshot in table.metadata.snapshots:
            time = int(snapshot.summary["tidelake.time"])
            yield time, table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()


def folder_of(report: PublishReport) -> Path:
    return Path(report.table.removeprefix("file://"))


def read(report: PublishReport) -> pa.Table:
    return [*versions(folder_of(report), report.format)][-1][1]


def check(of: Any, format_: str, **how: Any) -> PublishReport:
    """Publish, and compare what a reader finds with the collection."""
    report = publish(of, format=format_, **how)
    found, wanted = read(report), of.to_arrow()
    assert found.column_names == wanted.column_names
    assert bag(found) == bag(wanted)
    assert not publish(of, format=format_, **how).changed
    return report


def rows(ids: Any, add: float = 0.0, diff: int | None = None) -> pa.Table:
    made = pa.table(
        {"id": [*ids], "price": [i + add for i in ids], "note": [f"n{i % 3}" for i in ids]}, SCHEMA
    )
    return made if diff is None else made.append_column("_diff", pa.array([diff] * len(made), pa.int64()))


_KEYS = st.sampled_from([None, 0, 1, 2, 3])
_ROW = st.tuples(_KEYS, st.sampled_from([None, 0.0, 1.5, math.nan]), st.sampled_from([None, "", "x"]))
_STEP = st.one_of(
    st.dictionaries(_ROW, st.integers(1, 3), max_size=6),
    st.sampled_from(
        [
            "rename",
            "rename back",
            "swap",
            "add",
            "drop",
            "widen",
            "erase",
            "maintain",
            "merge",
            "publish",
            "publish",
        ]
    ),
)


@pytest.mark.promise(
    "A published table has the rows of its time, each as often as its multiplicity, and the columns of then; "
    "so has each earlier version that is kept",
    rule="`tables/publishing.py`, `shard/reading/inplace.py`: parts in place and rows apart are the snapshot",
    also=["tables/test_engines.py::test_every_engine_reads_the_snapshot"],
)
@pytest.mark.parametrize("format_", FORMATS)
@settings(max_examples=examples(30))
@given(steps=st.lists(_STEP, max_size=10))
def test_a_published_table_has_the_rows_of_its_time(
    tmp_path_factory: Any, format_: str, steps: list[Any]
) -> None:
    """Whatever was written, and however the columns have changed since."""
    folder = tmp_path_factory.mktemp("published")
    with tidelake.open(folder / "lake", config=CONFIG) as lake:
        of = lake.create("c", SCHEMA, key=["id"])
        of.append(rows([1, 2]))
        wanted: list[tuple[int, Counter[Any]]] = []
        for step in [*steps, "publish"]:
            if step == "publish":
                report = check(of, format_, keep=3)
                wanted += [(report.through, bag(of.to_arrow()))] if report.changed else []
                assert [(time, bag(found)) for time, found in versions(folder_of(report), format_)] == wanted[
                    -3:
                ]
            elif step == "erase":
                of.erase([1], reason="ticket")
                wanted = []
            else:
                change(of, step)


def change(of: Any, step: Any) -> None:
    names = of.schema.names
    match step:
        case "rename" | "rename back":
            one, other = ("price", "cost") if step == "rename" else ("cost", "price")
            if one in names and other not in names:
                of.evolve(rename={one: other})
        case "swap":
            if len(names) > 2 and of.schema.field(names[1]).type != of.schema.field(names[2]).type:
                for one, other in ((names[1], "was"), (names[2], names[1]), ("was", names[2])):
                    of.evolve(rename={one: other})
        case "add":
            if "price" not in names:
                of.evolve(pa.schema([*of.schema, pa.field("price", pa.int32())]))
        case "drop":
            if len(names) > 2:
                of.evolve(pa.schema([f for f in of.schema if f.name != names[1]]), drop=[names[1]])
        case "widen":
            wider = [f.with_type(pa.int64()) if f.type == pa.int32() else f for f in of.schema]
            of.evolve(pa.schema(wider))
        case "maintain":
            of.advance_since(of.last_time())
            of.maintain()
            of.collect(thorough=True)
        case "merge":
            of.merge()
        case _:
            replace(of, step)


def replace(of: Any, contents: dict[Any, int]) -> None:
    """Replace the contents by rows that fit the columns of now."""

    def fitting(field: pa.Field, row: Any) -> Any:
        if field.name == "id":
            return row[0]
        return (
            row[2]
            if pa.types.is_string(field.type)
            else row[1]
            if pa.types.is_floating(field.type)
            else row[0]
        )

    columns = {f.name: [fitting(f, row) for row in contents] for f in of.schema}
    table = pa.table(columns, of.schema)
    diffs = pa.array(list(contents.values()), pa.int64())
    counted = table.append_column("_diff", diffs).group_by(table.column_names).aggregate([("_diff", "sum")])
    names = [*table.column_names, "_diff"]
    of.replace(counted.rename_columns(names).select(names), time=of.last_time() + 1)


@pytest.mark.full
def test_parts_stay_where_they_are_and_only_changes_are_copied(tmp_path: Path, format_: str) -> None:
    with tidelake.open(tmp_path / "lake", config=CONFIG) as lake:
        of = lake.create("c", SCHEMA, key=["id"])
        of.append(rows(range(40_000)))
        first = check(of, format_)
        assert (first.rows, first.copied, first.changed) == (40_000, 0, True)
        of.upsert(rows([3, 50_000], 0.5))
        of.append(rows([7], diff=-1))
        of.append(rows([8], diff=2))
        report = check(of, format_)
        assert (report.rows, report.copied) == (40_002, 5)
        # So much has changed that a base costs less than a copy of all changes at each run.
        of.upsert(rows(range(30_000), 1))
        of.upsert(rows(range(36_000), 2))
        report = check(of, format_)
        assert report.copied <= 5 and len(of.state().bases) == 1
        assert [time for time, _ in versions(folder_of(report), format_)] == [0, 3, 5]


@pytest.mark.promise(
    "What a published table names is not deleted while one of its kept versions names it, and then it is",
    rule="`shard/upkeep/publications.py`: a hold without an end pins the states of the kept versions",
)
def test_the_parts_of_kept_versions_stay_and_others_go(tmp_path: Path, format_: str) -> None:
    with tidelake.open(tmp_path / "lake", config=CONFIG) as lake:
        of = lake.create("c", SCHEMA, key=["id"])
        for i in range(6):
            of.replace(rows(range(i, i + 20), i), time=i)
            report = publish(of, format=format_, keep=2)
            of.advance_since(i)
            of.maintain()
            of.collect(thorough=True)
            found = [*versions(folder_of(report), format_)]
            assert [time for time, _ in found] == [i - 1, i][i == 0 :]
            assert all(bag(table) == bag(rows(range(t, t + 20), t)) for t, table in found)
        parts = files(tmp_path / "lake" / "blobs" / of.id / "parts", ".parquet")
        assert len(parts) <= 5
        with pytest.raises(CollectionInUse, match=f"published as {format_}.*unpublish"):
            lake.drop("c")
        assert unpublish(of, format=format_) and not unpublish(of, format=format_)
        of.collect(thorough=True)
        assert len(files(tmp_path / "lake" / "blobs" / of.id / "parts", ".parquet")) == 1
        assert not files(folder_of(report), "")
        assert not lake.fsck().findings
        publish(of, format=format_)
        assert not lake.fsck().findings
        lake.drop("c", force=True)
        assert not files(tmp_path / "lake" / "blobs" / of.id, "")


@pytest.mark.promise(
    "An erased row is in no version of a published table: the table ends with the erasure, also if the "
    "process dies, or another one was publishing",
    rule="`shard/upkeep/publications.py`: `withdraw_erased`; `keep` refuses states from before an erasure",
    also=["::test_an_erasure_meets_a_run_that_publishes"],
)
@pytest.mark.parametrize("dies", [False, True])
def test_an_erased_row_cannot_be_read(tmp_path: Path, format_: str, dies: bool, monkeypatch: Any) -> None:
    with tidelake.open(tmp_path / "lake", config=CONFIG) as lake:
        of = lake.create("c", SCHEMA, key=["id"])
        of.append(rows(range(50)))
        of.upsert(rows([3], 0.5))
        report = publish(of, format=format_)
        if dies:
            with monkeypatch.context() as patch:
                patch.setattr("tidelake.shard.upkeep.publications.withdraw", _die)
                with pytest.raises(KeyboardInterrupt):
                    of.erase([3], reason="ticket")
            of.maintain()
        else:
            of.erase([3], reason="ticket")
        assert not files(folder_of(report), "")
        assert not any("published" in hold for hold in of.state().holds)
        assert check(of, format_).rows == 49


def _die(*_: Any) -> None:
    raise KeyboardInterrupt


def test_a_row_that_was_erased_in_a_source_is_in_no_table_of_a_copy(tmp_path: Path, format_: str) -> None:
    with tidelake.open(tmp_path / "lake") as lake, tidelake.open(tmp_path / "copy") as other:
        of = lake.create("c", SCHEMA, key=["id"])
        of.append(rows(range(50)))
        lake.copy(tmp_path / "copy")
        report = publish(other.collection("c"), format=format_)
        of.erase([3], reason="ticket")
        lake.copy(tmp_path / "copy")
        assert not files(folder_of(report), "")
        assert check(other.collection("c"), format_).rows == 49


def at_commit(lake: Any, format_: str, meanwhile: Any) -> None:
    """Do something right before the first commit of a published table."""
    blobs = inside.stores(lake).blobs
    put, done = blobs.put, []

    def instead(name: str, data: bytes) -> None:
        if name.endswith(".json") and not done:
            done.append(name)
            meanwhile()
        put(name, data)

    blobs.put = instead


def test_an_erasure_meets_a_run_that_publishes(tmp_path: Path, format_: str) -> None:
    with tidelake.open(tmp_path / "lake", config=CONFIG) as lake, tidelake.open(tmp_path / "lake") as other:
        lake.create("c", SCHEMA, key=["id"]).append(rows(range(50)))
        at_commit(lake, format_, lambda: other.collection("c").erase([3], reason="ticket"))
        report = publish(lake.collection("c"), format=format_)
        assert bag(read(report)) == bag(rows([*range(3), *range(4, 50)]))
        assert [time for time, _ in versions(folder_of(report), format_)] == [0]


@pytest.mark.parametrize("dies", [False, True])
def test_what_is_put_after_an_erasure_goes(
    tmp_path: Path, format_: str, dies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that began before it puts files with erased rows after its table was deleted."""
    with tidelake.open(tmp_path / "lake", config=CONFIG) as lake, tidelake.open(tmp_path / "lake") as other:
        of, too = lake.create("c", SCHEMA, key=["id"]), other.collection("c")
        of.append(rows(range(50)))
        publish(of, format=format_)
        of.upsert(rows([3], 0.5))

        def meanwhile() -> None:
            too.erase([3], reason="ticket")
            if dies:
                monkeypatch.setattr(TableFile, "__init__", _die)

        done = stopped(lake, "put", 1, meanwhile)
        if dies:
            with pytest.raises(KeyboardInterrupt):
                publish(of, format=format_)
            monkeypatch.undo()
        else:
            publish(of, format=format_)
        of.collect(thorough=True)
        late = tmp_path / "lake" / "blobs" / done[0]
        assert "/data/" in done[0] and not late.exists()


def test_two_runs_at_once_publish_once(tmp_path: Path, format_: str) -> None:
    with tidelake.open(tmp_path / "lake", config=CONFIG) as lake, tidelake.open(tmp_path / "lake") as other:
        of = lake.create("c", SCHEMA, key=["id"])
        of.append(rows(range(50)))
        at_commit(lake, format_, lambda: publish(other.collection("c"), format=format_))
        report = publish(of, format=format_)
        assert not report.changed and bag(read(report)) == bag(of.to_arrow())
        assert len(files(folder_of(report), ".json")) == 1


def stopped(lake: Any, call: str, nth: int, meanwhile: Any) -> list[str]:
    """Do something right before the nth call of the store for a published table; a list, empty if never."""
    blobs = inside.stores(lake).blobs
    real, seen, done = getattr(blobs, call), [], list[str]()

    def instead(name: str, *more: Any) -> Any:
        if "/published/" in name:
            seen.append(name)
            if len(seen) == nth and not done:
                done.append(name)
                meanwhile()
        return real(name, *more)

    setattr(blobs, call, instead)
    return done


def test_what_another_run_has_pinned_stays(tmp_path: Path, format_: str) -> None:
    with tidelake.open(tmp_path / "lake", config=CONFIG) as lake, tidelake.open(tmp_path / "lake") as other:
        of, too = lake.create("c", SCHEMA, key=["id"]), other.collection("c")
        of.append(rows(range(50)))

        def meanwhile() -> None:
            too.append(rows(range(50, 60)))
            publish(too, format=format_)

        # The first run has its version, and tidies up.
        done = stopped(lake, "put", {"delta": 2, "iceberg": 4}[format_], meanwhile)
        report = publish(of, format=format_)
        assert "checkpoint" in done[0] or "hint" in done[0]
        of.replace(rows([1]))
        of.advance_since(of.last_time())
        of.maintain()
        of.collect(thorough=True)
        found = [(time, len(table)) for time, table in versions(folder_of(report), format_)]
        assert found == [(0, 50), (1, 60)]


@pytest.mark.full
@pytest.mark.parametrize("what", ["publish", "unpublish"])
@pytest.mark.parametrize("call", ["list", "get", "put"])
def test_runs_meet_anywhere(tmp_path: Path, format_: str, what: str, call: str) -> None:
    """Versions stay in order, whole and readable, and no run fails."""
    for nth in range(1, 20):
        place = tmp_path / str(nth)
        with tidelake.open(place, config=CONFIG) as lake, tidelake.open(place, config=CONFIG) as other:
            of, too = lake.create("c", SCHEMA, key=["id"]), other.collection("c")
            of.append(rows(range(50)))
            for i in (1, 2):
                of.upsert(rows([i], 0.5))
                publish(of, format=format_, keep=2)
            of.upsert(rows([3], 0.5))

            def meanwhile(too: Any = too) -> None:
                if what == "publish":
                    too.append(rows(range(50, 60)))
                    publish(too, format=format_, keep=2)
                else:
                    unpublish(too, format=format_)

            done = stopped(lake, call, nth, meanwhile)
            report = publish(of, format=format_, keep=2)
            if not done:
                return
            last = of.last_time()
            of.replace(rows([1]))
            of.maintain()
            of.collect(thorough=True)
            found = [*versions(folder_of(report), format_)]
            times = [time for time, _ in found]
            assert times == sorted(times) and times[-1] == last
            assert all(bag(table) == bag(of.to_arrow(time)) for time, table in found)
            check(of, format_, keep=2)
    raise AssertionError("the calls have no end")


@pytest.mark.promise(
    "A run that is killed leaves a published table as it was, or the new version; the next run repairs it",
    rule="`PublishedTable.commit`: one new file is the commit",
)
@pytest.mark.parametrize("format_", FORMATS)
def test_a_run_that_is_killed_leaves_whole_versions(tmp_path: Path, format_: str) -> None:
    prepared = tmp_path / "lake"
    with tidelake.open(prepared, config=CONFIG) as lake:
        of = lake.create("c", SCHEMA, key=["id"])
        of.append(rows(range(30)))
        of.upsert(rows([3], 0.5))

    def work(place: Path) -> None:
        with tidelake.open(place, config=CONFIG) as lake:
            of = lake.collection("c")
            publish(of, format=format_, keep=1)
            of.upsert(rows([4], 0.5))
            publish(of, format=format_, keep=1)

    for place in killed(prepared, work, fast=12):
        with tidelake.open(place, config=CONFIG) as lake:
            of = lake.collection("c")
            folder = place / "blobs" / of.id / "published" / format_
            for time, found in versions(folder, format_):
                assert bag(found) == bag(of.to_arrow(time))
            check(of, format_, keep=1)
            of.upsert(rows([5], 0.5))
            report = check(of, format_, keep=1)
            assert [time for time, _ in versions(folder, format_)] == [of.last_time()]
            wanted = {"delta": 4, "iceberg": 8}[format_]
            assert len(files(folder_of(report), "")) <= wanted
            assert not lake.fsck().findings


def test_a_lake_that_has_moved_is_published_afresh(tmp_path: Path, format_: str) -> None:
    with tidelake.open(tmp_path / "lake", config=CONFIG) as lake:
        of = lake.create("c", SCHEMA, key=["id"])
        of.append(rows(range(50)))
        publish(of, format=format_)
    (tmp_path / "lake").rename(tmp_path / "moved")
    with tidelake.open(tmp_path / "moved", config=CONFIG) as lake:
        report = check(lake.collection("c"), format_)
        assert report.changed and report.table.startswith(f"file://{tmp_path}/moved")


def test_a_lake_that_is_opened_by_a_link_has_not_moved(tmp_path: Path, format_: str) -> None:
    with tidelake.open(tmp_path / "lake", config=CONFIG) as lake:
        of = lake.create("c", SCHEMA, key=["id"])
        of.append(rows(range(50)))
        report = publish(of, format=format_)
    (tmp_path / "link").symlink_to(tmp_path / "lake")
    with tidelake.open(tmp_path / "link", config=CONFIG) as lake:
        again = publish(lake.collection("c"), format=format_)
        assert (again.changed, again.table) == (False, report.table)


def test_types_that_parts_store_otherwise_are_copied(tmp_path: Path, format_: str) -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.uint16()),
            pa.field("l", pa.struct({"a": pa.int8(), "b": pa.list_(pa.string())})),
            pa.field("t", pa.timestamp("ms", "UTC")),
        ]
    )
    with tidelake.open(tmp_path / "lake", config=CONFIG) as lake:
        of = lake.create("c", schema, key=["id"])
        made = {"id": [1, 2], "l": [{"a": 1, "b": ["x", None]}, None], "t": [5, None]}
        of.append(pa.table(made, schema))
        report = publish(of, format=format_)
        assert report.copied == 2
        assert read(report).to_pylist() == of.to_arrow().to_pylist()
        of.evolve(rename={"l": "m"})
        assert read(publish(of, format=format_)).to_pylist() == of.to_arrow().to_pylist()


def test_times_of_other_zones_than_utc(tmp_path: Path, format_: str) -> None:
    schema = pa.schema([("id", pa.int64()), ("t", pa.timestamp("us", "Europe/Berlin"))])
    with tidelake.open(tmp_path / "lake", config=CONFIG) as lake:
        of = lake.create("c", schema, key=["id"])
        of.append(pa.table({"id": [1, 2], "t": [10**15, None]}, schema))
        check(of, format_)


def test_a_checkpoint_alone_tells_a_version_of_delta(tmp_path: Path) -> None:
    """Earlier commits go, and readers must not need them."""
    with tidelake.open(tmp_path / "lake", config=CONFIG) as lake:
        of = lake.create("c", SCHEMA, key=["id"])
        of.append(rows(range(50)))
        of.evolve(rename={"price": "cost"})
        of.append(pa.table({"id": [7], "cost": [7.0], "note": ["n1"], "_diff": [-1]}))
        report = publish(of, format="delta")
        for commit in files(folder_of(report), ".json"):
            commit.unlink()
        assert bag(pa.table(DeltaTable(folder_of(report)).scan())) == bag(of.to_arrow())


def test_parts_of_other_columns_are_read_right_or_not_at_all(tmp_path: Path, format_: str) -> None:
    with tidelake.open(tmp_path / "lake", config=CONFIG) as lake:
        of = lake.create(
            "c", pa.schema([("id", pa.int64()), ("n", pa.int32()), ("m", pa.int32())]), key=["id"]
        )
        of.append(pa.table({"id": [1, 2, 3], "n": [1, 2, 3], "m": [4, 5, 6]}, of.schema))
        of.evolve(rename={"n": "was"})
        assert check(of, format_).copied == 0
        # The new parts have another name of the same column.
        of.append(pa.table({"id": [4], "was": [7], "m": [8]}, of.schema))
        assert check(of, format_).copied == 1
        # The name that the old parts have is now another column's.
        of.evolve(pa.schema([*of.schema, pa.field("n", pa.int32())]))
        assert check(of, format_).copied == 4 - 1
        of.append(pa.table({"id": [5, 6, 7], "was": [9] * 3, "m": [8] * 3, "n": [10] * 3}, of.schema))
        check(of, format_)
        of.evolve(pa.schema([f.with_type(pa.int64()) if f.name == "m" else f for f in of.schema]))
        assert check(of, format_).copied == 7


def test_names_that_differ_by_case_only_are_one_name_to_some_readers(tmp_path: Path, format_: str) -> None:
    """Such readers would find another column's values in parts of before."""
    schema = pa.schema([("id", pa.int64()), ("A", pa.int64()), ("_Diff", pa.int64())])
    with tidelake.open(tmp_path / "lake", config=CONFIG) as lake:
        dropped, renamed = (lake.create(name, schema.remove(2), key=["id"]) for name in ("d", "r"))
        for of in (dropped, renamed):
            of.append(pa.table({"id": [1, 2], "A": [3, 4]}))
        dropped.evolve(pa.schema([("id", pa.int64()), ("a", pa.int64())]), drop=["A"])
        renamed.evolve(rename={"A": "b"})
        renamed.evolve(pa.schema([*renamed.schema, ("a", pa.int64())]))
        hidden = lake.create("h", schema, key=["id"])
        hidden.append(pa.table({"id": [1, 2], "A": [3, 4], "_Diff": [5, 6]}))
        for of in (dropped, renamed, hidden):
            assert check(of, format_).copied == 2


def test_staged_rows_of_open_times_are_not_published(tmp_path: Path, format_: str) -> None:
    with tidelake.open(tmp_path / "lake", config=CONFIG) as lake:
        of = lake.create("c", SCHEMA, key=["id"])
        of.append(rows([1]), time=0)
        of.stage(rows([2, 3]).append_column("_time", pa.array([1, 9], pa.int64())))
        of.seal(5)
        assert bag(of.to_arrow()) == bag(rows([1, 2]))
        check(of, format_)


def test_an_empty_collection_and_a_view_are_published(tmp_path: Path, format_: str) -> None:
    with tidelake.open(tmp_path / "lake", config=CONFIG) as lake:
        of = lake.create("c", SCHEMA, key=["id"])
        of.append(rows([]), time=0)
        assert check(of, format_).rows == 0
        of.append(rows(range(9)))
        lake.view("v", "SELECT note, count(*) AS n FROM c GROUP BY note")
        assert check(lake.collection("v"), format_).rows == 3
        of.append(rows([11]))
        lake.refresh("v")
        assert check(lake.collection("v"), format_).rows == 3


def test_what_cannot_be_published_is_refused(tmp_path: Path, format_: str) -> None:
    with tidelake.open(tmp_path / "lake", config=CONFIG) as lake:
        of = lake.create("c", SCHEMA, key=["id"])
        of.append(rows([1], diff=-1))
        with pytest.raises(InvalidUpdates, match="multiplicity -1"):
            publish(of, format=format_)
        for keep in (0, True, "3"):
            with pytest.raises(UsageError, match="keep="):
                publish(of, format=format_, keep=keep)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="format='orc' is unknown"):
            publish(of, format="orc")  # type: ignore[arg-type]
        pairs = lake.create("p", SCHEMA, key=["id"], time="tuple(2)")
        with pytest.raises(UsageError, match="times that follow each other"):
            publish(pairs, format=format_)
    with tidelake.open("memory://x") as lake:
        of = lake.create("c", SCHEMA, key=["id"])
        of.append(rows([1]))
        with pytest.raises(UsageError, match="lake in memory"):
            publish(of, format=format_)
