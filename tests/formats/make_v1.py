"""Writes the bytes of this version into a folder: `python tests/formats/make_v1.py [FOLDER]`.

The folder `v1` is committed, and stays as it is from the first release on: later versions read it. Until
then a change of a format runs this, and says so in docs/formats.md.
"""

import json
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import format_batches
import pyarrow as pa
from format_parts import CASES, encoded, inline, plain, rows_of, stored
from format_values import ALL_DELTAS, ALL_RECORDS, ALL_STATES

import inside
import tidelake
from tidelake.arrangement.arrangement import Arrangement
from tidelake.config import Config
from tidelake.data.rowhash import row_hash
from tidelake.env import Env
from tidelake.state import codec

V1 = Path(__file__).parent / "v1"
# So small that some rows are inline and some are not, and that a rollup is due.
CONFIG = Config(inline_part_bytes=1000, row_group_rows=16, part_target_bytes=4096, merge_budget_s=0)
TABLE = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])


class FixedIds:
    """1, 2, 3, ... as ids."""

    def __init__(self):
        self._n = 0

    def fresh(self):
        self._n += 1
        return f"{self._n:032x}"


class FixedClock:
    """A clock that moves a second at each look."""

    def __init__(self):
        self._ms = 1_700_000_000_000

    def now_ms(self):
        self._ms += 1_000
        return self._ms

    def monotonic_s(self):
        return self._ms / 1000

    def sleep(self, seconds):
        self._ms += int(seconds * 1000)


def records():
    """Bytes of every record, by file name."""
    made = {name: codec.encode_state(state) for name, state in ALL_STATES.items()}
    made |= {name: codec.encode_delta(one) for name, one in ALL_DELTAS.items()}
    return made | {name: codec.encode_record(kind, value) for name, (kind, value) in ALL_RECORDS.items()}


def table(ids, v="x", **more):
    ids = list(ids)
    return pa.table(
        {"id": pa.array(ids, pa.int64()), "v": [None if i % 7 == 3 else f"{v}{i}" for i in ids], **more}
    )


def lake(place):
    """A small lake with something of everything in it."""
    with tidelake.open(place, config=CONFIG, env=Env(clock=FixedClock(), ids=FixedIds())) as opened:
        c = opened.create("orders", TABLE, key=["id"])
        c.append(table(range(40)))
        c.append(table([3, 5], _diff=[-1, -1]))
        c.writer("w", owner="me").append(table(range(200, 203), "w"), sequence=4)
        c.append(table(range(20, 60), "y", _time=[5] * 40), upper=8)
        c.advance_since(2)
        c.reader("reads", since=3)
        c.maintain()
        inside.write_rollup(c)
        c.append(table([7, 7, 8], "z"))
        c.evolve(TABLE.append(pa.field("w", pa.int32())))
        c.append(table([9], w=pa.array([1], pa.int32())))
        pairs = opened.create("pairs", TABLE, key=["id"], time="tuple(2)")
        pairs.append(table(range(3), _time_0=[0, 1, 0], _time_1=[2, 0, 0]), upper=(2, 3))
        opened.create("empty", TABLE, key=["id", "v"], time="us")
        opened.create("gone", TABLE, key=["id"]).append(table([1]))
        opened.drop("gone")


def contents(place):
    """What reads of that lake answer, as JSON."""
    with tidelake.open(place, create=False, config=CONFIG) as opened:
        return {name: _answers(opened.collection(name)) for name in opened.list()}


def _answers(c):
    times = range(2, 12) if c.domain.total_order else [(0, 2), (1, 2), (0, 0)]
    state = c.state()
    readable = [t for t in times if state.since.less_equal(t) and not state.upper.less_equal(t)]
    return {
        "schemas": plain(state.schemas),
        "upper": plain(state.upper),
        "since": plain(state.since),
        "writers": plain(state.writers),
        "holds": plain(state.holds),
        "as of": {str(t): c.snapshot(t).read_all().to_pydict() for t in readable},
    }


def arrangement(place, directory):
    """A checkpoint of a small arrangement: batches with filters of each kind, some of several blocks."""
    env = Env(clock=FixedClock(), ids=FixedIds())
    with Arrangement.create(TABLE, key=["id"], directory=directory, env=env) as made:
        made.pause()
        made.append(table(range(40), _time=[1] * 40))
        made.append(table([3, 5], _time=[4, 4], _diff=[-1, 2]))
        made.append(table([2**40, -(2**40), 7], "z", _time=[2, 3, 9]))
        made.advance_since(2)
        made.save(place)


def arranged(place, directory):
    """What reads of that checkpoint answer, as JSON."""
    with Arrangement.restore(place, directory=directory) as found:
        return {
            "frontier": plain(found.since),
            "updates": len(found),
            "as of": {str(t): found.range(as_of=t).to_pydict() for t in range(2, 10)},
        }


def parts_of():
    """What is to be read from the parts, as JSON."""
    return {
        case: {
            "part": plain(stored(case)[0]),
            "inline": plain(replace(inline(case), inline=None)),
            "rows": encoded(rows_of(case)[0]),
        }
        for case in CASES
    }


def values():
    """What is to be read from the records, as JSON."""
    made = ALL_STATES | ALL_DELTAS | {name: value for name, (_, value) in ALL_RECORDS.items()}
    return {name: plain(value) for name, value in made.items()}


def hashes():
    """Of each case the hash of all rows, and that of each row with its diff."""
    found = {}
    for case in CASES:
        batch, schema, _ = rows_of(case)
        pieces = [batch, *(batch.slice(n, 1) for n in range(batch.num_rows))]
        found[case] = [f"{row_hash(piece, schema):016x}" for piece in pieces]
    return found


def text(found):
    """JSON with a line for each item."""
    lines = [f"{json.dumps(key)}: {json.dumps(found[key], ensure_ascii=False)}" for key in found]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def write(folder):
    """Write everything."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("records", "parts", "batches"):
        (folder / name).mkdir(parents=True)
    for name, data in records().items():
        (folder / "records" / name).write_bytes(data)
    for case in CASES:
        (folder / "parts" / f"{case}.parquet").write_bytes(stored(case)[1])
        (folder / "parts" / f"{case}.inline").write_bytes(inline(case).inline)
    for kind in format_batches.KINDS:
        format_batches.write(kind, folder / "batches")
    lake(folder / "lake")
    with tempfile.TemporaryDirectory() as live:
        saved = folder / "arrangement"
        arrangement(saved, live)
        (saved / "lock").unlink()
        (saved / "~tmp").rmdir()
        as_restored = arranged(saved, live)
    expected = {
        "records": values(),
        "hashes": hashes(),
        "parts": parts_of(),
        "lake": contents(folder / "lake"),
        "arrangement": as_restored,
    }
    for name, found in expected.items():
        (folder / f"{name}.json").write_text(text(found), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else V1)
