"""Writes the bytes of format 1 into a folder: `python tests/formats/make_v1.py [FOLDER]`.

The folder `v1` is committed. From the first release on it stays as it is, since later versions read it; until
then a change of a format runs this again.
"""

import hashlib
import json
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from every_type import CASES, encoded, rows_of
from samples import Sampler, plain

sys.path.insert(0, str(Path(__file__).parents[1]))

import inside
import tidelake
from clocks import TickingClock
from tidelake import Config
from tidelake.arrangement.arrangement import Arrangement
from tidelake.arrangement.checkpoint.saved import Checkpoint
from tidelake.env import Env
from tidelake.model.batch import Run
from tidelake.model.frontier import Frontier
from tidelake.shard.runs.plan import SelectedTask, Task
from tidelake.shard.writing.batch import SentBatch
from tidelake.shard.writing.builder import Uploader
from tidelake.shard.writing.replacement import Replacement
from tidelake.shard.writing.shufflespill import ShuffleSpill
from tidelake.shard.writing.upserter import Upserter
from tidelake.state.core import codec
from tidelake.state.core.edits import Delta
from tidelake.state.core.state import ShardState
from tidelake.store.marker import Marker

V1 = Path(__file__).parent / "v1"
# So small that some rows are inline and some are not.
CONFIG = Config(inline_part_bytes=1000, row_group_rows=16, part_target_bytes=4096, slice_rows=64)
INLINE = replace(CONFIG, inline_part_bytes=1 << 20)
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])
KINDS = {
    **{"state": ShardState, "delta": Delta, "arrangement": Checkpoint, "batch": SentBatch, "run": Run},
    **{"uploader": Uploader, "upserter": Upserter, "replacement": Replacement, "spill": ShuffleSpill},
    **{"task": Task, "selected": SelectedTask},
}


class FixedIds:
    """1, 2, 3, ... as ids."""

    def __init__(self):
        self._n = 0

    def fresh(self):
        self._n += 1
        return f"{self._n:032x}"


def env():
    """A world in which everything happens the same way again."""
    return Env(clock=TickingClock(1_700_000_000_000), ids=FixedIds())


def encode(kind, value):
    """The bytes of a value."""
    return codec.encode_state(value) if kind == "state" else codec.encode_record(kind, value)


def records():
    """Values of each kind of record, by name: one in which every field says something, and the least one."""
    made = {kind: Sampler().of(type_) for kind, type_ in KINDS.items()}
    return made | {f"{kind}-least": Sampler(least=True).of(type_) for kind, type_ in KINDS.items()}


def table(ids, v="x", **more):
    ids = list(ids)
    values = [None if i % 7 == 3 else f"{v}{i}" for i in ids]
    return pa.table({"id": pa.array(ids, pa.int64()), "v": values, **more})


def every_types(place, world=None):
    """A lake of collections with rows of every type: each in one part, which is stored, or inline."""
    for name, config in (("stored", replace(CONFIG, inline_part_bytes=0)), ("inline", INLINE)):
        with tidelake.open(place, config=config, env=world) as opened:
            for case in CASES:
                rows, schema, domain = rows_of(case)
                columns = pa.schema([rows.schema.field(column.name) for column in schema.columns])
                key = [column.name for column in schema.key]
                c = opened.create(f"{case} {name}", columns, key=key, time=str(domain))
                c.append(rows, upper=10 if domain.total_order else (10, 10))


def lake(place):
    """A lake with something of everything in it."""
    world = env()
    every_types(place, world)
    with tempfile.TemporaryDirectory() as live:
        shutil.copytree(place, live, dirs_exist_ok=True)
        opened = tidelake.open(live, config=CONFIG, env=world)
        _fill(opened)
        # Before it is closed: then its readers still hold their history.
        shutil.rmtree(place)
        ignored = shutil.ignore_patterns("lock", "*.turn", "~tmp")
        shutil.copytree(live, place, ignore=ignored)
        opened.close()


def _fill(opened):
    c = opened.create("orders", SCHEMA, key=["id"])
    c.append(table(range(40)), author="me", message="first")
    c.append(table([3, 5], _diff=[-1, -1]))
    c.writer("w", owner="me").append(table(range(200, 203), "w"), sequence=4)
    c.append(table(range(20, 60), "y", _time=[5] * 40), upper=8, token="once")
    c.maintain()
    c.advance_since(2)
    c.retain(100)
    c.reader("reads", since=3)
    c.critical_hold("keeps", "token", since=4)
    c.evolve(rename={"v": "text"})
    c.evolve(c.schema.append(pa.field("w", pa.int32())))
    opened.fork("orders", "fork")
    c.erase([7], reason="ticket 1")
    inside.write_rollup(c)
    c.append(table([9]).rename_columns(["id", "text"]).append_column("w", pa.array([1], pa.int32())))
    c.stage(pa.table({"id": [1000], "text": ["staged"], "_time": [12]}))
    history = opened.create("history", SCHEMA, key=["id"])
    for n in range(12):
        history.append(table(range(n, n + 40), f"{n}-"))
    history.maintain()
    for name in "ab":
        opened.create(name, SCHEMA, key=["id"])
    opened.write({"a": table([1, 2]), "b": table([2, 3])})
    opened.write({"a": table([4]), "b": table([2], _diff=[-1])}, token="both")
    opened.create("gone", SCHEMA, key=["id"]).append(table([1]))
    opened.drop("gone")
    opened.create("empty", SCHEMA, key=["id", "v"], time="date")


def contents(place):
    """What that lake answers, as JSON."""
    with tidelake.open(place, create=False, config=CONFIG) as opened:
        found = {name: _answers(opened.collection(name)) for name in opened.list()}
        assert opened.fsck().clean
        return found


def _answers(c):
    state = c.state()
    wanted = ("upper", "since", "schemas", "writers", "holds", "critical", "retention", "erasures")
    told = {name: plain(getattr(state, name)) for name in wanted}
    shape = {"slices": len(state.spine.slices), "bases": len(state.bases), "staged": len(state.staged)}
    if c.upper.closed:
        return told | shape
    # All updates where none is folded; else the contents at the start of history, and all updates after it.
    (start,) = state.since
    folded = start != c.domain.minimum
    streams = [c.snapshot(start), c.updates(start + 1, c.upper)] if folded else [c.updates(start, c.upper)]
    batches = [rows.read_all().combine_chunks().to_batches() for rows in streams]
    return (
        told
        | shape
        | {
            "rows": [encoded(rows) for several in batches for rows in several],
            "with staged": c.snapshot(20, staged=True).read_all().num_rows if state.staged else None,
            "notes": [[one.author, one.message] for one in c.commits(50) if one.message],
            "in a group": c.group() is not None,
        }
    )


def described(place):
    """What the states of such a lake say of the parts with rows of every type, but for Parquet's bytes.

    Those depend on the version of pyarrow.
    """
    found = {}
    with tidelake.open(place, create=False) as opened:
        for name in (f"{case} {kind}" for case in CASES for kind in ("stored", "inline")):
            (member,) = opened.collection(name).state().spine
            (part,) = member.batch.parts()
            known = replace(part, checksum=f"{part.row_hash:016x}", name="", size_bytes=0)
            found[name] = plain(known)
    return found


def arrangement(place, directory):
    """A checkpoint of a small arrangement: batches with filters of both kinds, one of several blocks."""
    with Arrangement.create(SCHEMA, key=["id"], directory=directory, env=env()) as made:
        made.pause()
        made.append(table(range(300), "long " * 200, _time=[1] * 300))
        made.append(table([3, 5], _time=[4, 4], _diff=[-1, 2]))
        made.append(table([2**40, -(2**40), 7], "z", _time=[2, 3, 9]))
        made.advance_since(2)
        made.save(place)


def arranged(place, directory):
    """What reads of that checkpoint answer, as JSON."""
    with Arrangement.restore(place, directory=directory) as found:
        rows = {str(time): found.range(as_of=time) for time in (2, 3, 4, 9)}
        hashes = {time: hashlib.sha256(repr(rows[time].to_pylist()).encode()).hexdigest() for time in rows}
        return {"frontier": plain(found.since), "updates": len(found), "rows as of": hashes}


def texts():
    """Texts and bytes that are no records, by name, with the values that they have."""
    made = {
        "marker-files": Marker("1a").encode(),
        "marker-postgres": Marker("1a", "postgres", "s3://b/p").encode(),
        "marker-objects": Marker("1a", "objects", "s3://b/p", 600).encode(),
    }
    try:
        import pyspark  # noqa: F401
    except ImportError:
        return made
    from tidelake.cdc.times.heldevents import with_held
    from tidelake.feeds.answers import encoded_answer
    from tidelake.spark.source.offsets import to_json

    made |= {f"offset-{n}": json.dumps(to_json(one)).encode() for n, one in enumerate(offsets())}
    # `held-*` are of the first form, without spans and surveys.
    made |= {f"surveyed-{n}": with_held("content", one).encode() for n, one in enumerate(held())}
    return made | {"answer": encoded_answer(answer(), "fault")}


def offsets():
    """Offsets of streams, of each kind."""
    from tidelake.spark.source.offsets import Begin, Position

    begins = [Begin("1a", start) for start in ("snapshot", "latest", Frontier.of(5))]
    firsts = [None, "snapshot", Frontier.of(0)]
    return begins + [Position("1a", "2b", Frontier.of(7), first) for first in firsts]


def held():
    """What streams of transactions keep: rows in the record, and in objects."""
    from tidelake.cdc.core.topicpartition import Reached, TopicPartition
    from tidelake.cdc.times.heldevents import Held, HeldSpan
    from tidelake.cdc.times.timeline import Progress

    partitions = {TopicPartition("t", 0): Reached(1, 2, 3), TopicPartition("t", 1): Reached()}
    progress = Progress("postgresql", 1, 2, 3, 4, True, partitions, 5)
    return [
        Held(Progress("mysql")),
        Held(progress, b"rows"),
        Held(progress, b"", ("a/held/b/1",), (HeldSpan(1, 2, 3, 4),), b"survey"),
    ]


def answer():
    """The answer of a worker, in which every field says something."""
    from tidelake.feeds.answers import Answer
    from tidelake.feeds.reports import Counts

    told = {"updates": 2, "events": 6, "heartbeats": 7, "tombstones": 8, "late": 9, "held": 15}
    return Answer(
        uploads=(b"u",),
        counts=Counts(**told, repeated=16, removed=18, absent=19),
        time_lower=4,
        time_upper=5,
        files=("10",),
        advances=True,
        rejects=("12",),
        rejects_to="r",
        held=(b"h",),
        truncates=17,
    )


def text(found):
    """JSON with a line for each item."""
    lines = [f"{json.dumps(key)}: {json.dumps(found[key], ensure_ascii=False)}" for key in found]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def write(folder):
    """Write everything."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("records", "texts"):
        (folder / name).mkdir(parents=True)
    for name, value in records().items():
        (folder / "records" / name).write_bytes(encode(name.partition("-")[0], value))
    for name, data in texts().items():
        (folder / "texts" / name).write_bytes(data)
    lake(folder / "lake")
    with tempfile.TemporaryDirectory() as live:
        saved = folder / "arrangement"
        arrangement(saved, live)
        (saved / "lock").unlink()
        (saved / "~tmp").rmdir()
        restored = arranged(saved, live)
        shutil.copytree(folder / "lake", f"{live}/lake")
        expected = {
            "records": {name: plain(value) for name, value in records().items()},
            "lake": contents(f"{live}/lake"),
            "parts": described(f"{live}/lake"),
            "arrangement": restored,
        }
    for name, found in expected.items():
        (folder / f"{name}.json").write_text(text(found), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else V1)
