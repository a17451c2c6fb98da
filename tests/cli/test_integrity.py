"""`tidelake fsck` and `copy`."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import inside
import tidelake
from tidelake.cli import integrity
from tidelake.config import Config
from tidelake.model import names
from tidelake.model.bounds import Bounds
from tidelake.model.frontier import Frontier
from tidelake.state.core import codec
from tidelake.state.core.edits import Delta, Edits, apply
from tidelake.state.core.fields import Move
from tidelake.state.core.state import Rollup
from tidelake.state.spine import fuel

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])


@pytest.fixture
def place(tmp_path):
    with tidelake.open(tmp_path / "lake", config=Config(inline_part_bytes=0)) as lake:
        for name in ("orders", "users"):
            lake.create(name, SCHEMA, key=["id"]).append(pa.table({"id": [1, 2], "v": ["a", "b"]}))
    return tmp_path / "lake"


def damage(place, name):
    with tidelake.open(place) as lake:
        shard = lake.collection(name).id
    [part] = Path(place / "blobs" / shard / "parts").iterdir()
    part.chmod(0o644)
    data = bytearray(part.read_bytes())
    data[-30] ^= 1
    part.write_bytes(data)
    return part.name


def test_a_clean_lake_is_said_to_be_clean(run, place):
    assert run("fsck", place) == (0, "2 collections, 2 parts, 4 updates read: clean\n", "")
    assert run("fsck", place, "--quick")[1] == "2 collections, 2 parts, 0 updates read: clean\n"


def test_a_copy_of_nothing_makes_no_lake(run, place, tmp_path):
    new = tmp_path / "new"
    code, out, err = run("copy", tmp_path / "none", new)
    assert (code, out) == (2, "") and "none': check the path" in err
    code, out, err = run("copy", place, new, "missing")
    assert (code, out) == (2, "") and err.startswith("tidelake: no collection 'missing'; there is ")
    assert not new.exists()
    assert run("copy", place, new, "users")[0] == 0
    assert run("ls", new)[1].count("users") == 1 and "orders" not in run("ls", new)[1]


def test_findings_are_shown_and_make_the_exit_code_1(run, place):
    part = damage(place, "users")
    code, out, err = run("fsck", place)
    assert code == 1 and not err
    assert "part-damaged" in out and "users" in out and out.endswith("2 updates read: 1 finding\n")
    assert run("fsck", place, "--quick")[0] == 0
    assert run("fsck", place, "orders")[0] == 0
    assert run("fsck", place, "users", "--repair")[0] == 1
    code, out, _ = run("fsck", place, "--json")
    found = json.loads(out)
    assert code == 1 and found["clean"] is False and found["collections"] == 2
    [finding] = found["findings"]
    assert finding["object"].endswith(part)
    assert (finding["kind"], finding["repaired"], finding["note"]) == ("part-damaged", False, False)


def test_a_repair_is_told_and_the_next_check_is_clean(run, place):
    with tidelake.open(place) as lake:
        shard = lake.collection("users")
        inside.write_rollup(shard)
        [rollup] = Path(place / "blobs" / shard.id / "rollups").iterdir()
    rollup.unlink()
    code, out, _ = run("fsck", place, "--repair")
    assert code == 0 and "rollup-missing" in out and out.endswith("clean, 1 repaired\n")
    assert run("fsck", place)[1].endswith(": clean\n")


def test_the_last_line_names_the_notes_of_a_clean_lake(run, place):
    with tidelake.open(place) as lake:
        lake["users"].erase([1], reason="ticket 17")
    code, out, _ = run("fsck", place)
    assert code == 0 and out.endswith(": clean; notes: erased-bytes\n")


def test_a_lake_or_collection_that_is_none_is_refused(run, place, tmp_path):
    assert run("fsck", place, "missing")[0] == 2
    assert run("fsck", tmp_path / "nowhere")[0] == 2
    assert run("copy", place, tmp_path / "other", "missing")[0] == 2
    assert run("copy", tmp_path / "nowhere", place)[0] == 2
    assert run("copy", place, place)[0] == 2
    assert run("copy", place, tmp_path / "other", "users", "--delete")[0] == 2
    assert run("copy", place, tmp_path / "other", "--as-name", "one")[0] == 2


def test_a_copy_and_the_next_run_and_back(run, place, tmp_path):
    code, out, _ = run("copy", place, tmp_path / "other", "--json")
    assert code == 0
    told = json.loads(out)
    orders, users = told["collections"]
    assert (users["collection"], users["copy"], users["parts"], users["upper"]) == ("users", "new", 1, [1])
    assert (orders["updates"], told["renamed"], told["dropped"], told["left"]) == (2, {}, [], [])
    with tidelake.open(place) as lake:
        lake.collection("users").append(pa.table({"id": [3], "v": ["c"]}))
        lake.rename("orders", "old orders")
    code, out, _ = run("copy", place, tmp_path / "other")
    assert code == 0 and "newer" in out and "same" in out
    assert "renamed 'orders' to 'old orders', as in the source" in out
    with tidelake.open(place) as lake:
        lake.drop("old orders")
    assert "'old orders' is no longer in the source, and stays" in run("copy", place, tmp_path / "other")[1]
    assert "dropped 'old orders'" in run("copy", place, tmp_path / "other", "--delete", "--quick")[1]
    code, out, _ = run("copy", tmp_path / "other", place, "users", "--as-name", "again")
    assert code == 0 and "again" in out
    rows = [run("snapshot", place, name, "--json")[1] for name in ("users", "again")]
    assert rows[0] == rows[1] != ""
    # Into an empty place as well: that is what it is for.
    assert run("copy", tmp_path / "other", tmp_path / "fresh")[0] == 0
    assert run("snapshot", tmp_path / "fresh", "users", "--json")[1] == rows[0]


def test_a_damaged_collection_is_not_copied_and_the_others_are(run, place, tmp_path):
    part = damage(place, "users")
    code, _, err = run("copy", place, tmp_path / "other")
    assert code == 6 and part in err
    assert "users" not in run("ls", tmp_path / "other")[1] and "orders" in run("ls", tmp_path / "other")[1]


def test_bars_are_shown_in_a_terminal_only(capsys, monkeypatch):
    with integrity.bars() as show:
        show("users", 1, 2)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with integrity.bars() as show:
        show("users", 1, 2)
        show("users", 2, 2)
    assert "users" in capsys.readouterr().err


def broken(place, name):
    """Name a part twice, and let everybody begin from that: the version before it; see `test_repair`."""
    with tidelake.open(place) as lake:
        c, log, blobs = lake.collection(name), inside.stores(lake).log, inside.stores(lake).blobs
        before = c.state()
        bounds = Bounds(before.upper, Frontier.of(2), before.minimum)
        batch = replace(next(iter(before.spine)).batch, bounds=bounds)
        spine = fuel.push(before.spine, batch, before.since, before.seqno + 1).edit
        edits = Edits(upper=Move(before.upper, Frontier.of(2)), spine=spine)
        delta = Delta(c.id, before.seqno + 1, before.committed_ms, "ab" * 16, before.rollup, edits)
        assert log.compare_and_set(c.id, before.seqno, codec.encode_delta(delta))
        state = apply(before, delta)
        data = codec.encode_state(state)
        blobs.put(names.rollup(c.id, state.seqno, "ab" * 16), data)
        rollup = Rollup(state.seqno, "ab" * 16, len(data), 1)
        last = Delta(c.id, state.seqno + 1, before.committed_ms, "cd" * 16, rollup, Edits(rollup=rollup))
        assert log.compare_and_set(c.id, state.seqno, codec.encode_delta(last))
    return before.seqno


def test_a_damaged_collection_is_told_forked_and_repaired_and_stops_no_other(run, place):
    sound = broken(place, "orders")
    for command in (("ls",), ("holds",), ("maintain", "--once")):
        done = run(command[0], place, *command[1:])
        assert (done.code, "part-named-once" in done.err) == (6, True)
        assert "Traceback" not in done.err and (command == ("holds",) or "users" in done.out)
    checked = run("fsck", place)
    assert checked.code == 1 and f"--to-seqno {sound}" in " ".join(checked.out.split())
    assert run("fork", place, "orders", "sound", "--to-seqno", sound).code == 0
    assert [row["id"] for row in run("snapshot", place, "sound", "--json").lines] == [1, 2]
    assert run("ls", place).code == 6
    repaired = run("fsck", place, "--repair")
    assert repaired.code == 0 and "1 thing set aside" in repaired.out
    assert [row["id"] for row in run("snapshot", place, "orders", "--json").lines] == [1, 2]
    assert run("ls", place).code == run("fsck", place).code == 0
    assert run("drop", place, "orders", "--yes").code == 0
