"""`tidelake ingest`: files of a directory into a collection, by the command line."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidelake

pytestmark = pytest.mark.full

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
EVENTS = ("--envelope", "debezium")


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    tidelake.open(tmp_path / "lake").create("c", SCHEMA, key=["id"])
    folder = tmp_path / "in"
    folder.mkdir()
    return folder


def create(i: int, v: Any, time: int) -> str:
    return json.dumps({"op": "c", "before": None, "after": {"id": i, "v": v}, "source": {"lsn": time}}) + "\n"


def contents(landing: Path) -> list[tuple[int, Any]]:
    c = tidelake.open(landing.parent / "lake").collection("c")
    rows = c.snapshot(c.upper.elements[0] - 1).read_all().to_pylist()
    return [(row["id"], row["v"]) for row in rows for _ in range(row["_diff"])]


@pytest.mark.promise(
    "`tidelake ingest` takes each file once, and reports what it did",
    rule="`cli/ingest.py`",
    also=["cli/test_ingest_command.py"],
)
def test_change_events_are_taken_once_and_reported(run: Any, landing: Path) -> None:
    lake = landing.parent / "lake"
    (landing / "1.json").write_text(create(1, "a", 3) + create(2, "b", 4) + "null\n")
    done = run("ingest", lake, "c", landing, *EVENTS, "--json")
    assert (done.code, done.err) == (0, "")
    (report,) = json.loads(done.out)
    assert (
        report | {"upper": [5], "events": 2, "tombstones": 1, "rejects": 0, "files": 1, "batches": 1}
        == report
    )
    assert contents(landing) == [(1, "a"), (2, "b")]
    done = run("ingest", lake, "c", landing, *EVENTS)
    assert done.code == 0
    assert done.out.split()[:2] == ["collection", "batches"]
    assert contents(landing) == [(1, "a"), (2, "b")]


def test_files_of_dms_need_no_jvm(run: Any, landing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelake.cli.spark.session", None)
    options = ("--envelope", "dms", "--format", "csv")
    (landing / "1.csv").write_text("Op,id,v\nI,1,a\nI,2,b\n")
    done = run("ingest", landing.parent / "lake", "c", landing, *options, "--json")
    assert (done.code, json.loads(done.out)[0]["events"]) == (0, 2)
    assert contents(landing) == [(1, "a"), (2, "b")]


@pytest.mark.spark
def test_the_checkpoint_of_a_query_of_spark_is_left_to_it(spark: Any, run: Any, landing: Path) -> None:
    from tidelake.spark import ingest

    lake, check = landing.parent / "lake", landing / ".checkpoint-c"
    (landing / "1.json").write_text(create(1, "a", 3))
    with tidelake.open(lake, create=False) as opened:
        ingest(spark, opened["c"], landing, check, envelope="debezium")
    (landing / "2.json").write_text(create(2, "b", 4))
    done = run("ingest", lake, "c", landing, *EVENTS)
    assert done.code == 2 and "go on with tidelake.spark.ingest; or move away the files" in done.err
    (landing / "1.json").unlink()
    options = ("--checkpoint", landing / ".other", "--take-over")
    assert run("ingest", lake, "c", landing, *EVENTS, *options).code == 0
    assert contents(landing) == [(1, "a"), (2, "b")]


def test_change_events_are_not_taken_for_rows(run: Any, landing: Path) -> None:
    for line in (create(1, "a", 3), json.dumps({"schema": None, "payload": json.loads(create(1, "a", 3))})):
        (landing / "1.json").write_text(line)
        done = run("ingest", landing.parent / "lake", "c", landing)
        assert done.code == 2 and "is a change event: give the envelope 'debezium'" in done.err


def test_a_bad_line_ends_it_with_its_place_or_is_kept(run: Any, landing: Path) -> None:
    lake, rejects = landing.parent / "lake", landing.parent / "rejects"
    (landing / "1.json").write_text(create(1, "a", 3) + "{\n")
    done = run("ingest", lake, "c", landing, *EVENTS)
    assert done.code == 2
    assert f"file={landing}/1.json number=2" in done.err
    assert len(done.err.splitlines()) == 1
    done = run("ingest", lake, "c", landing, *EVENTS, "--rejects", rejects, "--json")
    assert (done.code, json.loads(done.out)[0]["rejects"]) == (0, 1)
    (kept,) = rejects.iterdir()
    assert json.loads(kept.read_text())["number"] == 2


def test_options_reach_the_envelope(run: Any, landing: Path) -> None:
    lake, check = landing.parent / "lake", landing.parent / "check"
    (landing / "1.json").write_text('{"op":"u","after":{"id":1,"v":"x"},"ts_ms":7}\n')
    options = (
        *EVENTS,
        "--time",
        "ts_ms",
        "--old-rows",
        "stored",
        "--checkpoint",
        check,
        "--max-files-per-trigger",
        "1",
    )
    assert run("ingest", lake, "c", landing, *options).code == 0
    assert (contents(landing), check.is_dir()) == ([(1, "x")], True)
    (landing / "1.json").unlink()
    (landing / "2.csv").write_text("id,v,t\n5,e,9\n")
    options = ("--format", "csv", "--time", "t", "--writer", "other")
    done = run("ingest", lake, "c", landing, *options)
    # A column that the collection does not have is a text: nothing is guessed.
    assert done.code == 2 and "column 't' is string" in done.err
    (landing / "2.csv").write_text("id,v,_time\n5,e,9\n")
    options = ("--format", "csv", "--writer", "other")
    assert run("ingest", lake, "c", landing, *options).code == 0
    assert contents(landing) == [(1, "x"), (5, "e")]


def test_messages_of_other_tools_are_taken(run: Any, landing: Path) -> None:
    told = {"database": "shop", "type": "insert", "position": "bin.000001:7"}
    lines = [{**told, "table": name, "data": {"id": 1, "v": name}} for name in ("c", "d")]
    (landing / "1.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = ("--envelope", "maxwell", "--table", "shop.c", "--json")
    done = run("ingest", landing.parent / "lake", "c", landing, *options)
    assert (done.code, json.loads(done.out)[0]["events"]) == (0, 1)
    assert contents(landing) == [(1, "c")]
    (landing / "1.json").unlink()
    message = {"metadata": {"operation": "load"}, "data": {"id": 2}}
    (landing / "2.json").write_text(json.dumps(message))
    options = ("--envelope", "dms", "--time", "metadata.number", "--late", "advance", "--writer", "other")
    done = run("ingest", landing.parent / "lake", "c", landing, *options)
    assert done.code == 2 and "column 'v' of 'data': is missing" in done.err
    assert run("ingest", landing.parent / "lake", "c", landing, *options, "--missing", "null").code == 0
    assert contents(landing) == [(1, "c"), (2, None)]


def test_another_checkpoint_is_refused_unless_it_takes_over(run: Any, landing: Path) -> None:
    lake = landing.parent / "lake"
    (landing / "1.json").write_text(create(1, "a", 3))
    assert run("ingest", lake, "c", landing, *EVENTS).code == 0
    (landing / "1.json").unlink()
    (landing / "2.json").write_text(create(2, "b", 4))
    other = ("ingest", lake, "c", landing, *EVENTS, "--checkpoint", landing.parent / "other")
    done = run(*other)
    assert done.code == 2 and "take_over=True" in done.err
    assert run(*other, "--take-over").code == 0
    assert contents(landing) == [(1, "a"), (2, "b")]


def test_a_missing_directory_is_named(run: Any, landing: Path) -> None:
    done = run("ingest", landing.parent / "lake", "c", landing / "none")
    assert done.code == 2
    assert f"there is no directory '{landing}/none'" in done.err


def test_the_help_loads_no_spark() -> None:
    code = "import sys\nfrom tidelake.cli.main import main\ntry: main(['ingest', '--help'])\n"
    code += "except SystemExit: print('pyspark' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "False"
    assert done.stdout.startswith("Usage: tidelake ingest")
    assert max(map(len, done.stdout.splitlines())) <= 80
