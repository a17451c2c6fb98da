"""Writes the bytes of format 4 into a folder: `python tests/formats/make_v4.py [FOLDER]`.

Format 4 is format 3 with the fields that `codec.SINCE` names. The folder `v4` holds records with them, and a
small lake with slices and bases. It is treated as `v1` is: see `make_v1`.
"""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import make_v1
from format_parts import plain
from format_values import SLICED_DELTAS, SLICED_STATES, delta

import tidelake
from tidelake.env import Env
from tidelake.state import codec

V4 = Path(__file__).parent / "v4"
CONFIG = replace(make_v1.CONFIG, slice_rows=32)


def records():
    """Bytes of every record, by file name."""
    made = {f"state-{name}": codec.encode_state(state) for name, state in SLICED_STATES.items()}
    return made | {f"delta-{name}": codec.encode_delta(delta(edits)) for name, edits in SLICED_DELTAS.items()}


def lake(place):
    """A small lake: the same 16 rows are written ten times, so there are slices and bases."""
    env = Env(clock=make_v1.FixedClock(), ids=make_v1.FixedIds())
    with tidelake.open(place, config=CONFIG, env=env) as opened:
        c = opened.create("orders", make_v1.TABLE, key=["id"])
        for n in range(10):
            c.upsert(make_v1.table(range(16), f"{n}-"))
            if n % 2:
                c.maintain()
        c._shard.write_rollup()
        c.upsert(make_v1.table(range(8, 16), "x"))


def contents(place):
    """What reads of that lake answer, as JSON."""
    with tidelake.open(place, create=False, config=CONFIG) as opened:
        c = opened.collection("orders")
        state = c.state()
        return {
            "upper": plain(state.upper),
            "slices": [plain(held.id) for held in state.spine.slices],
            "bases": [base.hi for base in state.bases],
            "as of": {str(t): c.snapshot(t).read_all().to_pydict() for t in range(c.upper.elements[0])},
        }


def write(folder):
    """Write everything."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "records").mkdir(parents=True)
    for name, data in records().items():
        (folder / "records" / name).write_bytes(data)
    lake(folder / "lake")
    values = {f"state-{name}": plain(state) for name, state in SLICED_STATES.items()}
    values |= {f"delta-{name}": plain(delta(edits)) for name, edits in SLICED_DELTAS.items()}
    for name, found in {"records": values, "lake": contents(folder / "lake")}.items():
        (folder / f"{name}.json").write_text(make_v1.text(found), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else V4)
