"""`tidelake sql`: a statement, statements of standard input, and a prompt."""

import json
import os
import pty
import subprocess
import sys

import pytest

import tidelake

pytest.importorskip("duckdb")


@pytest.fixture
def place(tmp_path):
    with tidelake.open(tmp_path / "lake") as lake:
        made = lake.create("t", {"id": "int64 not null", "name": "string"}, key=["id"])
        made.append([{"id": 1, "name": "a,b"}, {"id": 2, "name": None}])
    return tmp_path / "lake"


def test_an_answer_is_printed_in_each_format_and_written_to_files(run, place, tmp_path):
    assert run("sql", place, "FROM t").out.split() == ["id", "name", "1", "a,b", "2", "–"]
    assert run("sql", place, "FROM t", "--format", "csv").out == '"id","name"\n1,"a,b"\n2,\n'
    printed = run("sql", place, "FROM t", "--format", "json").lines
    assert printed == [{"id": 1, "name": "a,b"}, {"id": 2, "name": None}]
    assert run("sql", place, "FROM t", "--format", "csv", "--limit", "1").out.count("\n") == 2
    assert run("sql", place, "FROM t", "--out", tmp_path / "x.jsonl").code == 0
    assert json.loads((tmp_path / "x.jsonl").read_text(encoding="utf-8").split("\n")[0])["id"] == 1
    assert run("sql", place, "SHOW TABLES").out.split() == ["name", "t"]
    assert run("sql", place, "SELECT INTERVAL 1 DAY AS i").code == 0
    assert run("sql", place, "SELECT count(*) AS n FROM t", "--as-of", "0").out.split() == ["n", "2"]


def test_a_change_is_committed_once_under_a_token(run, place):
    for updates in ("1", "0"):
        answer = run("sql", place, "DELETE FROM t WHERE id = 2", "--token", "x", "--author", "ann")
        assert answer.out.split() == ["updates", "upper", updates, "[2]"] and answer.err == ""
    assert run("sql", place, "DELETE FROM t", "--read-only").code == 2
    answer = run("sql", place, "SELEC 1")
    assert (answer.code, answer.out) == (2, "") and "no statement for a lake" in answer.err


def piped(place, text, *options):
    command = [sys.executable, "-m", "tidelake", "sql", str(place), "--format", "json", *options]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)


def test_a_semicolon_in_a_comment_or_a_text_ends_no_statement(place):
    text = "-- first;\nDELETE FROM t -- all;\nWHERE id = 1 /* or\nnot; */;\n"
    text += "UPDATE t SET name = 'x;\ny'; -- z\n;\n"
    done = piped(place, f"{text}SELECT 1 AS a; SELECT 2 AS b;\nFROM t; -- the end")
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"updates": 1, "upper": "[2]"},
        {"updates": 2, "upper": "[3]"},
        {"a": 1},
        {"b": 2},
        {"id": 2, "name": "x;\ny"},
    ]
    assert (done.returncode, done.stderr) == (0, "")
    assert "cannot be parsed" in piped(place, "SELECT 'a;\n").stderr


@pytest.mark.parametrize("option", ["--token", "--out"])
def test_options_of_one_statement_are_refused_for_several(place, tmp_path, option):
    text = "INSERT INTO t VALUES (7, 'x');\nINSERT INTO t VALUES (8, 'x');\n"
    done = piped(place, text, option, str(tmp_path / "x.csv"))
    assert done.returncode == 2 and f"{option} is for one statement" in done.stderr
    assert piped(place, "INSERT INTO t VALUES (7, 'x');\n", option, str(tmp_path / "x.csv")).returncode == 0
    with tidelake.open(place) as lake:
        assert lake.collection("t").to_arrow()["id"].to_pylist() == [1, 2, 7]


def test_columns_of_one_name_are_all_printed(run, place, tmp_path):
    text = "SELECT 1 AS a, 2 AS a_1, 3 AS a, 4 AS a"
    assert run("sql", place, text).out.split() == ["a", "a_1", "a_2", "a_3", "1", "2", "3", "4"]
    assert run("sql", place, text, "--format", "json").lines == [{"a": 1, "a_1": 2, "a_2": 3, "a_3": 4}]
    assert run("sql", place, text, "--format", "csv").out.splitlines()[1] == "1,2,3,4"
    assert run("sql", place, text, "--out", tmp_path / "x.jsonl").code == 0
    assert '"a_3": 4' in (tmp_path / "x.jsonl").read_text(encoding="utf-8")


def test_times_without_a_zone_are_in_utc(run, place):
    with tidelake.open(place) as lake:
        lake.create("m", {"id": "int64 not null"}, key=["id"], time="ms")
        lake.create("d", {"id": "int64 not null"}, key=["id"], time="date")
    for name in "md":
        done = run("sql", place, f"INSERT INTO {name} VALUES (1)", "--time", "2024-01-01")
        assert done.code == 0 and "--time 2024-01-01 is taken as 2024-01-01 00:00Z" in done.err
        assert run("sql", place, f"FROM {name}", "--as-of", "2024-01-01").out.split() == ["id", "1"]


def test_statements_of_standard_input_are_carried_out_until_one_fails(place):
    text = "SELECT 1 AS a;\n\nUPDATE t\nSET name = 'x;'\nWHERE id = 1;\nSELECT name FROM t WHERE id = 1"
    command = [sys.executable, "-m", "tidelake", "sql", str(place), "--format", "json"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"a": 1},
        {"updates": 2, "upper": "[2]"},
        {"name": "x;"},
    ]
    text = "SELECT nope;\nDELETE FROM t;\n"
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "nope" in done.stderr
    with tidelake.open(place) as lake:
        assert lake.collection("t").to_arrow().num_rows == 2


def test_a_terminal_has_a_prompt_with_a_history(place, tmp_path):
    history = tmp_path / "history"
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "tidelake", "sql", str(place)]
    environment = os.environ | {"TIDELAKE_SQL_HISTORY": str(history), "TERM": "dumb"}
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, close_fds=True
    )
    os.close(theirs)
    os.write(ours, b".help\nSELECT nope;\nSELECT count(*) AS many\nFROM t;\nexit\n")
    shown = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        shown += piece
    assert process.wait() == 0
    os.close(ours)
    text = shown.decode()
    assert "tidelake> " in text and "nope" in text and "many" in text.split("FROM t;")[-1]
    assert text.count("SHOW TABLES; lists collections") == 2
    assert "SELECT nope;" in history.read_text(encoding="utf-8") and history.stat().st_mode & 0o077 == 0
