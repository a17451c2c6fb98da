"""`tidelake mirror` and `tidelake import`: tables of Delta Lake."""

import json

import pyarrow as pa
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


def test_an_option_without_a_value_and_unknown_columns_are_refused(run, tmp_path):
    with tidelake.open(tmp_path / "lake") as lake:
        lake.create("c", {"id": "int64"}, key=["id"]).append(pa.table({"id": [1]}))
    command = ("mirror", tmp_path / "lake", "c", tmp_path / "t", "--format", "delta")
    assert run(*command, "--option", "region")[::2] == (2, "tidelake: --option region: write NAME=VALUE\n")
    assert run(*command, "--columns", "n")[0] == 2
