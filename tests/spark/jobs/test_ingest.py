"""Change files through a stream: exactly once, in order, or refused as a whole."""

import gzip
import json
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

import tidelake
from tidelake.errors import InvalidUpdates, UsageError, WriterFenced
from tidelake.model.frontier import Frontier
from tidelake.spark import IngestReport, WrittenBatch, ingest_change_files, parse_changes, snapshot
from tidelake.spark import updates as updates_of

pytestmark = pytest.mark.usefixtures("both_ways")

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])


class Folder:
    """A lake, a directory of change files and a checkpoint."""

    def __init__(self, root: Path, spark: Any) -> None:
        self.root, self.spark, self.files = root, spark, 0
        self.directory = root / "in"
        self.directory.mkdir()
        self.checkpoint = root / "checkpoint"
        self.c = tidelake.open(root / "lake").create("c", SCHEMA, key=["id"])

    def put(self, *events: Any, name: str | None = None) -> Path:
        """A file of events, complete when it appears, later than those before."""
        self.files += 1
        path = self.directory / (name or f"{self.files:04}.json")
        hidden = path.with_name("." + path.name)
        text = "".join((e if isinstance(e, str) else json.dumps(e)) + "\n" for e in events)
        data = text.encode()
        hidden.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
        os.utime(hidden, (1_000_000_000 + self.files,) * 2)
        return hidden.rename(path)

    def run(self, **options: Any) -> IngestReport:
        return ingest_change_files(self.spark, self.c, self.directory, self.checkpoint, **options)

    def state(self) -> Counter[Any]:
        rows = snapshot(self.spark, self.c).collect()
        return Counter({(r.id, r.v): r._diff for r in rows})


@pytest.fixture
def folder(tmp_path: Path, spark: Any) -> Folder:
    return Folder(tmp_path, spark)


def create(i: int, v: str | None, time: int) -> dict[str, Any]:
    return {"op": "c", "before": None, "after": {"id": i, "v": v}, "source": {"lsn": time}}


def update(i: int, old: str | None, new: str | None, time: int) -> dict[str, Any]:
    return {"op": "u", "before": {"id": i, "v": old}, "after": {"id": i, "v": new}, "source": {"lsn": time}}


def delete(i: int, old: str | None, time: int) -> dict[str, Any]:
    return {"op": "d", "before": {"id": i, "v": old}, "after": None, "source": {"lsn": time}}


def heartbeat(time: int) -> dict[str, Any]:
    return {"op": "h", "source": {"lsn": time}}


def test_files_become_updates_at_their_own_times(folder: Folder) -> None:
    folder.put(create(1, "a", 3), create(2, None, 3), "null", "", update(1, "a", "b", 7))
    folder.put({"schema": {}, "payload": delete(2, None, 9)}, heartbeat(20), name="b.json.gz")
    seen: list[WrittenBatch] = []
    report = folder.run(max_files_per_trigger=1, progress=seen.append)
    assert folder.c.upper == Frontier.of(21)
    assert folder.state() == {(1, "b"): 1}
    got = updates_of(folder.spark, folder.c, 0, 21).collect()
    assert sorted((r._time, r.id, r.v, r._diff) for r in got if r.v) == [
        (3, 1, "a", 1),
        (7, 1, "a", -1),
        (7, 1, "b", 1),
    ]
    assert [b.batch for b in seen] == [0, 1]
    assert (report.batches, report.already, report.events, report.updates) == (2, 0, 4, 5)
    assert (report.heartbeats, report.tombstones, report.upper) == (1, 2, Frontier.of(21))


def test_a_second_run_takes_only_what_is_new(folder: Folder) -> None:
    folder.put(create(1, "a", 3))
    folder.run()
    assert folder.run() == IngestReport(upper=Frontier.of(4))
    folder.put(create(2, "b", 4))
    report = folder.run()
    assert (report.batches, report.events) == (1, 1)
    assert folder.state() == {(1, "a"): 1, (2, "b"): 1}


@pytest.mark.promise(
    "A batch of change files is in exactly once, also if the driver dies between commit and checkpoint",
    rule="writer record (query id, epoch, batch id)",
    also=["spark/test_kill.py::test_killed_at_the_append"],
)
def test_a_batch_that_was_committed_but_not_checkpointed_is_not_written_twice(folder: Folder) -> None:
    folder.put(create(1, "a", 3))
    folder.run()
    folder.put(create(2, "b", 4))
    folder.run()
    (folder.checkpoint / "commits" / "1").unlink()
    (folder.checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)
    before = folder.c.state()
    report = folder.run()
    assert (report.batches, report.already, report.events) == (0, 1, 0)
    assert (folder.c.state().upper, folder.c.state().spine) == (before.upper, before.spine)
    assert folder.state() == {(1, "a"): 1, (2, "b"): 1}


@pytest.mark.promise("A lost checkpoint is refused, or taken over on request", rule="`open_writer`")
def test_a_lost_checkpoint_is_refused_and_can_be_taken_over(folder: Folder) -> None:
    folder.put(create(1, "a", 3))
    folder.run()
    shutil.rmtree(folder.checkpoint)
    for path in folder.directory.iterdir():
        path.unlink()
    folder.put(create(2, "b", 4))
    with pytest.raises(UsageError, match=r"go on with the checkpoint that wrote it.*take_over=True"):
        folder.run()
    assert folder.state() == {(1, "a"): 1}
    folder.run(take_over=True)
    assert folder.state() == {(1, "a"): 1, (2, "b"): 1}
    folder.put(create(3, "c", 5))
    folder.run()
    assert len(folder.state()) == 3


@pytest.mark.promise("An older ingest of the same name is fenced", rule="`WriterFenced`")
def test_a_fenced_ingest_stops(folder: Folder) -> None:
    folder.put(create(1, "a", 3))
    folder.put(create(2, "b", 4))

    def intrude(batch: WrittenBatch) -> None:
        owner = folder.c.state().writers["spark-ingest"].owner
        folder.c.writer("spark-ingest", owner=owner)

    with pytest.raises(WriterFenced):
        folder.run(max_files_per_trigger=1, progress=intrude)
    assert folder.state() == {(1, "a"): 1}
    folder.run(max_files_per_trigger=1)
    assert folder.state() == {(1, "a"): 1, (2, "b"): 1}


@pytest.mark.promise(
    "A bad or late line stops the batch with file and line; nothing of the batch is in",
    rule="`cdc/parse/parser.py`",
    also=["::test_late_events_are_refused_or_advanced"],
)
def test_one_bad_line_stops_the_batch_and_can_be_mended(folder: Folder) -> None:
    folder.put(create(1, "a", 3))
    bad = folder.put(create(2, "b", 4), '{"op": "u", "after": {"id": 1}, "source": {"lsn": 4}}')
    folder.put(create(3, "c", 5))
    with pytest.raises(InvalidUpdates) as caught:
        folder.run(max_files_per_trigger=2)
    message = str(caught.value)
    assert "op 'u' without 'before': set REPLICA IDENTITY FULL" in message
    assert f"file={bad} " in message
    assert 'line={"op": "u", "after": {"id": 1}' in message
    assert (folder.c.upper, len(folder.c.state().spine)) == (Frontier.of(0), 0)
    stamp = bad.stat().st_mtime
    bad.write_text(json.dumps(create(2, "b", 4)) + "\n")
    os.utime(bad, (stamp, stamp))
    folder.run(max_files_per_trigger=2)
    assert folder.state() == {(1, "a"): 1, (2, "b"): 1, (3, "c"): 1}


def test_text_that_is_not_utf8_is_refused(folder: Folder) -> None:
    path = folder.put(create(1, "a", 3))
    path.write_bytes(json.dumps(create(1, "a", 3)).encode() + b"\n" + '{"op": "c", "é": 1}'.encode("latin-1"))
    with pytest.raises(InvalidUpdates, match="not UTF-8"):
        folder.run()


def test_late_events_are_refused_or_advanced(folder: Folder) -> None:
    folder.put(create(1, "a", 10))
    folder.run()
    late = folder.put(create(2, "b", 10), heartbeat(2))
    with pytest.raises(InvalidUpdates) as caught:
        folder.run()
    assert "its time 10 is late, all times before 11 are closed" in str(caught.value)
    assert f"file={late}" in str(caught.value)
    report = folder.run(late="advance")
    assert (report.late, folder.c.upper) == (1, Frontier.of(12))
    assert folder.state() == {(1, "a"): 1, (2, "b"): 1}


@pytest.mark.promise("Advancing late rows uploads nothing again", rule="`Answer.advances`")
def test_other_writers_of_the_collection_do_no_harm(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    from tidelake.lake.api.writer import Writer

    original = Writer.append_uploaded
    closed = iter([4, 11, 21])
    tries = []

    def append_uploaded(self: Writer, *args: Any, **kwargs: Any) -> Any:
        # Another writer closes times between the upload and the append.
        tries.append(args[0])
        time = next(closed, None)
        if time is not None:
            folder.c.append(pa.table({"id": [100 + time], "v": ["x"]}), upper=None)
            folder.c.append(SCHEMA.empty_table().append_column("_time", pa.array([], pa.int64())), upper=time)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Writer, "append_uploaded", append_uploaded)
    folder.put(create(1, "a", 10))
    report = folder.run(late="advance")
    assert report.batches == 1
    # What was uploaded once is offered again, however many times are closed meanwhile.
    assert len(tries) > 1 and len({tuple(uploads) for uploads in tries}) == 1
    assert folder.state()[1, "a"] == 1
    assert folder.c.upper == Frontier.of(22)


def test_only_tombstones_still_count_as_a_batch(folder: Folder) -> None:
    folder.put("null", "")
    assert folder.run().tombstones == 2
    assert folder.c.upper == Frontier.of(0)
    folder.put(create(1, "a", 0))
    folder.run()
    assert folder.state() == {(1, "a"): 1}


def test_files_a_year_apart_are_all_taken(folder: Folder) -> None:
    old = folder.put(create(1, "a", 1))
    folder.put(create(2, "b", 2))
    folder.run()
    os.utime(folder.directory / "0002.json", (1_700_000_000,) * 2)
    folder.put(create(3, "c", 3))
    folder.run()
    assert old.exists()
    assert len(folder.state()) == 3


def test_tuple_times_are_refused(spark: Any, tmp_path: Path) -> None:
    c = tidelake.open(tmp_path / "lake").create("t", SCHEMA, key=["id"], time="tuple(2)")
    with pytest.raises(UsageError, match="tuple"):
        ingest_change_files(spark, c, tmp_path, tmp_path / "checkpoint")


def test_a_directory_that_is_not_there_is_named(folder: Folder) -> None:
    folder.directory.rmdir()
    with pytest.raises(UsageError, match=r"no directory of files at .*create it"):
        folder.run()


def test_what_the_callback_raises_comes_out(folder: Folder) -> None:
    def fail(_batch: WrittenBatch) -> None:
        raise KeyError("mine")

    folder.put(create(1, "a", 3))
    with pytest.raises(KeyError, match="mine"):
        folder.run(progress=fail)
    assert folder.run().already == 1
    assert folder.state() == {(1, "a"): 1}


def test_options_are_checked(folder: Folder) -> None:
    with pytest.raises(UsageError, match="max_files_per_trigger"):
        folder.run(max_files_per_trigger=0)
    with pytest.raises(UsageError, match="late="):
        folder.run(late="drop")


def test_changes_can_be_parsed_as_a_frame(folder: Folder) -> None:
    folder.put(create(1, "a", 3), update(1, "a", "b", 4), heartbeat(9))
    lines = folder.spark.read.text(str(folder.directory))
    got = parse_changes(lines, folder.c).collect()
    assert [tuple(r) for r in got] == [(1, "a", 3, 1), (1, "a", 4, -1), (1, "b", 4, 1)]


@pytest.mark.promise(
    "A checkpoint older than the collection is refused rather than losing new files",
    rule="`WriterRecord.content`, `spark/jobs/ingest.py`",
    also=[
        "::test_a_checkpoint_that_lost_its_last_commit_goes_on",
        "state/test_commands.py::test_a_number_that_comes_again_with_other_content_is_refused",
    ],
)
def test_an_older_checkpoint_is_refused_rather_than_losing_new_files(folder: Folder, tmp_path: Path) -> None:
    folder.put(create(1, "a", 1))
    folder.run()
    shutil.copytree(folder.checkpoint, tmp_path / "saved")
    folder.put(create(2, "b", 2))
    folder.run()
    shutil.rmtree(folder.checkpoint)
    shutil.move(tmp_path / "saved", folder.checkpoint)
    (folder.directory / "0002.json").unlink()
    folder.put(create(3, "c", 3))
    with pytest.raises(
        UsageError, match="append 1 of writer 'spark-ingest' is in, but was made of something else"
    ):
        folder.run()
    assert folder.state() == {(1, "a"): 1, (2, "b"): 1}


def test_a_checkpoint_that_lost_its_last_commit_goes_on(folder: Folder) -> None:
    folder.put(create(1, "a", 1))
    folder.run()
    folder.put(create(2, "b", 2))
    folder.run()
    # As after a kill between the append and Spark's own commit.
    (folder.checkpoint / "commits" / "1").unlink()
    (folder.checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)
    folder.put(create(3, "c", 3))
    report = folder.run()
    assert (report.already, report.batches) == (1, 1)
    assert folder.state() == {(1, "a"): 1, (2, "b"): 1, (3, "c"): 1}


def test_a_directory_is_read_by_its_very_name(folder: Folder, tmp_path: Path) -> None:
    other = tmp_path / "land1"
    other.mkdir()
    (other / "1.json").write_text(json.dumps(create(99, "wrong", 1)) + "\n")
    folder.directory = folder.directory.rename(tmp_path / "land[1]{a,b}*")
    folder.put(create(1, "a", 1))
    folder.run()
    assert folder.state() == {(1, "a"): 1}
