"""The command line: what it prints for people and for programs, its files, its errors and exit codes."""

import datetime
import decimal
import json
import math
import os
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import tidelake
from tidelake import Config, errors
from tidelake.cli import main as main_module
from tidelake.cli import output

USERS = ["--key", "id", "--column", "id:int64", "--column", "name:string"]


@pytest.fixture
def run(run, tmp_path, monkeypatch):
    """Runs a command in this process, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    return run


@pytest.fixture
def users(run, tmp_path):
    """A lake `cl` with a collection `users` of two commits."""
    assert run("create", "cl", "users", *USERS).code == 0
    (tmp_path / "a.csv").write_text("id,name\n1,ann\n2,\n")
    (tmp_path / "b.jsonl").write_text(
        '{"id": 3, "name": "cid", "_diff": 1}\n\n{"id": 1, "name": "ann", "_diff": -1}\n'
    )
    for file in ("a.csv", "b.jsonl"):
        assert run("append", "cl", "users", file).code == 0
    return tmp_path / "cl"


def python(code, *arguments, **options):
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **options,
    )


TIDELAKE = "from tidelake.cli.main import main; main()"


def words(answer):
    return answer.out.split()


# What it prints


def test_a_first_session_reads_as_it_should(run, tmp_path):
    """The whole of it, as a newcomer sees it. The sizes of files are not told."""
    (tmp_path / "monday.csv").write_text("id,name\n1,ann\n2,bob\n")
    (tmp_path / "tuesday.csv").write_text("id,name,_diff\n2,bob,-1\n2,rob,1\n")
    made = run("create", "cl", "users", *USERS)
    assert made.out == "users: id: int64 not null, name: string\n"
    assert words(run("ls", "cl"))[-9:] == ["users", "counter", "[0]", "[0]", "0", "0", "0", "0", "0"]
    assert words(run("append", "cl", "users", "monday.csv")) == ["rows", "lower", "upper", "2", "[0]", "[1]"]
    assert words(run("append", "cl", "users", "tuesday.csv"))[3:] == ["2", "[1]", "[2]"]
    shown = [line.rstrip() for line in run("snapshot", "cl", "users").out.splitlines()]
    assert shown == ["id  name  _time  _diff", "1   ann   1      1", "2   rob   1      1"]
    some = run("snapshot", "cl", "users", "--where", "name LIKE 'r%'", "--columns", "name, id", "--json")
    assert some.lines == [{"name": "rob", "id": 2, "_time": 1, "_diff": 1}]
    shown = [line.split() for line in run("changes", "cl", "users", "0", "1").out.splitlines()]
    assert shown[1:] == [["2", "bob", "1", "-1"], ["2", "rob", "1", "1"]]
    merged = run("merge", "cl", "users", "--since", "1").out.split()
    assert merged[:5] == ["batches", "runs", "parts", "updates", "bytes"]
    assert merged[5:10] == ["before", "2", "2", "2", "4"]
    assert merged[11:16] == ["after", "1", "1", "1", "2"]
    shown = run("show", "cl", "users").out
    assert re.search(r"name +string +value +yes", shown) and re.search(r"id +int64 +key +no", shown)
    assert re.search(r"\[0, 2\) +\[0\] +\[2\] +\[1\] +1 +1 +2", shown)


def test_show_tells_of_slices_and_bases_where_there_are_some(run, tmp_path):
    with tidelake.open(tmp_path / "cl", config=Config(slice_rows=4)) as lake:
        counts = lake.create("counts", pa.schema([("id", pa.int64()), ("n", pa.int64())]), key=["id"])
        for n in range(12):
            old = [{"id": 1, "n": n - 1, "_diff": -1}] if n else []
            counts.append(pa.Table.from_pylist([*old, {"id": 1, "n": n, "_diff": 1}]))
        report = counts.maintain()
        state = counts.state()
    assert report.merges >= report.bases > 0
    shown = run("show", "cl", "counts", "--json").json
    assert shown["slices"] == len(state.spine.slices) > 1
    assert [base["rows"] for base in shown["bases"]] == [1] * len(state.bases)
    assert shown["rows_of_bases"] == len(state.bases)
    assert shown["newest_snapshot_reads"] == 1
    text = run("show", "cl", "counts").out
    assert ", newest snapshot reads 1\n" in text and re.search(r"boundary +at +parts +rows +bytes", text)
    run("create", "cl", "users", *USERS)
    assert "history" not in run("show", "cl", "users").out


def test_json_says_the_same_to_programs(run, users):
    (listed,) = run("ls", "cl", "--json").json
    assert {k: listed[k] for k in ("collection", "time", "since", "upper", "batches", "updates")} == {
        "collection": "users", "time": "counter", "since": [0], "upper": [2], "batches": 2, "updates": 4,
    }  # fmt: skip
    shown = run("show", "cl", "users", "--json").json
    assert shown["columns"][0] == {"column": "id", "type": "int64", "role": "key", "nullable": False}
    assert [batch["lower"] for batch in shown["spine"]] == [[0], [1]]
    assert shown["bytes"] == sum(batch["bytes"] for batch in shown["spine"]) > 0
    assert (shown["writers"], shown["holds"], shown["seqno"]) == ([], [], 3)
    assert run("snapshot", "cl", "users", "--json").lines == [
        {"id": 2, "name": None, "_time": 1, "_diff": 1},
        {"id": 3, "name": "cid", "_time": 1, "_diff": 1},
    ]
    assert run("changes", "cl", "users", "0", "1", "--json").lines == [
        {"id": 1, "name": "ann", "_time": 1, "_diff": -1},
        {"id": 3, "name": "cid", "_time": 1, "_diff": 1},
    ]
    some = run("changes", "cl", "users", "0", "1", "--where", "id > 1", "--columns", "id", "--json")
    assert some.lines == [{"id": 3, "_time": 1, "_diff": 1}]
    before, after = run("merge", "cl", "users", "--json").json
    assert (before["runs"], after["runs"]) == (2, 1)
    (appended,) = run("append", "cl", "users", "a.csv", "--time", "7", "--upper", "9", "--json").json
    assert appended == {"rows": 2, "lower": [2], "upper": [9]}


def test_rows_that_are_there_less_than_no_times_are_shown_with_their_number(run, users, tmp_path):
    assert run("show", "cl", "users", "--json").json["negative_rows"] == 0
    assert "negative multiplicity" not in run("show", "cl", "users").out
    (tmp_path / "gone.jsonl").write_text('{"id": 9, "name": "zoe", "_diff": -1}\n')
    assert run("append", "cl", "users", "gone.jsonl").code == 0
    assert run("show", "cl", "users", "--json").json["negative_rows"] == 1
    assert "rows with negative multiplicity: 1\n" in run("show", "cl", "users").out


def test_writers_and_holds_are_shown(run, users):
    with tidelake.open(users) as lake:
        collection = lake.collection("users")
        collection.writer("nightly", owner="job-7").append(pa.table({"id": [9], "name": ["z"]}))
        reader = collection.reader("a report")
        collection.critical_hold("billing")
        collection.retain(1000)
        # A lake that is closed gives up the holds of its readers.
        shown, text = run("show", "cl", "users", "--json").json, run("show", "cl", "users").out
        reader.close()
    assert [(w["writer"], w["owner"], w["sequence"], w["upper"]) for w in shown["writers"]] == [
        ("nightly", "job-7", 0, [3])
    ]
    assert [(h["kind"], h["purpose"], h["since"]) for h in shown["holds"]] == [
        ("leased", "a report", [0]),
        ("critical", "", [0]),
    ]
    assert (shown["holds"][1]["hold"], shown["retention"]) == ("billing", 1000)
    assert "nightly" in text and "a report" in text and "billing" in text
    assert "retention: since follows upper at a distance of 1,000\n" in text


@pytest.mark.promise(
    "`tidelake holds` shows all holds, and which of them keep `since` back", rule="`cli/holds.py`"
)
def test_who_holds_what_is_shown_with_who_keeps_since_back(run, users):
    assert run("holds", "cl").out == "no holds\n"
    with tidelake.open(users) as lake:
        c = lake.collection("users")
        early, late = c.reader("early", since=0), c.reader("late", since=1)
        c.critical_hold("pipeline", "me", since=1)
        c.advance_since(1)
        lines = run("holds", "cl", "users", "--json").json
        by_purpose = {line["purpose"]: line for line in lines}
        assert [line["kind"] for line in lines] == ["leased", "leased", "critical"]
        assert {purpose: line["keeps_since"] for purpose, line in by_purpose.items()} == {
            "early": True,
            "late": False,
            "token 'me'": False,
        }
        shown = by_purpose["early"]
        assert shown["since"] == [0] and shown["pinned_versions"] and shown["collection"] == "users"
        assert 0 < shown["expires_in_s"] <= 900
        assert shown["opened_ms"] <= shown["last_sign_of_life_ms"]
        assert by_purpose["token 'me'"]["expires_in_s"] is None
        text = run("holds", "cl").out
        assert "early" in text and "pipeline" in text
        early.close()
        late.close()
    assert run("holds", "cl", "missing").code == 2


def test_retention_is_set_and_said(run, users):
    line = run("retain", "cl", "users", "1", "--json").json[0]
    assert line == {"collection": "users", "retention": 1, "since": [1], "upper": [2]}
    assert run("retain", "cl", "users", "all", "--json").json[0]["retention"] == "all"
    assert run("create", "cl", "clocked", *USERS, "--time", "ms").code == 0
    for text, window in (("7d", 604_800_000), ("12h", 43_200_000), ("30m", 1_800_000), ("45s", 45_000)):
        assert run("retain", "cl", "clocked", text, "--json").json[0]["retention"] == window
    for text in ("7 days", "d", "", "-1", "0", "1.5h", "99999999999999999d", "7d"):
        answer = run("retain", "cl", "users", "--", text)
        assert answer.code == 2 and "retention" in answer.err, text


def test_retention_is_set_of_several_collections_or_all_if_all_can_have_it(run, users):
    for name in ("one", "two"):
        assert run("create", "cl", name, *USERS, "--time", "ms").code == 0
    kept = run("retain", "cl", "one", "two", "7 days", "--json").json
    assert [(line["collection"], line["retention"]) for line in kept] == [
        ("one", 604_800_000),
        ("two", 604_800_000),
    ]
    assert {line["retention"] for line in run("retain", "cl", "--all", "5", "--json").json} == {5}
    answer = run("retain", "cl", "--all", "2 hours")
    assert answer.code == 2 and "'users'" in answer.err
    for text, window in (
        ("1 hour", 3_600_000),
        ("30minutes", 1_800_000),
        ("1 second", 1000),
        ("2h", 7_200_000),
    ):
        assert run("retain", "cl", "one", text, "--json").json[0]["retention"] == window
    assert [line["retention"] for line in run("retain", "cl", "--all", "all", "--json").json] == ["all"] * 3
    for arguments in (("5",), ("users", "5", "--all")):
        answer = run("retain", "cl", *arguments)
        assert answer.code == 2 and "give names, or --all" in answer.err


def test_history_of_several_collections_goes_at_once(run, users):
    assert run("create", "cl", "a=b", *USERS, "--time", "ms").code == 0
    with tidelake.open(users) as lake:
        lake.collection("a=b").append(pa.table({"id": [1], "name": ["x"], "_time": [86_400_000]}))
    lines = run("advance-since", "cl", "users=1", "a=b=1970-01-02", "--json").json
    assert [(line["collection"], line["since"]) for line in lines] == [("users", [1]), ("a=b", [86_400_000])]
    for words, said in (
        (("users=9", "a=b=1970-01-02"), "past the upper"),
        (("users=1", "missing=1"), "no collection 'missing'"),
        (("users",), "not COLLECTION=TIME"),
        (("users=1", "users=2"), "twice"),
        (("users=x",), "not a time"),
    ):
        answer = run("advance-since", "cl", *words)
        assert answer.code == 2 and said in answer.err, words
    assert run("ls", "cl", "--json").json[1]["since"] == [1]


def test_a_table_stops_at_the_limit_and_says_so(run, users, tmp_path):
    pq.write_table(pa.table({"id": range(100, 150), "name": ["x"] * 50}), tmp_path / "many.parquet")
    run("append", "cl", "users", "many.parquet")
    assert len(run("snapshot", "cl", "users").out.splitlines()) == 1 + 20 + 1
    shown = run("snapshot", "cl", "users", "--limit", "3").out.splitlines()
    assert len(shown) == 1 + 3 + 1 and "more rows; see --limit" in shown[-1]
    assert run("snapshot", "cl", "users", "--limit", "0").out.startswith("... and more rows")
    assert "more rows" not in run("snapshot", "cl", "users", "--limit", "52").out
    assert len(run("snapshot", "cl", "users", "--limit", "3", "--json").lines) == 3
    assert len(run("snapshot", "cl", "users", "--json").lines) == 52
    assert run("snapshot", "cl", "users", "--limit", "3", "--out", "x.csv").out == "3 rows written to x.csv\n"


def test_nothing_is_said_as_nothing(run, users):
    assert run("changes", "cl", "users", "1", "1").out == "no rows\n"
    assert run("changes", "cl", "users", "1", "1", "--json").out == ""
    tidelake.open("empty").close()
    assert "make one with tidelake create" in run("ls", "empty").out
    assert run("ls", "empty", "--json").json == []


def test_markup_and_control_characters_in_data_are_shown_and_not_obeyed(run, users, tmp_path):
    names = ["[bold]x[/bold]", "[/]", "a\nb", "\x1b[31mred", "日本 \t"]
    pq.write_table(pa.table({"id": [10, 11, 12, 13, 14], "name": names}), tmp_path / "n.parquet")
    run("append", "cl", "users", "n.parquet")
    shown = run("snapshot", "cl", "users").out
    for text in ("[bold]x[/bold]", "[/]", "a\\nb", "\\x1b[31mred", "日本 \\t"):
        assert text in shown
    assert "\x1b" not in shown
    assert len(shown.splitlines()) == 1 + 2 + 5


def test_markup_in_names_is_shown_and_controls_of_errors_are_not_obeyed(run, users, tmp_path):
    key, value = "[red]id[/red]", ":x: :smile:"
    with tidelake.open("cl") as lake:
        lake.create("odd", {key: "int64", value: "string"}, key=[key])
    (tmp_path / "r.jsonl").write_text('{"[red]id[/red]": 1, ":x: :smile:": "\\u009b31m"}\n', encoding="utf-8")
    run("append", "cl", "odd", "r.jsonl")
    shown = run("snapshot", "cl", "odd", "--columns", "nope\x1b[31m").err
    assert "nope" in shown and "\x1b" not in shown
    assert run("snapshot", "cl", "odd").out.split("\n")[0].split()[:3] == ["[red]id[/red]", ":x:", ":smile:"]
    printed = run("snapshot", "cl", "odd", "--json")
    assert "\x9b" not in printed.out and printed.lines[0][":x: :smile:"] == "\x9b31m"
    assert "\x1b" not in run("snapshot", "cl\x1b[31m", "odd").err


def test_odd_names_of_collections_can_be_typed(run):
    names = ["../x", "日本", "a b", "--json"]
    for name in names:
        assert run("create", *USERS, "--", "cl", name).code == 0
    assert sorted(row["collection"] for row in run("ls", "cl", "--json").json) == sorted(names)


# Times


def test_times_since_1970_may_be_dates(run, tmp_path):
    run("create", "cl", "events", *USERS, "--time", "ms")
    (tmp_path / "a.csv").write_text("id,name\n1,a\n")
    (tmp_path / "b.csv").write_text("id,name\n2,b\n")
    (answer,) = run("append", "cl", "events", "a.csv", "--time", "2024-01-31T12:00:00Z", "--json").json
    noon = int(datetime.datetime(2024, 1, 31, 12, tzinfo=datetime.UTC).timestamp() * 1000)
    assert answer["upper"] == [noon + 1]
    run("append", "cl", "events", "b.csv", "--time", "2024-01-31T14:00:00+01:00", "--upper", "2024-02-01")
    for asked, ids in (
        ("2024-01-31", []),
        (str(noon), [1]),
        ("2024-01-31T12:59:59.999", [1]),
        ("2024-01-31T13:00", [1, 2]),
        ("now", [1, 2]),
    ):
        found = run("snapshot", "cl", "events", "--as-of", asked, "--json")
        assert [row["id"] for row in found.lines] == ids
        assert ("is taken as" in found.err) == (asked.startswith("2024")), found.err
    refused = run("snapshot", "cl", "events", "--as-of", "2024-02-30")
    assert refused.code == 2 and "give a whole number, a date and time, now" in refused.err
    assert run("snapshot", "cl", "events", "--as-of", "1969-12-31").code == 2


def test_tuples_have_commas(run, tmp_path):
    run("create", "cl", "t", *USERS, "--time", "tuple(2)")
    (tmp_path / "a.csv").write_text("id,name\n1,a\n")
    for arguments, said in (
        (["append", "cl", "t", "a.csv"], "give --time, or _time_0, _time_1 in"),
        (["append", "cl", "t", "a.csv", "--time", "1,2"], "give --upper"),
        (["append", "cl", "t", "a.csv", "--time", "1", "--upper", "2,3"], "a tuple of 2"),
        (["snapshot", "cl", "t"], "give --as-of"),
    ):
        answer = run(*arguments)
        assert answer.code == 2 and said in answer.err
    (answer,) = run("append", "cl", "t", "a.csv", "--time", "1,2", "--upper", "2,3", "--json").json
    assert (answer["lower"], answer["upper"]) == ([[0, 0]], [[2, 3]])
    (row,) = run("snapshot", "cl", "t", "--as-of", "1,2", "--json").lines
    assert (row["_time_0"], row["_time_1"]) == (1, 2)


# Files


ODD = {
    "id": pa.array([1, 2, 3], pa.int64()),
    "s": ["", None, 'a,"b"\nc\u00e9\u2028'],
    "na": ["NA", "null", "NaN"],
    "f": pa.array([math.inf, 0.1, None]),
    "nan": pa.array([math.nan, -math.inf, 5e-324]),
    "big": pa.array([2**63 - 1, -(2**63), None], pa.int64()),
    "u": pa.array([2**64 - 1, 0, None], pa.uint64()),
    "dec": pa.array([decimal.Decimal("1.50"), decimal.Decimal("-99999999.99"), None], pa.decimal128(10, 2)),
    "bool": [True, False, None],
    "day": pa.array([datetime.date(1, 1, 1), datetime.date(9999, 12, 31), None]),
    "ns": pa.array([1, -1, None], pa.timestamp("ns")),
    "zone": pa.array([0, 1_711_848_600_000_001, None], pa.timestamp("us", "Europe/Prague")),
    "s_": pa.array([0, -62_135_596_800, None], pa.timestamp("s")),
    "clock": pa.array([0, 86_399_999_999, None], pa.time64("us")),
    "span": pa.array([0, -7, None], pa.duration("ns")),
}
NESTED = {
    "bin": [b"", b"\xff\x00a", None],
    "fixed": pa.array([b"abc", b"\xff\x00\x01", None], pa.binary(3)),
    "half": pa.array([1.5, math.nan, None], pa.float16()),
    "dec256": pa.array([decimal.Decimal("1" * 60), None, decimal.Decimal(0)], pa.decimal256(70, 2)),
    "list": pa.array([[1, None], [], None], pa.list_(pa.int64())),
    "st": pa.array(
        [{"a": 1, "b": b"\xff", "at": 7}, {"a": None, "b": None, "at": None}, None],
        pa.struct([("a", pa.int64()), ("b", pa.binary()), ("at", pa.timestamp("us", "UTC"))]),
    ),
    "days": pa.array([[datetime.date(2024, 1, 2), None], [], None], pa.list_(pa.date32())),
}


@pytest.mark.promise(
    "What the command line writes reads back as it was; an output file is whole or as it was",
    rule="`cli/jsonlines.py`, `cli/output.py`",
    also=["::test_an_out_file_is_whole_or_as_it_was"],
)
@pytest.mark.parametrize(
    ("suffix", "columns"), [("parquet", {**ODD, **NESTED}), ("jsonl", {**ODD, **NESTED}), ("csv", ODD)]
)
def test_what_is_written_reads_back_as_it_was(run, tmp_path, suffix, columns):
    given = pa.table(columns)
    key = given.schema.field("id").with_nullable(False)
    schema = given.schema.set(0, key)
    with tidelake.open("cl") as lake:
        lake.create("a", schema, key=["id"]).append(given)
        lake.create("b", schema, key=["id"])
    file = f"out.{suffix}"
    assert run("snapshot", "cl", "a", "--out", file).out == f"3 rows written to {file}\n"
    assert run("append", "cl", "b", file).code == 0
    with tidelake.open("cl") as lake:
        a, b = (lake.collection(name).snapshot().read_all() for name in "ab")
    # As text, in which NaN equals itself; Python has no nanoseconds.
    assert str(a.drop_columns(["ns", "span"]).to_pydict()) == str(b.drop_columns(["ns", "span"]).to_pydict())
    assert a["span"].equals(b["span"])
    assert a["ns"].cast(pa.int64()).equals(b["ns"].cast(pa.int64()))
    assert a.num_rows == 3


def test_json_is_strict(run, tmp_path):
    with tidelake.open("cl") as lake:
        lake.create("a", pa.table(ODD).schema, key=["id"]).append(pa.table(ODD))

    def no_constants(name):
        raise AssertionError(f"{name} is not JSON")

    out = run("snapshot", "cl", "a", "--json").out
    rows = [json.loads(line, parse_constant=no_constants) for line in out.split("\n") if line]
    assert [row["nan"] for row in rows] == ["NaN", "-Infinity", 5e-324]
    assert rows[0]["dec"] == "1.50"
    assert rows[0]["big"] == 2**63 - 1


FAR = {
    "day": pa.array([2**31 - 1], pa.int32()).cast(pa.date32()),
    "old": pa.array([-800_000], pa.int32()).cast(pa.date32()),
    "us": pa.array([2**62], pa.timestamp("us")),
    "zone": pa.array([2**62], pa.timestamp("us", "UTC")),
    "ns": pa.array([1], pa.timestamp("ns")),
    "span": pa.array([2**62], pa.duration("s")),
    "days": pa.array([[2**31 - 1]], pa.list_(pa.int32())).cast(pa.list_(pa.date32())),
    "st": pa.array([{"at": 2**62}], pa.struct([("at", pa.timestamp("us"))])),
}


@pytest.mark.parametrize("name", FAR)
def test_times_that_python_does_not_hold_are_shown_in_a_table(run, name):
    given = pa.table({"id": [1], name: FAR[name]})
    with tidelake.open("cl") as lake:
        lake.create("a", given.schema, key=["id"]).append(given)
    answer = run("snapshot", "cl", "a")
    assert answer.code == 0 and len(answer.out.splitlines()) == 2
    # Arrow's own text of such a time may look like another one.
    shown = {"day": 2**31 - 1, "old": -800_000, "us": 2**62, "zone": 2**62}
    assert name not in shown or str(shown[name]) in answer.out
    refused = run("snapshot", "cl", "a", "--json")
    if name in ("ns", "span"):
        assert refused.code == 0
    else:
        assert refused.code == 2 and "outside of the years 1 to 9999" in refused.err


def test_a_text_that_reads_like_a_time_out_of_range_is_a_text(run):
    text = "<value out of range: 7>"
    nested = pa.struct([("s", pa.string()), ("at", pa.timestamp("us"))])
    given = pa.table({"id": [1], "s": [text], text: [1], "st": pa.array([{"s": text, "at": 0}], nested)})
    with tidelake.open("cl") as lake:
        lake.create("a", given.schema, key=["id"]).append(given)
    (row,) = run("snapshot", "cl", "a", "--json").lines
    assert row["s"] == row["st"]["s"] == text and row[text] == 1


def test_a_format_that_cannot_hold_a_column_is_refused_and_leaves_no_file(run, tmp_path):
    with tidelake.open("cl") as lake:
        columns = {"id": [1], "l": pa.array([[1]])}
        lake.create("a", pa.table(columns).schema, key=["id"]).append(pa.table(columns))
    (tmp_path / "x.csv").write_text("as it was")
    answer = run("snapshot", "cl", "a", "--out", "x.csv")
    assert answer.code == 2
    assert (
        answer.err.startswith("tidelake: --out x.csv cannot hold these rows:")
        and "use .parquet" in answer.err
    )
    assert (tmp_path / "x.csv").read_text() == "as it was"
    assert [p.name for p in tmp_path.iterdir() if p.name != "cl"] == ["x.csv"]


@pytest.mark.full
def test_an_out_file_is_whole_or_as_it_was(users, tmp_path):
    """A limit on file sizes stands for a full disk."""
    names = [f"n{n * 7919 % 90_001}" for n in range(90_000)]
    pq.write_table(pa.table({"id": range(10, 90_010), "name": names}), tmp_path / "m.parquet")
    with tidelake.open(users) as lake:
        lake.collection("users").append(pq.read_table(tmp_path / "m.parquet"))
    code = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000)); " + TIDELAKE
    for suffix in ("csv", "jsonl", "parquet"):
        out = tmp_path / f"x.{suffix}"
        out.write_text("as it was")
        answer = python(code, "snapshot", users, "users", "--out", out)
        assert answer.returncode == 5
        assert re.fullmatch(
            r"tidelake: cannot write --out \S+: .*; choose another place or make room\n", answer.stderr
        )
        assert answer.stdout == ""
        assert out.read_text() == "as it was"
    assert not [p.name for p in tmp_path.iterdir() if p.name.endswith(".part")]


BAD_FILES = {
    "empty.csv": (b"", "empty.csv is empty: it needs a header line"),
    "empty.jsonl": (b"\n\n", "empty.jsonl holds no rows"),
    "bad.csv": (
        b'id,name\n1,"a\nb"\n\nx,a\n',
        "bad.csv line 5: column 'id' is 'x', which is no whole number",
    ),
    "ragged.csv": (b"id,name\n1,a\n2\n", "ragged.csv line 3 has 1 values, and the header 2"),
    "latin.csv": (b"id,name\n1,\xe9\n", "latin.csv cannot be read as csv: .*UTF8"),
    "bad.jsonl": (b'{"id": 1, "name": "a"}\n{"id": 2,\n', "bad.jsonl line 2 is not JSON: "),
    "list.jsonl": (b"[1]\n", "list.jsonl line 1 is not a JSON object: give one object a line"),
    "latin.jsonl": (b'{"id": 1, "name": "\xe9"}\n', "latin.jsonl line 1 is not JSON"),
    "text.jsonl": (
        b'{"id": 1, "name": "a"}\n{"id": "2", "name": "b"}\n',
        "line 2: column 'id' is \"2\", expected int64",
    ),
    "half.jsonl": (b'{"id": 1.5, "name": "a"}\n', "line 1: column 'id' is .*1.5.*, expected int64"),
    "huge.jsonl": (
        b'{"id": 9223372036854775808, "name": "a"}\n',
        "line 1: column 'id' is 9223372036854775808",
    ),
    "other.jsonl": (b'{"id": 1, "nmae": "a"}\n', "other.jsonl: missing column 'name'"),
    "more.jsonl": (b'{"id": 1, "name": "a", "extra": 1}\n', "unknown column 'extra'"),
    "null.csv": (b"id,name\n,a\n", "column 'id' must not be null, but is in row 0"),
    "zero.csv": (b"id,name,_diff\n1,a,0\n", "a diff must not be 0"),
    "bad.parquet": (b"no", "bad.parquet cannot be read as parquet"),
    "rows.xlsx": (b"x", "rows.xlsx has an unknown format: use .parquet, .csv or .jsonl"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_one_line_and_appends_nothing(run, users, tmp_path, name):
    data, said = BAD_FILES[name]
    (tmp_path / name).write_bytes(data)
    before = run("show", "cl", "users", "--json").json
    for files in ([name], ["a.csv", name]):
        answer = run("append", "cl", "users", *files)
        assert answer.code == 2
        assert answer.err.startswith("tidelake: ") and answer.err.count("\n") == 1
    assert re.search(said, run("append", "cl", "users", name).err)
    assert run("show", "cl", "users", "--json").json == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("d,n\n2024-01-01,1.5\n2024-13-01,1\n", "line 3: column 'd' is '2024-13-01', expected date32[day]"),
        (
            "d,n\n2024-01-01,1.5\n2024-01-02,1.555\n",
            "line 3: column 'n' is '1.555', expected decimal128(9, 2)",
        ),
        ("d,n\n2024-01-01,x\n", "line 2: column 'n' is 'x', expected decimal128(9, 2)"),
    ],
)
def test_a_text_that_is_no_value_is_told_with_its_line(run, tmp_path, text, said):
    (tmp_path / "f.csv").write_text(text)
    run("create", "cl", "days", "--key", "d", "--column", "d:date32", "--column", "n:decimal128(9,2)")
    assert run("append", "cl", "days", "f.csv")[::2] == (2, f"tidelake: f.csv {said}\n")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            ["changes", "cl", "users", "1", "0"],
            "changes after 1 cannot end at 0, .*: give the earlier time first",
        ),
        (["retain", "cl", "users", "7d"], "'users': retention 7d is a span of a clock, .*: give a number"),
        (
            ["snapshot", "cl", "users", "--where", "id >"],
            "--where 'id >' cannot .*: a piece is missing in line 1",
        ),
        (["snapshot", "cl", "users", "--as-of", "99"], r"time 99 is not closed.*wait for it \(--timeout\)"),
        (["verify", "cl", "users"], "'users' is no view: tidelake view makes one"),
    ],
)
def test_what_a_command_refuses_is_said_in_words_of_the_command_line(run, users, command, said):
    for _ in range(2):
        run("append", "cl", "users", "a.csv")
    answer = run(*command)
    assert answer.code in (2, 4) and re.search(said, answer.err)


def test_a_table_too_wide_for_the_terminal_breaks_no_word(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "dumb")
    path = "a/path" * 15
    output.table([{"at": path, "rows": 1_000}] * 2, False)
    one = f"at    {path}\nrows  1,000\n"
    assert capsys.readouterr().out == f"{one}\n{one}"
    output.table([{"at": "some words fit", "rows": 1}], False)
    assert "at" in capsys.readouterr().out.splitlines()[0]


TYPED = {
    "l": pa.list_(pa.string()),
    "pair": pa.list_(pa.string(), 3),
    "st": pa.struct([("a", pa.int64())]),
    "t32": pa.time32("s"),
    "t64": pa.time64("us"),
    "f16": pa.float16(),
    "f32": pa.float32(),
    "f64": pa.float64(),
    "fs": pa.list_(pa.float32()),
    "dec": pa.decimal128(10, 2),
    "s": pa.string(),
}
NOT_OF_THE_TYPE = [
    ("l", '"abc"'),
    ("l", '{"a": 1}'),
    ("pair", '"abc"'),
    ("st", '"abc"'),
    ("st", '["a"]'),
    ("st", "1"),
    ("t32", '"12:00:00Z"'),
    ("t64", '"12:00:00.5+01:00"'),
    ("f16", "1e5"),
    ("f32", "1e300"),
    ("f32", "16777217"),
    ("fs", "[1.5, 1e300]"),
    ("f64", "1e400"),
    ("f64", "9007199254740993"),
    ("f64", "1" * 400),
    ("dec", "1e999999999"),
]


@pytest.fixture
def typed(run):
    """A lake `cl` with an empty collection `typed`, and what appends a line to it, after a good one."""
    schema = pa.schema([pa.field("id", pa.int64(), False), *(pa.field(n, t) for n, t in TYPED.items())])
    with tidelake.open("cl") as lake:
        lake.create("typed", schema, key=["id"])

    def append(**texts):
        good = dict.fromkeys(TYPED, "null")
        lines = [{"id": "1", **good}, {"id": "2", **good, **texts}]
        rows = ["{" + ", ".join(f'"{k}": {v}' for k, v in line.items()) + "}\n" for line in lines]
        Path("rows.jsonl").write_text("".join(rows))
        return run("append", "cl", "typed", "rows.jsonl")

    return append


@pytest.mark.parametrize(("column", "text"), NOT_OF_THE_TYPE)
def test_a_json_value_that_is_not_of_the_type_is_refused(typed, column, text):
    answer = typed(**{column: text})
    assert answer.code == 2 and answer.err.count("\n") == 1
    assert answer.err.startswith(f"tidelake: rows.jsonl line 2: column '{column}' is ")
    assert f", expected {TYPED[column]}" in answer.err


def test_numbers_that_a_float_holds_or_rounds_are_taken(run, typed):
    assert typed(f32="0.1", f64="9007199254740992", fs='[1e38, "Infinity", 16777216]').code == 0
    row = run("snapshot", "cl", "typed", "--json").lines[1]
    assert row["f32"] == pytest.approx(0.1) and row["f64"] == 2**53
    assert row["fs"] == [pytest.approx(1e38), "Infinity", 2**24]


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize("column", ["id", "st", "f64", "s", "extra"])
@pytest.mark.parametrize(
    "text",
    ["1e9999999999999999999", "[1e9999999999999999999]", DEEP, *("[" * n + "]" * n for n in (400, 800, 900))],
)
def test_huge_exponents_and_deep_nesting_are_one_line(run, typed, column, text):
    answer = typed(**{column: text})
    assert answer.code == 2 and answer.err.count("\n") == 1
    if (
        column == "extra" and text.startswith("[[") and text is not DEEP
    ):  # may be parsed, and be refused by its name
        assert re.match("tidelake: (rows.jsonl line 2|unknown column 'extra')", answer.err)
    else:
        assert answer.err.startswith("tidelake: rows.jsonl line 2")
    Path("like.jsonl").write_text(f'{{"id": 1}}\n{{"id": 2, "x": {text}}}\n')
    like = run("create", "cl", "new", "--like", "like.jsonl", "--key", "id")
    assert like.code in (0, 2) and "Traceback" not in like.err
    if text is DEEP or "e" in text:
        assert like.err.startswith("tidelake: like.jsonl line 2 ")


def test_a_guessed_number_does_not_become_infinite(run, tmp_path):
    (tmp_path / "like.jsonl").write_text('{"id": 1, "x": 1.5}\n{"id": 2, "x": 1e400}\n')
    answer = run("create", "cl", "new", "--like", "like.jsonl", "--key", "id")
    assert answer.code == 2
    assert answer.err == "tidelake: like.jsonl line 2: column 'x' is \"1E+400\", expected double\n"


def test_files_may_hold_the_new_rows_of_their_keys_or_all_that_there_is(run, users, tmp_path):
    def contents():
        return [(row["id"], row["name"]) for row in run("snapshot", "cl", "users", "--json").lines]

    (tmp_path / "new.csv").write_text("id,name\n2,bob\n9,zoe\n")
    (line,) = run("append", "cl", "users", "new.csv", "--envelope", "upsert", "--json").json
    assert line == {"rows": 2, "lower": [2], "upper": [3]}
    assert contents() == [(2, "bob"), (3, "cid"), (9, "zoe")]
    (tmp_path / "events.jsonl").write_text(
        '{"id": 2, "name": "late", "seq": 1, "gone": false}\n'
        '{"id": 2, "name": "ben", "seq": 2, "gone": false}\n'
        '{"id": 9, "name": null, "seq": 3, "gone": true}\n'
    )
    run(
        "append",
        "cl",
        "users",
        "events.jsonl",
        "--envelope",
        "upsert",
        "--order-by",
        "seq",
        "--delete-column",
        "gone",
        "--time",
        "5",
    )
    assert contents() == [(2, "ben"), (3, "cid")] and run("ls", "cl", "--json").json[0]["upper"] == [6]
    (tmp_path / "dump.csv").write_text("id,name\n3,cid\n4,dan\n")
    run("append", "cl", "users", "dump.csv", "--envelope", "snapshot")
    assert contents() == [(3, "cid"), (4, "dan")]
    changed = run("changes", "cl", "users", "5", "6", "--json").lines
    assert [(row["id"], row["_diff"]) for row in changed] == [(2, -1), (4, 1)]
    for options, said in (
        (("--envelope", "upsert", "--upper", "9"), "--upper is for updates"),
        (("--envelope", "snapshot", "--order-by", "id"), "are for --envelope upsert"),
        (("--delete-column", "id"), "are for --envelope upsert"),
        (("--envelope", "none"), "none"),
        (("--envelope", "upsert", "--order-by", "nothing"), "nothing"),
        (("--envelope", "snapshot", "--time", "0"), "not at or after"),
    ):
        answer = run("append", "cl", "users", "dump.csv", *options)
        assert answer.code == 2 and said in answer.err, options
    assert contents() == [(3, "cid"), (4, "dan")]


def test_an_upsert_removes_only_what_is_marked(run, users, tmp_path):
    (tmp_path / "null.csv").write_text("id,name\n2,\n9,\n")
    (tmp_path / "gone.csv").write_text("id,gone\n3,true\n")
    run("upsert", "cl", "users", "null.csv")
    run("append", "cl", "users", "gone.csv", "--envelope", "upsert", "--delete-column", "gone")
    found = [(row["id"], row["name"]) for row in run("snapshot", "cl", "users", "--json").lines]
    assert found == [(2, None), (9, None)]


def test_rows_are_deleted_by_files_of_keys_or_a_condition(run, users, tmp_path):
    (tmp_path / "keys.csv").write_text("id\n2\n77\n")
    (line,) = run("delete", "cl", "users", "keys.csv", "--author", "ann", "--json").json
    assert line == {"removed": 1, "absent": 1, "lower": [2], "upper": [3]}
    (line,) = run("delete", "cl", "users", "--where", "name = 'cid'", "--time", "6", "--json").json
    assert (line["removed"], line["upper"]) == (1, [7]) and not run("snapshot", "cl", "users", "--json").lines
    for given in ((), ("keys.csv", "--where", "TRUE")):
        refused = run("delete", "cl", "users", *given)
        assert refused.code == 2 and "if it is 'TRUE'" in refused.err
    (tmp_path / "gone.csv").write_text("id,gone\n2,true\n")
    (line,) = run("upsert", "cl", "users", "gone.csv", "--delete-column", "gone", "--json").json
    assert line["absent"] == 1


def test_several_files_are_one_commit_and_must_have_the_same_columns(run, users, tmp_path):
    (tmp_path / "c.csv").write_text("name,id\nc,7\n")
    (tmp_path / "d.jsonl").write_text('{"id": 8, "name": null}\n')
    (answer,) = run("append", "cl", "users", "c.csv", "d.jsonl", "--json").json
    assert answer == {"rows": 2, "lower": [2], "upper": [3]}
    (tmp_path / "e.csv").write_text("id,name,_diff\n7,c,-1\n")
    refused = run("append", "cl", "users", "c.csv", "e.csv")
    assert refused.code == 2
    assert "e.csv has columns id, name, _diff, but c.csv has name, id: append them one by one" in refused.err


def test_a_collection_may_be_made_like_a_file(run, users, tmp_path):
    run("snapshot", "cl", "users", "--out", "x.parquet")
    answer = run("create", "cl", "copy", "--key", "id", "--like", "x.parquet")
    assert answer.out == "copy: id: int64 not null, name: string\n"
    assert run("append", "cl", "copy", "x.parquet").code == 0
    # A word adds a column, or says another type of one in the file.
    more = ("--column", "name:large_string", "--column", "age:int32")
    answer = run("create", "cl", "more", "--key", "id", "--like", "x.parquet", *more)
    assert answer.out == "more: id: int64 not null, name: string, age: int32\n"


def test_a_tilde_is_the_home_directory_in_every_path(run, users, tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    assert run("snapshot", "cl", "users", "--out", "~/x.parquet").code == 0 and (home / "x.parquet").is_file()
    assert run("create", "~/lake", "u", "--key", "id", "--like", "~/x.parquet").code == 0
    assert run("append", "~/lake", "u", "~/x.parquet").code == 0
    assert run("copy", "~/lake", "~/other").code == 0
    assert {path.name for path in home.iterdir()} == {"x.parquet", "lake", "other"}
    assert "u" in run("ls", home / "other").out


def test_the_package_runs_as_the_command(tmp_path):
    command = [sys.executable, "-m", "tidelake", "ls", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.startswith("tidelake: ")


# Errors and exit codes


USAGE = [
    (["nope"], "no such command 'nope'; see tidelake --help"),
    (["snapshot", "cl", "users", "--limit", "x"], "'--limit': 'x' is no whole number; see"),
    (["snapshot", "cl", "users", "--limit", "-1"], "'--limit': -1 is not 0 or more; see"),
    (["serve", "cl", "--port", "99999"], "'--port': 99999 is not from 0 to 65535; see"),
    (["snapshot", "cl"], "tidelake snapshot: missing argument 'COLLECTION'; see tidelake snapshot --help"),
    (["snapshot", "cl", "users", "--limit", "-1"], "invalid value for '--limit'"),
    (["snapshot", "cl", "users", "--timeout", "-1"], "invalid value for '--timeout'"),
    (["snapshot", "cl", "users", "--as-of", "x"], "--as-of='x' is not a time of unit counter: give a whole"),
    (["snapshot", "cl", "users", "--as-of", "-1"], "--as-of='-1' is not a time"),
    (["snapshot", "cl", "users", "--as-of", "1,2"], "--as-of=(1, 2) is not a time"),
    (["snapshot", "cl", "userz"], "no collection 'userz'; the nearest names are 'users'"),
    (["snapshot", "nolake", "users"], "check the path, or create the lake"),
    (["ls", "a.csv"], "is a file, not a directory"),
    (["snapshot", "cl", "users", "--out", "x.txt"], "unknown format: use .parquet, .csv or .jsonl"),
    (["snapshot", "cl", "users", "--out", "no/x.csv"], "there is no directory 'no'; make it first"),
    (["changes", "cl", "users", "1", "0"], "changes after 1 cannot end at 0"),
    (["append", "cl", "users", "missing.csv"], "'missing.csv' does not exist"),
    (["append", "cl", "users", "a.csv", "--time", "0"], "time 0 is not at or after the lower frontier [2]"),
    (["append", "cl", "users", "a.csv", "--upper", "9"], "give --time, or _time in"),
    (["append", "cl", "users", "a.csv", "--time", "9", "--upper", "9"], "at or after the upper frontier [9]"),
    (["create", "cl", "users", "--key", "id", "--column", "id:int64"], "exists with key(id: int64 not"),
    (["create", "cl", "x", "--column", "id:int64"], "missing option '--key'"),
    (["create", "cl", "x", "--key", "id"], "--column NAME:TYPE for each, or --like FILE"),
    (["create", "cl", "x", "--key", "id", "--column", "id"], "must be NAME:TYPE, such as id:int64"),
    (["create", "cl", "x", "--key", "id", "--column", "id:wat"], "unknown type 'wat'; use int64"),
    (["create", "cl", "x", "--key", "no", "--column", "id:int64"], "no column named 'no'"),
    (["create", "cl", "x", *USERS, "--time", "days"], "not a unit of time"),
    (["create", "ftp://b/x", "x", *USERS], "ftp:// is no place of a lake"),
    (["merge", "cl", "users", "--since", "100"], "nothing could be read"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "said"), USAGE, ids=lambda x: " ".join(x) if isinstance(x, list) else ""
)
def test_what_must_be_mended_in_the_call_is_one_line_and_code_2(run, users, arguments, said):
    answer = run(*arguments)
    assert answer.code == 2
    assert said in answer.err
    assert answer.err.startswith("tidelake") and answer.err.count("\n") == 1
    assert answer.out == ""


def one_line(answer, code):
    assert answer.code == code
    assert answer.err.startswith("tidelake: ") and answer.err.count("\n") == 1
    assert "Traceback" not in answer.err


def test_code_3_is_a_conflict_that_cannot_be_settled(run, users):
    with tidelake.open(users) as lake:
        collection = lake.collection("users")
        collection.append(collection.update_schema.empty_table(), upper=[])
    answer = run("append", "cl", "users", "a.csv")
    one_line(answer, 3)
    assert "closed for good" in answer.err


def test_code_4_is_a_time_that_is_folded_or_open(run, users):
    answer = run("snapshot", "cl", "users", "--as-of", "9", "--timeout", "0")
    one_line(answer, 4)
    assert "time 9 is not closed: the last closed time is 1, 8 short of it" in answer.err
    run("merge", "cl", "users", "--since", "1")
    answer = run("changes", "cl", "users", "0", "1")
    one_line(answer, 4)
    assert "history at 0 is compacted: since=[1]" in answer.err
    run("create", "cl", "fresh", *USERS)
    before = time.monotonic()
    one_line(run("snapshot", "cl", "fresh"), 4)
    assert time.monotonic() - before < 5


def test_code_5_is_a_store_that_did_not_do_it(users, tmp_path):
    names = [f"n{n * 7919 % 90_001}" for n in range(90_000)]
    pq.write_table(pa.table({"id": range(90_000), "name": names}), tmp_path / "m.parquet")
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000)); " + TIDELAKE
    answer = python(limit, "append", users, "users", tmp_path / "m.parquet")
    assert answer.returncode == 5
    assert re.fullmatch(
        r"tidelake: cannot write .*file too large; raise the limit.*try again\n", answer.stderr
    )


def test_code_6_is_damage_or_a_newer_version(run, users):
    with tidelake.open(users) as lake:
        id_ = lake.collection("users").id
        assert lake.collection("users").merge().applied  # what was appended is so little that it is inline
    part = next((users / "blobs" / id_ / "parts").iterdir())
    damaged = bytearray(part.read_bytes())
    damaged[20] ^= 1
    part.write_bytes(damaged)
    answer = run("snapshot", "cl", "users")
    one_line(answer, 6)
    assert "is damaged" in answer.err and part.name in answer.err
    part.unlink()
    answer = run("snapshot", "cl", "users")
    one_line(answer, 6)
    assert part.name in answer.err
    marker = users / "tidelake.json"
    marker.write_text(marker.read_text().replace('"lake_format": 1', '"lake_format": 99'))
    answer = run("ls", "cl")
    one_line(answer, 6)
    assert "upgrade Tidelake" in answer.err


def test_every_kind_of_error_has_the_code_of_what_the_caller_does_next():
    def code(kind):
        return next((c for base, c in main_module._EXIT_CODES if issubclass(kind, base)), 1)

    kinds = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type)}
    codes = {name: code(kind) for name, kind in kinds.items() if issubclass(kind, errors.TidelakeError)}
    assert {name for name, c in codes.items() if c == 1} == {
        "TidelakeError",
        "InternalError",
        "BlobExists",
        "InlineFull",
    }
    assert codes["CollectionNotFound"] == codes["NotALake"] == codes["InvalidUpdates"] == 2


# Pipes, help, speed


@pytest.mark.full
def test_a_reader_that_goes_away_ends_the_command_quietly(users, tmp_path):
    with tidelake.open(users) as lake:
        lake.collection("users").append(pa.table({"id": range(10, 30_010), "name": ["x" * 20] * 30_000}))
    for options in ("--json", "--limit 5000"):
        command = f'"{sys.executable}" -c "{TIDELAKE}" snapshot cl users {options} | head -1'
        command += "; echo ${PIPESTATUS[0]}"
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
        )
        assert done.stderr == ""
        first, code = done.stdout.splitlines()
        assert code == "0" and "id" in first


@pytest.mark.full
def test_output_that_fits_the_buffer_of_a_closed_pipe_ends_quietly(users, tmp_path):
    command = f'(sleep 1; "{sys.executable}" -c "{TIDELAKE}" ls cl; echo $? >&2) | true'
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == "0\n"


HELP = """
import sys
from tidelake.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit as left:
    loaded = {m.partition(".")[0] for m in sys.modules} & {"pyspark", "py4j", "pandas"}
    print("LOADED", left.code, sorted(loaded), "pyarrow" in sys.modules)
"""


def test_each_command_has_a_summary_that_fits_its_line():
    # As wide as click makes it beside the longest name, in 80 columns.
    commands = main_module.cli.commands
    room = 78 - 6 - max(map(len, commands))
    assert not [name for name, one in commands.items() if one.get_short_help_str(room).endswith("...")]


@pytest.mark.parametrize(
    "command", ["", "create", "ls", "show", "append", "snapshot", "changes", "tail", "merge"]
)
def test_help_is_there_for_every_command_and_loads_no_spark(command):
    for option in ("--help", "-h"):
        done = python(HELP, *command.split(), option)
        *text, last = done.stdout.splitlines()
        assert last == "LOADED 0 [] False"
        assert text[0].startswith(f"Usage: tidelake {command}".rstrip())
        assert max(map(len, text)) <= 80
        assert done.stderr == ""


def test_reading_and_writing_load_no_spark(users):
    done = python(HELP, "snapshot", users, "users")
    assert not {"pyspark", "py4j"} & set(re.findall(r"\w+", done.stdout.splitlines()[-1]))


def test_the_version_is_the_one_of_the_package(run):
    project = Path(__file__).resolve().parents[2] / "pyproject.toml"
    version = tomllib.loads(project.read_text())["project"]["version"]
    assert run("--version").out.split()[-1] == version == tidelake.__version__


def test_the_installed_command_and_no_arguments_show_the_help():
    command = Path(sys.executable).with_name("tidelake")
    if not command.exists():
        pytest.skip("tidelake is not installed beside this Python")
    done = subprocess.run([command], capture_output=True, text=True, timeout=60, check=False, env=os.environ)
    assert done.returncode in (0, 2)
    assert "Commands:" in done.stdout + done.stderr


def test_a_time_back_is_an_argument_and_no_option(run, tmp_path):
    run("create", "cl", "events", *USERS, "--time", "ms")
    for name, back in (("a", "-3h"), ("b", "-1h")):
        (tmp_path / f"{name}.csv").write_text(f"id,name\n{ord(name)},{name}\n")
        assert run("append", "cl", "events", f"{name}.csv", "--time", back).code == 0
    (change,) = run("changes", "cl", "events", "-2h", "now", "--json").lines
    assert change["name"] == "b"
    (then,) = run("snapshot", "cl", "events", "--as-of", "-2h", "--json").lines
    assert then["name"] == "a"
    now = run("snapshot", "cl", "events", "--as-of", "now", "--json")
    assert len(now.lines) == 2 and "--as-of now: the last closed time, 20" in now.err
    assert run("snapshot", "cl", "events", "--as-of", "today").code in (0, 4)
    answer = run("snapshot", "cl", "events", "--as-of", "-30m")
    assert answer.code == 4 and "the last closed time is" in answer.err
    assert run("seal", "cl", "events", "-30m").code == 0
    assert run("snapshot", "cl", "events", "--as-of", "-31m").code == 0
    (counted, (told,)) = run("create", "cl", "users", *USERS), [run("seal", "cl", "users", "-30m")]
    assert (counted.code, told.code) == (0, 2) and "give a whole number" in told.err


def test_an_ean_stays_as_it_is(run, tmp_path):
    file, store = str(tmp_path / "f.csv"), str(tmp_path / "store")
    Path(file).write_text("ean,price\n0012345,4.5\n")
    assert run("create", store, "goods", "--key", "ean", "--like", file).code == 0
    assert run("append", store, "goods", file).code == 0
    assert '"ean": "0012345"' in run("snapshot", store, "goods", "--json").out
    none = json.loads(run("snapshot", store, "goods", "--columns", "", "--json").out)
    assert list(none) == ["_time", "_diff"]
