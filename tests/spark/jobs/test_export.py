"""Exports: the same rows in another format, as a whole or not at all."""

import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

import tidelake
from tidelake.cli.main import main
from tidelake.config import Config
from tidelake.errors import NotYetClosed, UsageError
from tidelake.spark import ExportReport, export
from tidelake.spark.jobs import export as export_job

pytestmark = pytest.mark.full

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string()), ("a.b", pa.int32())])


@pytest.fixture
def collection(tmp_path: Path) -> tidelake.Collection:
    """Rows at 0 (key 2 twice), of which key 3 goes and key 4 comes at 1."""
    lake = tidelake.open(tmp_path / "lake", config=Config(inline_part_bytes=0, merge_budget_s=0.0))
    c = lake.create("c", SCHEMA, key=["k"])
    c.append(rows([1, 2, 3], [1, 2, 1]))
    c.append(rows([3, 4], [-1, 1]))
    return c


def rows(keys: list[int], diffs: list[int]) -> pa.Table:
    values = {"k": keys, "v": [f"v{k}" for k in keys], "a.b": pa.array(keys, pa.int32())}
    return pa.table({**values, "_diff": pa.array(diffs, pa.int64())})


def written(path: Path) -> Counter[Any]:
    """The rows of all files at a path, as plain Parquet."""
    found = [row for file in path.glob("*.parquet") for row in pq.read_table(file).to_pylist()]
    return Counter(tuple(row.values()) for row in found)


def row(k: int) -> tuple[Any, ...]:
    return (k, f"v{k}", k)


def beside(path: Path) -> set[str]:
    return {found.name for found in path.parent.iterdir()} - {"lake"}


@pytest.mark.promise(
    "A Parquet export has the rows of the read, and exists whole or not at all; the export holds "
    "the version that it reads",
    rule="`spark/jobs/export.py`",
    also=["::test_an_export_that_fails_leaves_what_was_there", "::test_nothing_stays_held_by_an_export"],
)
def test_contents_are_exported_as_often_as_they_are_there(
    spark: Any, tmp_path: Path, collection: tidelake.Collection
) -> None:
    out = tmp_path / "out dir"
    report = export(spark, collection, str(out))
    assert isinstance(report, ExportReport)
    assert (report.rows, report.through, report.after, report.format) == (4, 1, None, "parquet")
    assert written(out) == Counter({row(1): 1, row(2): 2, row(4): 1})
    assert spark.read.parquet(str(out)).columns == SCHEMA.names
    assert beside(out) == {"out dir"} and (out / "_SUCCESS").exists()
    early = export(spark, collection, f"file://{tmp_path}/early", as_of=0, with_diff=True)
    assert (early.rows, early.through) == (3, 0)
    assert written(tmp_path / "early") == Counter({(*row(1), 1): 1, (*row(2), 2): 1, (*row(3), 1): 1})


def test_changes_are_exported_with_their_differences(
    spark: Any, tmp_path: Path, collection: tidelake.Collection
) -> None:
    out = tmp_path / "out"
    report = export(spark, collection, str(out), changes=(0, 1))
    assert (report.rows, report.after, report.through) == (2, 0, 1)
    assert written(out) == Counter({(*row(3), -1): 1, (*row(4), 1): 1})


def test_columns_and_conditions_are_those_of_reads(
    spark: Any, tmp_path: Path, collection: tidelake.Collection
) -> None:
    export(spark, collection, str(tmp_path / "out"), columns=["v"], where="k >= 2 AND k < 4")
    assert written(tmp_path / "out") == Counter({("v2",): 2})


def test_what_is_there_is_refused_replaced_or_added_to(
    spark: Any, tmp_path: Path, collection: tidelake.Collection
) -> None:
    out = tmp_path / "out"
    export(spark, collection, str(out), as_of=0)
    first = written(out)
    with pytest.raises(UsageError, match="mode='overwrite'"):
        export(spark, collection, str(out))
    assert written(out) == first
    export(spark, collection, str(out), where="k = 4", mode="append")
    assert written(out) == first + Counter([row(4)])
    export(spark, collection, str(out), mode="overwrite")
    assert written(out) == Counter({row(1): 1, row(2): 2, row(4): 1})
    assert beside(out) == {"out"}


def test_an_export_that_fails_leaves_what_was_there(
    spark: Any, tmp_path: Path, collection: tidelake.Collection
) -> None:
    out = tmp_path / "out"
    with pytest.raises(Exception, match="negative multiplicity"):
        export(spark, collection, str(out), changes=(0, 1), with_diff=False)
    assert beside(out) == set()
    export(spark, collection, str(out))
    with pytest.raises(Exception, match="negative multiplicity"):
        export(spark, collection, str(out), changes=(0, 1), with_diff=False, mode="overwrite")
    assert sum(written(out).values()) == 4 and beside(out) == {"out"}
    assert not collection.state().holds


def test_a_row_that_is_there_too_often_to_be_repeated_fails_the_export(
    spark: Any, tmp_path: Path, collection: tidelake.Collection
) -> None:
    collection.append(rows([9], [2**32 + 1]))
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        with pytest.raises(Exception, match=r"more often than 2\^31 - 1 times"):
            export(spark, collection, str(tmp_path / "out"))
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")
    assert beside(tmp_path / "out") == set()


def test_what_was_there_comes_back_when_the_new_export_cannot_be_moved(
    spark: Any, tmp_path: Path, collection: tidelake.Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, moved = tmp_path / "out", []
    export(spark, collection, str(out), as_of=0)
    before = written(out)
    rename = export_job._Parquet._rename

    def fails_second(self: Any, old: str, new: str) -> None:
        moved.append(new)
        if len(moved) == 2:
            raise UsageError("the disk is gone")
        rename(self, old, new)

    monkeypatch.setattr(export_job._Parquet, "_rename", fails_second)
    with pytest.raises(UsageError, match="disk is gone"):
        export(spark, collection, str(out), mode="overwrite")
    assert written(out) == before and beside(out) == {"out"}


@pytest.mark.parametrize("place", ["lake", "lake/objects", ".", "out/../lake", "link"])
@pytest.mark.parametrize("format_", ["parquet", "delta"])
def test_a_lake_is_not_exported_over(
    spark: Any, tmp_path: Path, collection: tidelake.Collection, place: str, format_: Any
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "lake")
    for path in (str(tmp_path / place), f"file://{tmp_path}/{place}"):
        with pytest.raises(UsageError, match="contain one another"):
            export(spark, collection, path, format=format_, mode="overwrite")
    assert collection.snapshot(0).read_all().num_rows == 3


def test_nothing_stays_held_by_an_export(spark: Any, tmp_path: Path, collection: tidelake.Collection) -> None:
    from tidelake.spark import release, snapshot

    frame = snapshot(spark, collection)
    export(spark, collection, str(tmp_path / "out"))
    assert len(collection.state().holds) == 1
    assert frame.count() == 3 and release(collection) == 1


def test_calls_that_do_not_fit_are_refused_before_anything_runs(
    spark: Any, tmp_path: Path, collection: tidelake.Collection
) -> None:
    out = str(tmp_path / "out")
    for asked, reason in (
        ({"format": "orc"}, "parquet, delta, iceberg"),
        ({"mode": "ignore"}, "error, overwrite, append"),
        ({"as_of": 0, "changes": (0, 1)}, "not both"),
        ({"changes": (0,)}, "two times"),
        ({"where": "no SQL at all"}, "SQL"),
    ):
        with pytest.raises(UsageError, match=reason):
            export(spark, collection, out, **asked)
    with pytest.raises(NotYetClosed):
        export(spark, collection, out, as_of=7, timeout_s=0)
    assert beside(tmp_path / "out") == set() and not collection.state().holds


@pytest.mark.parametrize(
    ("format_", "path", "package"),
    [
        ("delta", "{}/out", "delta-spark"),
        ("iceberg", "exported", "iceberg-spark-runtime"),
        ("iceberg", "prod.db.exported", "iceberg-spark-runtime"),
    ],
)
@pytest.mark.parametrize("mode", ["error", "overwrite", "append"])
def test_a_format_that_is_not_installed_is_named_with_its_package(
    spark: Any,
    tmp_path: Path,
    collection: tidelake.Collection,
    format_: Any,
    path: str,
    package: str,
    mode: Any,
) -> None:
    with pytest.raises(UsageError, match=package):
        export(spark, collection, path.format(tmp_path), format=format_, mode=mode)
    assert beside(tmp_path / "out") == set() and not collection.state().holds


def test_the_command_exports_and_tells_what(
    spark: Any,
    tmp_path: Path,
    collection: tidelake.Collection,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The session of the tests goes on.
    monkeypatch.setattr(type(spark), "stop", lambda _: None)

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main(["export", str(tmp_path / "lake"), "c", *map(str, arguments)])
        out, err = capfd.readouterr()
        return int(left.value.code or 0), out, err

    code, out, _ = run(tmp_path / "one", "--json")
    (told,) = json.loads(out)
    assert code == 0 and (told["rows"], told["through"]) == (4, 1)
    code, _, err = run(tmp_path / "one")
    assert code == 2 and "there is something at" in err
    assert run(tmp_path / "two", "--changes", 0, 1, "--columns", "k, v", "--where", "k > 3")[0] == 0
    assert written(tmp_path / "two") == Counter({(4, "v4", 1): 1})
    assert run(tmp_path / "two", "--as-of", 0, "--changes", 0, 1)[0] == 2
    assert run(tmp_path / "two", "--as-of", 0, "--with-diff", "--mode", "overwrite")[0] == 0
    assert written(tmp_path / "two") == Counter({(*row(1), 1): 1, (*row(2), 2): 1, (*row(3), 1): 1})


def test_times_are_written_if_they_are_asked_for(spark: Any, tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.int64())])
    c = tidelake.open(tmp_path / "lake").create("c", schema, key=["k"], time="ms")
    moment = datetime(2026, 11, 1, 12, 0, 0, 250_000, UTC)
    time = round(moment.timestamp() * 1000)
    c.append(pa.table({"k": [1, 2], "_time": [time] * 2, "_diff": [1, 1]}), upper=time + 1)
    export(spark, c, str(tmp_path / "stored"), times="int64")
    export(spark, c, str(tmp_path / "clock"), times="timestamp")
    (stored,) = {at for _, at in written(tmp_path / "stored")}
    (clock,) = {at for _, at in written(tmp_path / "clock")}
    # Spark writes timestamps as INT96, which have no zone in the file.
    assert stored == time and clock == moment.replace(tzinfo=None)
    out = str(tmp_path / "command")
    asked = ["--changes", "0", str(time), "--times", "timestamp"]
    with pytest.raises(SystemExit):
        main(["export", str(tmp_path / "lake"), "c", out, *asked])
    assert {(row[0], row[-2], row[-1]) for row in written(Path(out))} == {(1, clock, 1), (2, clock, 1)}
