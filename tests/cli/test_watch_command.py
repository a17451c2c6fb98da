"""`tidelake log`, `diff`, `top` and `upsert`, and files that are standard input or output."""

import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.shell_completion import ShellComplete

import tidelake
import tidelake.cli.main  # defines the commands
from tidelake.cli.group import cli

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
HOSTILE = "<b>\x1b[31m"


@pytest.fixture
def place(tmp_path):
    with tidelake.open(tmp_path / "lake") as lake:
        c = lake.create("users", SCHEMA, key=["id"])
        c.append(pa.table({"id": [1, 2], "name": ["ann", "bob"], "_time": [1, 1]}), upper=2)
        c.writer("loader").append(
            pa.table(
                {
                    "id": [2, 2, 3],
                    "name": ["bob", "<b>\x1b[31m", "cyd"],
                    "_diff": [-1, 1, 2],
                    "_time": [2] * 3,
                }
            ),
            sequence=0,
        )
    return tmp_path / "lake"


def piped(*arguments: object, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "tidelake.cli.main", *map(str, arguments)]
    return subprocess.run(command, input=given, capture_output=True, timeout=120, check=False)


def test_log_tells_commits(run, place) -> None:
    found = run("log", place, "users", "--json").json
    assert [(one["what"], one["updates"], one["writer"]) for one in found] == [
        ("append", 3, "loader"),
        ("append", 2, None),
        ("create", 0, None),
    ]
    assert found[0]["upper"] == [3]
    assert "loader" in run("log", place, "users", "--limit", 1).out
    assert run("log", place, "users", "--limit", 0).out == "no commits\n"
    assert len(run("log", place, "users", "--all", "--json").json) > 3


def test_log_tells_who_and_why(run, place, tmp_path) -> None:
    pq.write_table(pa.table({"id": [9], "name": ["x"]}), tmp_path / "rows.parquet")
    for command in ("upsert", "append"):
        said = ("--author", "ann", "--message", f"{HOSTILE} {command}")
        assert run(command, place, "users", tmp_path / "rows.parquet", *said).code == 0
    found = run("log", place, "users", "--json").json
    assert [(one["author"], one["message"]) for one in found[:3]] == [
        ("ann", f"{HOSTILE} append"),
        ("ann", f"{HOSTILE} upsert"),
        (None, None),
    ]
    assert "\x1b" not in run("log", place, "users").out


def test_diff_tells_what_went_and_came(run, place) -> None:
    assert run("diff", place, "users", 1, 2).out.splitlines() == [
        "- id=2, name=bob",  # the order of values would have it second
        r"+ id=2, name=<b>\x1b[31m",
        "+ id=3, name=cyd (×2)",
    ]
    assert run("diff", place, "users", 2, 2).out == "no changes\n"
    assert run("diff", place, "users", 1, 2, "--limit", 1, "--columns", "id").out.splitlines() == [
        "- id=2",
        "... and more rows; see --limit",
    ]


def test_top_tells_that_nothing_is_merged(run, place) -> None:
    assert run("top", place, "--once").out == "no merges under way\n"
    assert run("top", place, "--once", "--json").json == []


def test_upsert_replaces_the_rows_of_its_keys(run, place, tmp_path) -> None:
    (tmp_path / "new.csv").write_text("id,name\n1,amy\n2,\n")
    assert run("upsert", place, "users", tmp_path / "new.csv", "--json").json[0]["rows"] == 2
    found = run("snapshot", place, "users", "--json").lines
    assert [(one["id"], one["name"]) for one in found] == [(1, "amy"), (2, None), (3, "cyd")]


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_rows_are_taken_from_standard_input(place, tmp_path, form) -> None:
    given = {"csv": b"id,name\n7,gus\n", "jsonl": b'\n {"id": 7, "name": "gus"}\n'}.get(form)
    if given is None:
        pq.write_table(pa.table({"id": [7], "name": ["gus"]}), tmp_path / "x.parquet")
        given = (tmp_path / "x.parquet").read_bytes()
    done = piped("append", place, "users", "-", given=given)
    assert (done.returncode, done.stderr) == (0, b"")
    with tidelake.open(place) as lake:
        assert lake["users"].lookup(pa.table({"id": [7]}))["name"].to_pylist() == ["gus"]


def test_bad_standard_input_is_called_so(place) -> None:
    done = piped("append", place, "users", "-", given=b'{"id": 1}\n{"id": "x"}\n')
    assert done.returncode == 2
    assert b"standard input line 2: column 'id'" in done.stderr
    assert piped("append", place, "users", "-", given=b"").returncode == 2


def test_what_one_command_prints_another_one_takes(place) -> None:
    given = piped("snapshot", place, "users", "--columns", "id,name", "--out", "-").stdout
    with tidelake.open(place) as lake:
        lake.create("others", SCHEMA, key=["id"])
    assert piped("append", place, "others", "-", given=given).returncode == 0
    with tidelake.open(place) as lake:
        assert lake["others"].snapshot().to_arrow()["id"].to_pylist() == [1, 2, 3]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_of_shells(shell) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from tidelake.cli.main import main; main()"],
        env={**os.environ, "_TIDELAKE_COMPLETE": f"{shell}_source"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert b"_TIDELAKE_COMPLETE" in done.stdout


def test_names_of_collections_are_completed(place) -> None:
    def completed(*words: object) -> list[str]:
        *before, begin = map(str, words)
        found = ShellComplete(cli, {}, "tidelake", "_TIDELAKE_COMPLETE").get_completions(before, begin)
        return [item.value for item in found]

    assert completed("snapshot", place, "") == ["users"]
    assert completed("log", place, "us") == ["users"]
    assert completed("log", place, "x") == []
    assert completed("log", place / "nothing", "") == []
