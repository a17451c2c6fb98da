"""Writes the bytes of format 2 into a folder: `python tests/formats/make_v2.py [FOLDER]`.

Format 2 is format 1 with the fields that `codec.SINCE` names; a record without them is of format 1. The
folder `v2` holds records with them, and a small lake. It is treated as `v1` is: see `make_v1`.
"""

import shutil
import sys
from pathlib import Path

import make_v1
from format_parts import plain
from format_values import LATER_DELTAS, LATER_STATES, delta

import inside
import tidelake
from tidelake.env import Env
from tidelake.state import codec

V2 = Path(__file__).parent / "v2"


def records():
    """Bytes of every record, by file name."""
    made = {f"state-{name}": codec.encode_state(state) for name, state in LATER_STATES.items()}
    return made | {f"delta-{name}": codec.encode_delta(delta(edits)) for name, edits in LATER_DELTAS.items()}


def lake(place):
    """A small lake with staged batches of closed times and of open ones."""
    env = Env(clock=make_v1.FixedClock(), ids=make_v1.FixedIds())
    with tidelake.open(place, config=make_v1.CONFIG, env=env) as opened:
        c = opened.create("orders", make_v1.TABLE, key=["id"])
        c.append(make_v1.table(range(40)))
        c.stage(make_v1.table(range(40, 80), _time=[i % 9 + 1 for i in range(40)]))
        c.stage(make_v1.table([1, 2], _time=[3, 7], _diff=[-1, -1]))
        c.stage(make_v1.table([90], _time=[20]))
        c.seal(5)
        inside.write_rollup(c)


def contents(place):
    """What reads of that lake answer, as JSON."""
    with tidelake.open(place, create=False, config=make_v1.CONFIG) as opened:
        c = opened.collection("orders")
        state = c.state()
        return {
            "upper": plain(state.upper),
            "drained": plain(state.drained),
            "staged": state.staged.totals.rows,
            "as of": {str(t): c.snapshot(t).read_all().to_pydict() for t in range(5)},
            "staged as of": {str(t): c.snapshot(t, staged=True).read_all().to_pydict() for t in (4, 7, 30)},
        }


def write(folder):
    """Write everything."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "records").mkdir(parents=True)
    for name, data in records().items():
        (folder / "records" / name).write_bytes(data)
    lake(folder / "lake")
    values = {f"state-{name}": plain(state) for name, state in LATER_STATES.items()}
    values |= {f"delta-{name}": plain(delta(edits)) for name, edits in LATER_DELTAS.items()}
    for name, found in {"records": values, "lake": contents(folder / "lake")}.items():
        (folder / f"{name}.json").write_text(make_v1.text(found), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else V2)
