"""`python -m demo` from end to end: what it says, and that it fails when one row differs."""

import fcntl
import io
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from git_repositories import git, make_repository
from rich.console import Console

import tidelake
from demo import command, job, replay
from demo.repository import RepositorySource, own_checkout
from tidelake.cli.main import run
from tied_process import tied

spark_tests = pytest.mark.spark


class Ran(NamedTuple):
    """What the demo left with."""

    code: int
    out: str
    err: str


@pytest.fixture
def demo(spark, capfd):
    """Runs the demo in this process, in the session that is running already."""

    def ran(*arguments):
        with pytest.raises(SystemExit) as left:
            run(command.demo, "demo", [str(argument) for argument in arguments])
        return Ran(left.value.code or 0, *capfd.readouterr())

    yield ran
    assert spark.range(3).count() == 3, "the demo stopped a session that it had not started"


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return make_repository(tmp_path_factory.mktemp("git") / "sixty", 60, 11)


def check_report(ran, commits, comparisons=14):
    assert ran.code == 0, ran.out + ran.err
    assert ran.err == ""
    assert re.search(rf"Tidelake demo on .*: {commits:,} commits", ran.out)
    before, _, after = ran.out.partition("A late correction of day 20")
    assert "day 20: 60 euro of 2 orders" in before and "day 20: 105 euro of 3 orders" in after
    assert re.search(rf"All {comparisons} comparisons are equal: [\d,]+ rows", ran.out)
    assert len(re.findall(r"^(as of|changes) .* yes *$", ran.out, re.MULTILINE)) == comparisons - 2
    assert re.search(r"^before +\d+ +[\d,]+", ran.out, re.MULTILINE)
    assert re.search(r"^after +1 +1 +", ran.out, re.MULTILINE)
    assert int(re.search(r"in (\d+) micro-batches", ran.out)[1]) > 1
    assert max(len(line) for line in ran.out.splitlines() if "The lake is kept" not in line) <= 100


@pytest.mark.full
@spark_tests
def test_the_demo_on_a_git_repository_is_right_in_every_row(demo, repository, tmp_path):
    ran = demo("--repo", repository, "--lake", tmp_path / "kept")
    check_report(ran, 60)
    assert "tidelake show" in ran.out
    # What it leaves is a lake like any other.
    with tidelake.open(tmp_path / "kept" / "lake", create=False) as lake:
        files = lake.collection("files")
        assert files.upper.elements == (60,)
        listed = git(repository, "ls-tree", "-r", "-z", "main").count(b"\0")
        assert files.snapshot(59).read_all().num_rows == listed > 10


@pytest.mark.full
@spark_tests
def test_a_short_window_and_a_single_commit_will_do(demo, repository):
    assert "All 6 comparisons are equal" in demo("--repo", repository, "--limit", "1").out
    ran = demo("--repo", repository, "--limit", "7")
    check_report(ran, 7)
    assert "older commits are left out" in ran.out


# One row that differs


def event_of(landing, wanted):
    """The first line whose event is wanted: its file, lines and index."""
    for file in sorted(landing.iterdir()):
        lines = file.read_text().splitlines()
        for index, line in enumerate(lines):
            event = json.loads(line)
            if event is not None and wanted(event):
                return file, lines, index, event
    raise AssertionError("no such event")


TAMPERINGS = {
    "another blob": lambda row: row.update(blob="0" * 40),
    "another author": lambda row: row.update(author="Mallory"),
    "another number of lines": lambda row: row.update(lines=(row["lines"] or 0) + 1),
    "another path": lambda row: row.update(path=row["path"] + "~"),
}


def prepared(repository, tmp_path, limit=None):
    out = Console(file=io.StringIO(), width=100)
    return job.repository(repository, limit)(tmp_path, out), out


@pytest.fixture(scope="module")
def steady(tmp_path_factory):
    """A repository in which commit 10 adds a file that is not touched again; 11 is the last."""
    repo = make_repository(tmp_path_factory.mktemp("git") / "steady", 10, 3)
    commit = b"commit refs/heads/main\ncommitter Ada <a@example.org> 1800000000 +0000\ndata 1\nx\n"
    added = b"M 100644 inline %s\ndata 2\nx\n\n"
    stream = commit + b"from refs/heads/main^0\n" + added % b"aaa-steady" + commit + added % b"zzz-later"
    git(repo, "fast-import", "--quiet", stdin=stream)
    return repo


@pytest.mark.promise(
    "The demo fails if one row differs",
    rule="`demo/truth.py`, `demo/replay.py`",
    also=["::test_a_lake_that_another_hand_changed_is_found"],
)
@pytest.mark.full
@spark_tests
@pytest.mark.parametrize("how", TAMPERINGS)
def test_one_wrong_value_in_the_change_files_is_found_and_shown(spark, steady, tmp_path, how):
    made, out = prepared(steady, tmp_path)
    file, lines, index, event = event_of(
        made.landing, lambda e: (e["after"] or {}).get("path") == "aaa-steady"
    )
    TAMPERINGS[how](event["after"])
    lines[index] = json.dumps(event)
    file.write_text("\n".join(lines) + "\n")
    checks = command._run(made, spark, out)
    wrong = [check for check in checks if not check.equal]
    assert wrong and {check.when for check in wrong} == {"before the merge", "after the merge"}
    assert "aaa-steady" in out.file.getvalue()
    assert not [check for check in wrong if check.what.startswith("as of 0")]


@pytest.mark.full
@spark_tests
def test_a_lake_that_another_hand_changed_is_found(spark, steady, tmp_path):
    made, _ = prepared(steady, tmp_path)
    made.ingest(spark)
    assert all(check.equal for check in made.reads(spark, "before"))
    # A merge that forgets a row, done by hand: the same updates without it, in another lake.
    collection = made.collection
    answer = collection.updates(0, collection.upper).read_all()
    kept = answer.filter(pc.not_equal(answer["path"], "aaa-steady"))
    assert kept.num_rows == answer.num_rows - 1
    with tidelake.open(tmp_path / "other") as lake:
        made.collection = lake.create("files", collection.schema, key=["path"])
        made.collection.append(kept, upper=collection.upper)
        wrong = [check for check in made.reads(spark, "after") if not check.equal]
    assert [check.what[:8] for check in wrong] == ["as of 11"]
    assert any("missing: {'path': 'aaa-steady'" in example for example in wrong[0].examples)


@pytest.mark.full
@spark_tests
def test_a_truth_that_differs_in_one_row_ends_with_code_1_and_the_row(demo, steady, monkeypatch):
    whole = RepositorySource.tree

    def altered(self, sha):
        tree = whole(self, sha)
        modes = ["100600" if path == "aaa-steady" else mode for path, mode in
                 zip(tree["path"].to_pylist(), tree["mode"].to_pylist(), strict=True)]  # fmt: skip
        return tree.set_column(tree.schema.get_field_index("mode"), "mode", pa.array(modes))

    monkeypatch.setattr(RepositorySource, "tree", altered)
    ran = demo("--repo", steady)
    assert ran.code == 1
    assert "2 of 14 comparisons differ" in ran.out and "are equal" not in ran.out
    assert re.search(r"as of 11 .* before the merge: missing: .*'aaa-steady'.*'100600'", ran.out)
    assert re.search(r"surplus: .*'aaa-steady'.*'100644'", ran.out)
    assert len(re.findall(r"^as of .* NO *$", ran.out, re.MULTILINE)) == 2


# Change files of one's own


def line(op, before, after, lsn, **more):
    return json.dumps({"op": op, "before": before, "after": after, "source": {"lsn": lsn}, **more})


def row(id_, name="n", x=1.5, tags=(), at=None):
    return {"id": id_, "name": name, "x": x, "tags": list(tags), "at": at}


def land(directory, *files):
    directory.mkdir()
    for n, lines in enumerate(files):
        path = directory / f"part-{n}.jsonl"
        path.write_text("\n".join(lines) + "\n")
        os.utime(path, (1_700_000_000 + n, 1_700_000_000 + n))
    return directory


@pytest.fixture
def landing(tmp_path):
    two = row(2, "bob", 2, [], {"city": "Praha", "n": [1, None]})
    wrapped = {
        "schema": None,
        "payload": json.loads(line("c", None, row(9, "é\u2028", -0.0, ["a", "b"]), 20)),
    }
    return land(
        tmp_path / "landing",
        [
            line("r", None, row(1, "ann", 1e3, ["a"]), 3),
            line("c", None, two, 3, ts_ms=1),
            line("u", two, row(2, "rob", 2.25), 7),
            "null",
            line("h", None, None, 12),
        ],
        [
            line("d", row(1, "ann", 1e3, ["a"]), None, 5),  # late: 12 is closed
            "",
            json.dumps(wrapped),
            "null",
        ],
        [line("c", None, row(10), 21), line("c", None, row(10), 22)],
    )


@pytest.mark.full
@spark_tests
def test_change_files_of_the_users_own_are_ingested_and_judged_by_a_replay(demo, landing, tmp_path):
    ran = demo("--change-files", landing, "--key", "id", "--lake", tmp_path / "kept")
    assert ran.code == 0, ran.out + ran.err
    assert "7 events" in ran.out and "upper [23]" in ran.out
    assert "3 tombstones and 1 heartbeats, 1 late events moved to the next open time" in ran.out
    assert re.search(r"All \d+ comparisons are equal", ran.out)
    assert len(re.findall("a replay of the files", ran.out)) == 2
    with tidelake.open(tmp_path / "kept" / "lake") as lake:
        found = lake.collection("changes").snapshot().read_all().to_pylist()
    assert [(r["id"], r["name"], r["_diff"]) for r in found] == [
        (2, "rob", 1),
        (9, "é\u2028", 1),
        (10, "n", 2),
    ]


@pytest.mark.full
@spark_tests
@pytest.mark.parametrize(
    ("lines", "options", "said"),
    [
        (["null"], ["--key", "id"], "holds no change events with rows in 'after'"),
        ([line("c", None, row(1), 1)], ["--key", "nope"], "nope is not a column of the events: they have id"),
        ([line("c", None, row(1), 1)], ["--key", "id", "--time", "ts"], "ts"),
        ([line("u", None, row(1), 1)], ["--key", "id"], "REPLICA IDENTITY FULL"),
        ([line("c", None, row(None), 1), line("c", None, row(1), 1)], ["--key", "id"], "id"),
    ],
)  # fmt: skip
def test_files_that_are_no_change_events_are_one_line(demo, tmp_path, lines, options, said):
    ran = demo("--change-files", land(tmp_path / "landing", lines), *options)
    assert ran.code == 2, ran.out + ran.err
    assert said in ran.err
    assert ran.err.startswith("tidelake: ") and ran.err.count("\n") == 1


def test_a_replay_nets_events_and_tells_what_differs(landing):
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("name", pa.string()),
            ("x", pa.float64()),
            ("at", pa.struct([("city", pa.string()), ("n", pa.list_(pa.int64()))])),
        ]
    )
    truth = replay.replay(landing, schema)
    assert sorted(truth.values()) == [1, 1, 2]
    rows = [
        {"id": 2, "name": "rob", "x": 2.25, "at": None, "_diff": 1},
        {"id": 9, "name": "é\u2028", "x": 0.0, "at": None, "_diff": 1},
        {"id": 10, "name": "n", "x": 1.5, "at": None, "_diff": 2},
    ]
    full = pa.schema([*schema, ("_diff", pa.int64())])
    assert replay.compare(truth, pa.Table.from_pylist(rows, full), schema).equal
    rows[2]["_diff"] = 1
    rows[0]["x"] = 2.5
    result = replay.compare(truth, pa.Table.from_pylist(rows, full), schema)
    assert (result.missing, result.surplus, result.equal) == (2, 1, False)
    assert len(result.examples) == 3


# As a user starts it


@pytest.mark.full
@spark_tests
def test_in_a_terminal_of_80_columns_it_shows_progress_and_nothing_of_java(repository, tmp_path):
    """A process of its own: it starts Spark and ends it."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
    arguments = ["--repo", str(repository), "--limit", "6", "--cores", "2"]
    child = subprocess.Popen(
        tied(sys.executable, "-m", "demo", *arguments),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "PYTHONPATH": str(own_checkout())},
        cwd=tmp_path,
        start_new_session=True,
    )
    os.close(slave)
    seen = b""
    while True:
        try:
            data = os.read(master, 65_536)
        except OSError:  # Linux says so when the other side is gone
            break
        if not data:
            break
        seen += data
    os.close(master)
    assert child.wait(timeout=60) == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode())
    assert "Spark streaming ingest" in text and "6/6" in text and "Compare after the merge" in text
    assert "All 14 comparisons are equal" in text
    assert "WARN" not in text and "log level" not in text and "incubator" not in text
    assert max(len(piece) for piece in re.split(r"[\r\n]+", text)) <= 80
    assert list(tmp_path.iterdir()) == []  # no spark-warehouse, no metastore


# The slow tier


@spark_tests
@pytest.mark.full
def test_the_demo_on_the_repository_of_this_checkout(demo):
    if not (own_checkout() / ".git").exists():
        pytest.skip("this is no checkout: there is no .git beside src")
    ran = demo()
    assert ran.code == 0, ran.out + ran.err
    assert re.search(r"All \d+ comparisons are equal", ran.out)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--nope"], "demo: no such option '--nope'"),
        (["--limit", "0"], "invalid value for '--limit'"),
        (["--change-files", "."], "--change-files needs --key"),
        (["--change-files", ".", "--repo", ".", "--key", "id"], "give one of them"),
        (["--lake", "."], "is not empty: name a new or empty directory"),
    ],
)
def test_bad_arguments_are_one_line(capfd, arguments, said):
    with pytest.raises(SystemExit) as left:
        run(command.demo, "demo", arguments)
    err = capfd.readouterr().err
    assert left.value.code == 2 and said in err and err.count("\n") == 1
