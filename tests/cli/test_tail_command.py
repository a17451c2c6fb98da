"""`tidelake tail`: contents, then every update, then the upper that closes them, a JSON object a line."""

import json
import signal
import subprocess
import sys

import pyarrow as pa
import pytest

import tidelake
from tables import rows
from tied_process import tied

TIDELAKE = "from tidelake.cli.main import main; main()"
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])


def line(id_, time, diff=1):
    return {"id": id_, "v": "x", "_time": time, "_diff": diff}


@pytest.fixture
def place(tmp_path):
    """A lake with a collection of three commits."""
    with tidelake.open(tmp_path / "lake") as lake:
        c = lake.create("c", SCHEMA, key=["id"])
        for n in range(3):
            c.append(rows(n))
    return tmp_path / "lake"


def test_once_prints_what_is_there_and_ends(run, place):
    contents = [line(0, 2), line(1, 2), line(2, 2), {"_upper": [3]}]
    assert run("tail", place, "c", "--once").lines == contents
    assert run("tail", place, "c", "--timeout", "0").lines == contents
    assert run("tail", place, "c", "--as-of", "0", "--once").lines == [
        line(0, 0), {"_upper": [1]}, line(1, 1), line(2, 2), {"_upper": [3]},
    ]  # fmt: skip
    assert run("tail", place, "c", "--lower", "1", "--once").lines == [
        line(1, 1),
        line(2, 2),
        {"_upper": [3]},
    ]
    assert run("tail", place, "c", "--lower", "0", "--until", "1").lines == [line(0, 0), {"_upper": [1]}]
    assert run("tail", place, "c", "--no-snapshot", "--once").lines == []
    some = run("tail", place, "c", "--once", "--columns", "v", "--where", "id = 1").lines
    assert some == [{"v": "x", "_time": 2, "_diff": 1}, {"_upper": [3]}]


def test_staged_updates_are_printed_before_their_times_are_closed(run, place):
    with tidelake.open(place) as lake:
        c = lake.collection("c")
        c.stage(rows(7, _time=[5]))
        c.stage(rows(8, _time=[9]))
        c.seal(6)
    staged = run("tail", place, "c", "--staged", "--lower", "4", "--timeout", "0").lines
    assert staged == [line(7, 5), line(8, 9), {"_upper": [6]}]
    again = run("tail", place, "c", "--staged", "--no-snapshot", "--timeout", "0").lines
    assert again == [line(8, 9)]


def test_what_cannot_be_is_one_line(run, place):
    for options, code, said in (
        (("--as-of", "0", "--lower", "0"), 2, "different beginnings"),
        (("--no-snapshot", "--lower", "0"), 2, "different beginnings"),
        (("--once", "--until", "9"), 2, "different ends"),
        (("--staged",), 2, "--no-snapshot"),
        (("--staged", "--lower", "0", "--once"), 2, "--once"),
        (("--as-of", "9", "--once"), 4, "9"),
        (("--lower", "x"), 2, "--lower='x' is not a time"),
        (("--once", "--where", "w > 1"), 2, "no column"),
    ):
        answer = run("tail", place, "c", *options)
        assert (answer.code, answer.out) == (code, "") and said in answer.err
        assert answer.err.count("\n") == 1


def test_tuples_say_where_to_begin(run, tmp_path):
    with tidelake.open(tmp_path / "lake") as lake:
        c = lake.create("t", SCHEMA, key=["id"], time="tuple(2)")
        table = rows(1).append_column("_time_0", pa.array([0])).append_column("_time_1", pa.array([2]))
        c.compare_and_append(table, (0, 0), [(4, 0), (0, 5)])
    answer = run("tail", tmp_path / "lake", "t", "--once")
    assert answer.code == 2 and "--as-of, --lower or --no-snapshot" in answer.err
    last = {"_upper": [[0, 5], [4, 0]]}
    row = {"id": 1, "v": "x", "_time_0": 0, "_time_1": 2, "_diff": 1}
    assert run("tail", tmp_path / "lake", "t", "--lower", "0,0", "--once").lines == [row, last]


@pytest.fixture
def tail(place):
    """Another process that follows, and its lines as they come."""
    command = tied(sys.executable, "-c", TIDELAKE, "tail", place, "c")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def step(process):
    """The lines up to the next upper."""
    found = []
    while not found or "_upper" not in found[-1]:
        found.append(json.loads(process.stdout.readline()))
    return found


def test_what_others_append_comes_as_it_is_closed_and_an_interrupt_leaves_nothing(place, tail):
    assert step(tail) == [line(0, 2), line(1, 2), line(2, 2), {"_upper": [3]}]
    with tidelake.open(place) as lake:
        c = lake.collection("c")
        (hold,) = c.state().holds.values()
        assert hold.purpose == "subscription to c"
        for n in range(3, 8):
            c.append(rows(n))
            assert step(tail) == [line(n, n), {"_upper": [n + 1]}]
            c.advance_since(n)
            c.merge()
        tail.send_signal(signal.SIGINT)
        out, err = tail.communicate(timeout=30)
        assert (tail.returncode, out, err) == (130, "", "\ntidelake: interrupted\n")
        assert not c.state().holds
        assert str(c.since) == "[7]"


def test_a_closed_pipe_ends_it_quietly(place):
    command = f'"{sys.executable}" -c "{TIDELAKE}" tail "{place}" c --lower 0 --timeout 5 | head -1'
    done = subprocess.run(
        ["bash", "-c", command + "; echo ${PIPESTATUS[0]}"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stderr == "" and done.stdout.splitlines()[-1] == "0"
