"""A lake that is open for reading only: reads see all that was acknowledged, and nothing is written."""

import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pyarrow as pa
import pytest
from lakes import place_of

import inside
import tidelake
from tables import SCHEMA, contents, rows
from tidelake.cli.main import cli
from tidelake.config import Config
from tidelake.env import Counters, Env
from tidelake.errors import CorruptionError, NotALake, ReadOnlyLake, UsageError
from tidelake.lake.api.lake import open_lake


def tree(place):
    """Everything below a folder, with what a write would change."""
    found = {}
    for folder, _, names in os.walk(place):
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            seen = os.lstat(path)
            found[path] = (seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)
    return found


@pytest.fixture
def place(tmp_path):
    """A lake whose writer goes on: what is newest stands in write-ahead logs."""
    place = tmp_path / "lake"
    with tidelake.open(place) as lake:
        c = lake.create("c", SCHEMA, key=["id"])
        for n in range(5):
            c.append(rows(n))
        yield place


READS = {
    "snapshot": lambda c: c.snapshot().read_all().num_rows,
    "an earlier one": lambda c: c.snapshot(1).read_all().num_rows,
    "changes": lambda c: c.changes(0, 4).read_all().num_rows,
    "updates": lambda c: c.updates(0, 5).read_all().num_rows,
    "keys": lambda c: c.snapshot(where="id = 3").read_all().num_rows,
}


@pytest.mark.promise(
    "A lake that is open for reading only, by request or because nothing may be written there, is "
    "not changed by one byte, and no file is made; every write is refused with the remedy",
    rule="`store/readonly.py`",
    also=[
        "::test_a_long_read_writes_nothing_also_if_a_rollup_is_due",
        "::test_writes_are_refused_at_once_and_write_nothing",
        "::test_on_a_read_only_mount_a_lake_is_open_for_reading_by_itself",
        "::test_a_user_without_permission_to_write_reads_and_writes_nothing",
    ],
)
def test_reads_work_and_write_nothing(place):
    before = tree(place)
    with tidelake.open(place, read_only=True) as lake:
        assert lake.read_only
        assert lake.list() == ["c"]
        c = lake.collection("c")
        assert [read(c) for read in READS.values()] == [5, 2, 4, 5, 1]
        assert lake.fsck().clean
        assert lake.create("c", SCHEMA, key=["id"]).name == "c"
    assert tree(place) == before


WRITES = {
    "append": lambda lake, c: c.append(rows(9)),
    "a large append": lambda lake, c: c.append(rows(*range(9, 20_000))),
    "upsert": lambda lake, c: c.upsert(rows(9)),
    "stage": lambda lake, c: c.stage(rows(9, _time=pa.array([99], pa.int64()))),
    "seal": lambda lake, c: c.seal(99),
    "reader": lambda lake, c: c.reader("r"),
    "writer": lambda lake, c: c.writer("w"),
    "critical hold": lambda lake, c: c.critical_hold("h", "me"),
    "advance since": lambda lake, c: c.advance_since(2),
    "merge": lambda lake, c: c.merge(),
    "evolve": lambda lake, c: c.evolve(pa.schema([*SCHEMA, ("more", pa.int64())])),
    "create": lambda lake, c: lake.create("d", SCHEMA, key=["id"]),
    "drop": lambda lake, c: lake.drop("c"),
    "rename": lambda lake, c: lake.rename("c", "d"),
    "collect": lambda lake, c: lake.collect(),
    "upkeep": lambda lake, c: lake.upkeep(),
}


def test_a_long_read_writes_nothing_also_if_a_rollup_is_due(tmp_path):
    """It needs a hold after a third of `garbage_age_s`, and its commits would find that a rollup is due."""
    place, config = tmp_path / "lake", Config(garbage_age_s=0.0, merge_budget_s=0)
    with tidelake.open(place, config=config) as lake:
        c = lake.create("c", SCHEMA, key=["id"])
        for n in range(12):
            c.append(rows(*range(n * 400, n * 400 + 400)))
    before = tree(place)
    small = Config(garbage_age_s=0.0, rollup_bytes_min=1024, merge_chunk_rows=16, fold_rows=1)
    counters = Counters()
    with open_lake(str(place), read_only=True, config=small, env=Env(recorder=counters)) as lake:
        c = lake.collection("c")
        found = 0
        for number, batch in enumerate(c.snapshot()):
            if not number % 50:
                # As the renewer does when the read has taken long.
                inside.shard(c).renewer.look()
            found += batch.num_rows
        assert found == 4800
        # What would change nothing meets the rollup, too.
        assert c.advance_since(0) == c.since
        assert not counters.counts["renewer.failed"]
    assert tree(place) == before


@pytest.mark.parametrize("write", [*WRITES])
def test_writes_are_refused_at_once_and_write_nothing(place, write):
    before = tree(place)
    with tidelake.open(place, read_only=True) as lake:
        c = lake.collection("c")
        with pytest.raises(ReadOnlyLake, match=r"open for reading only, .*: open it without read_only"):
            WRITES[write](lake, c)
    assert tree(place) == before


@pytest.mark.promise(
    "Reads of such a lake see every commit that was acknowledged before they began, or are refused; "
    "also beside a busy writer, and where a log is damaged",
    rule="`FramedVersionLog._seen`",
    also=[
        "::test_a_reader_beside_a_busy_writer_never_gets_an_older_answer",
        "::test_damage_is_reported_and_never_an_older_answer",
    ],
)
def test_each_acknowledged_commit_is_seen_at_once(place):
    with tidelake.open(place) as writer, tidelake.open(place, read_only=True) as reader:
        ours, theirs = writer.collection("c"), reader.collection("c")
        for n in range(5, 45):
            ours.append(rows(n))
            assert len(contents(theirs)) == n + 1
        assert ours.merge().applied
        assert len(contents(theirs)) == 45
        # What the reader closes takes no lock from the writer of the same process.
        assert len(contents(tidelake.open(place).collection("c"))) == 45
        ours.append(rows(45))
    assert len(contents(tidelake.open(place, read_only=True).collection("c"))) == 46


BUSY = """
    import sys, pyarrow as pa, tidelake
    for n in range(5, 10_000):
        if n % 7 == 5:
            lake = tidelake.open(sys.argv[1])
            c = lake.collection("c")
        c.append(pa.table({"id": pa.array([n], pa.int64()), "v": ["x" * 1000]}))
        print(n, flush=True)
        if n % 7 == 4:
            lake.close()
"""


def test_a_reader_beside_a_busy_writer_never_gets_an_older_answer(tmp_path):
    place = tmp_path / "lake"
    with tidelake.open(place) as lake:
        lake.create("c", SCHEMA, key=["id"]).append(rows(*range(5)))
    with (
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(BUSY), str(place)], stdout=subprocess.PIPE, text=True
        ) as child,
        tidelake.open(place, read_only=True) as lake,
    ):
        try:
            c = lake.collection("c")
            for _ in range(30):
                acknowledged = int(child.stdout.readline())
                assert len(contents(c)) > acknowledged
        finally:
            child.kill()


def test_damage_is_reported_and_never_an_older_answer(place, tmp_path):
    log = next(path for path in (place / "log").glob("*/log"))
    data = bytearray(log.read_bytes())
    data[100] ^= 1
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-a", str(place), str(copy)], check=True)
    (copy / log.relative_to(place)).write_bytes(data)
    with tidelake.open(copy, read_only=True) as lake, pytest.raises(CorruptionError):
        contents(lake.collection("c"))


@pytest.mark.parametrize("kind", ["memory", "directory"])
def test_only_what_is_there_is_opened(kind, tmp_path):
    place = place_of(kind, tmp_path)
    with pytest.raises(NotALake):
        tidelake.open(place, read_only=True)
    with tidelake.open(place) as lake:
        with tidelake.open(place, read_only=True) as reader:
            assert reader.list() == []
        lake.create("c", SCHEMA, key=["id"]).append(rows(1))
        with tidelake.open(place, read_only=True) as reader:
            assert contents(reader.collection("c")) == {(1, "x"): 1}
            with pytest.raises(ReadOnlyLake):
                reader.collection("c").append(rows(2))
    with pytest.raises(UsageError, match="read_only='yes' must be True or False"):
        tidelake.open(place, read_only="yes")


def test_on_a_read_only_mount_a_lake_is_open_for_reading_by_itself(place, tmp_path):
    seen = tmp_path / "mounted"
    seen.mkdir()
    bind = ["mount", "--bind", str(place), str(seen)]
    if os.geteuid() != 0 or subprocess.run(bind, check=False, capture_output=True).returncode != 0:
        pytest.skip("cannot mount here")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(seen)], check=True, capture_output=True)
        before = tree(place)
        with tidelake.open(seen) as lake:
            assert lake.read_only
            assert len(contents(lake.collection("c"))) == 5
            with pytest.raises(ReadOnlyLake):
                lake.collection("c").append(rows(9))
        assert tree(place) == before
        with tidelake.open(place) as writer, tidelake.open(seen) as reader:
            writer.collection("c").append(rows(9))
            assert len(contents(reader.collection("c"))) == 6
    finally:
        subprocess.run(["umount", "-l", str(seen)], check=True)


STRANGER = """
    import os, sys, tidelake
    from tidelake.errors import ReadOnlyLake
    def read(**how):
        with tidelake.open(sys.argv[1], **how) as lake:
            c = lake.collection("c")
            try:
                lake.drop("c")
            except ReadOnlyLake:
                return lake.read_only, c.snapshot().read_all().num_rows
    # All modules are loaded as long as this user may read them.
    read(read_only=True)
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
    print(*read())
"""


def test_a_user_without_permission_to_write_reads_and_writes_nothing(place):
    if os.geteuid() != 0:
        pytest.skip("cannot become another user")
    with tempfile.TemporaryDirectory() as open_to_all:
        Path(open_to_all).chmod(0o755)
        copy = Path(open_to_all) / "lake"
        subprocess.run(["cp", "-a", str(place), str(copy)], check=True)
        before = tree(copy)
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(STRANGER), str(copy)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert (done.stdout, done.stderr) == ("True 5\n", "")
        assert tree(copy) == before


@pytest.mark.parametrize(
    "command", [["ls"], ["show", "c"], ["snapshot", "c"], ["changes", "c", "0", "3"], ["fsck"]]
)
def test_commands_read_only_write_nothing(place, command):
    before = tree(place)
    name, *arguments = command
    assert cli.main([name, str(place), *arguments, "--read-only"], standalone_mode=False) in (None, 0)
    assert tree(place) == before
