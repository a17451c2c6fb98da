"""`tidelake mirror`, `publish` and `import`: tables of Delta Lake."""

import json

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import tidelake


def test_a_mirror_is_imported_again(run, tmp_path):
    with tidelake.open(tmp_path / "lake") as lake:
        of = lake.create("c", {"id": "int64", "n": "int64"}, key=["id"])
        of.append(pa.table({"id": [1, 2], "n": [1, 2]}))
    command = ("mirror", tmp_path / "lake", "c", tmp_path / "t", "--format", "delta", "--json")
    assert [json.loads(run(*command)[1])[0]["rows"] for _ in range(2)] == [2, 0]
    with tidelake.open(tmp_path / "lake") as lake:
        lake.collection("c").upsert(pa.table({"id": [2], "n": [3]}))
    assert json.loads(run(*command)[1])[0]["keys"] == 1
    code, out, _ = run(
        "import", tmp_path / "again", "d", tmp_path / "t", "--format", "delta", "--key", "id", "--json"
    )
    assert (code, json.loads(out)[0]["versions"]) == (0, 2)
    with tidelake.open(tmp_path / "again") as lake:
        found = lake.collection("d")
        assert found.to_arrow(0)["n"].to_pylist() == [1, 2]
        assert found.to_arrow(1)["n"].to_pylist() == [1, 3]
    assert DeltaTable(tmp_path / "t").version() == 1


def test_a_collection_is_published_and_its_table_ended(run, tmp_path):
    with tidelake.open(tmp_path / "lake") as lake:
        lake.create("c", {"id": "int64"}, key=["id"]).append(pa.table({"id": [1, 2]}))
    command = ("publish", tmp_path / "lake", "c", "--as", "delta", "--json")
    (made,), (again,) = (json.loads(run(*command)[1]) for _ in range(2))
    assert (made["changed"], made["rows"], made["through"], again["changed"]) == (True, 2, 0, False)
    assert DeltaTable(made["table"]).count() == 2
    (held,) = json.loads(run("holds", tmp_path / "lake", "c", "--json")[1])
    assert (held["hold"], held["expires_in_s"]) == ("published/delta", None)
    assert run("drop", tmp_path / "lake", "c", "--yes")[0] == 2
    assert json.loads(run(*command, "--end")[1])[0]["ended"]
    assert run("drop", tmp_path / "lake", "c", "--yes")[0] == 0
    assert run(*command[:-1], "--keep", "0")[0] == 2


def test_an_option_without_a_value_and_unknown_columns_are_refused(run, tmp_path):
    with tidelake.open(tmp_path / "lake") as lake:
        lake.create("c", {"id": "int64"}, key=["id"]).append(pa.table({"id": [1]}))
    command = ("mirror", tmp_path / "lake", "c", tmp_path / "t", "--format", "delta")
    assert run(*command, "--option", "region")[::2] == (2, "tidelake: --option region: write NAME=VALUE\n")
    assert run(*command, "--columns", "n")[0] == 2


@pytest.mark.parametrize("afresh", [(), ("--afresh",)])
def test_a_mirror_is_made_neither_in_a_file_nor_among_other_files(run, tmp_path, afresh):
    with tidelake.open(tmp_path / "lake") as lake:
        lake.create("c", {"id": "int64"}, key=["id"]).append(pa.table({"id": [1]}))
    command = ("mirror", tmp_path / "lake", "c")
    file = tmp_path / "notes" / "file"
    file.parent.mkdir()
    file.write_text("mine")
    code, _, err = run(*command, file, "--format", "delta", *afresh)
    assert code == 2 and "is a file: give a directory for the Delta table" in err
    for place in (file.parent, file.parent.as_uri()):
        code, _, err = run(*command, place, "--format", "delta", *afresh)
        assert code == 2 and "holds other files: choose an empty directory" in err
    assert [one.name for one in file.parent.iterdir()] == ["file"]
    # What a first run leaves that was killed before its commit.
    file.rename(file.with_name("part-0.parquet"))
    assert run(*command, file.parent, "--format", "delta", *afresh)[0] == 0


def test_a_file_is_no_table_to_import(run, tmp_path):
    (tmp_path / "file").write_text("mine")
    code, _, err = run("import", tmp_path / "lake", "d", tmp_path / "file", "--format", "delta")
    assert code == 2 and "is a file: give a directory for the Delta table" in err


def test_an_export_to_a_taken_place_is_refused_before_spark_starts(run, tmp_path, monkeypatch):
    with tidelake.open(tmp_path / "lake") as lake:
        lake.create("c", {"id": "int64"}, key=["id"]).append(pa.table({"id": [1]}))
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.setattr("tidelake.cli.spark.session", None)
    (tmp_path / "delta" / "_delta_log").mkdir(parents=True)
    for place, kind in ((tmp_path, "parquet"), (tmp_path.as_uri(), "parquet"), (tmp_path / "delta", "delta")):
        code, _, err = run("export", tmp_path / "lake", "c", place, "--format", kind)
        assert code == 2 and "there is something at" in err and "give --mode overwrite" in err
