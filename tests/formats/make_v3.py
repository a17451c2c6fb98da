"""Writes the bytes of format 3 into a folder: `python tests/formats/make_v3.py [FOLDER]`.

Format 3 is format 2 with the fields that `codec.SINCE` names. The folder `v3` holds records with them, and a
small lake whose logs have links and witnesses. It is treated as `v1` is: see `make_v1`.
"""

import shutil
import sys
from pathlib import Path

import make_v1
from format_parts import plain
from format_values import NEWEST_DELTAS, NEWEST_RECORDS, NEWEST_STATES, delta

import tidelake
from tidelake.env import Env
from tidelake.state import codec

V3 = Path(__file__).parent / "v3"


def records():
    """Bytes of every record, by file name."""
    made = {f"state-{name}": codec.encode_state(state) for name, state in NEWEST_STATES.items()}
    made |= {f"delta-{name}": codec.encode_delta(delta(edits)) for name, edits in NEWEST_DELTAS.items()}
    return made | {name: codec.encode_record(kind, value) for name, (kind, value) in NEWEST_RECORDS.items()}


def lake(place):
    """A small lake with settings of its own, an upload that came in, and two collections of a group."""
    env = Env(clock=make_v1.FixedClock(), ids=make_v1.FixedIds())
    with tidelake.open(place, config=make_v1.CONFIG, env=env) as opened:
        opened.settings(upload_age_s=100_000, garbage_age_s=700)
        orders, items = (opened.create(name, make_v1.TABLE, key=["id"]) for name in ("orders", "items"))
        rows = make_v1.table(range(40), _time=[0] * 40)
        orders.distributed.append_uploaded(
            [orders.distributed.uploader(lower=0).upload([rows])], lower=0, upper=1
        )
        opened.write({"orders": make_v1.table(range(40, 50)), "items": make_v1.table(range(9))})
        orders.writer("w", owner="me").append(make_v1.table([90]), sequence=4)
        items.stage(make_v1.table([1, 2], _time=[7, 9]))
        items.seal(8)


def contents(place):
    """What reads of that lake answer, as JSON."""
    with tidelake.open(place, create=False, config=make_v1.CONFIG) as opened:
        return {
            "settings": plain(opened.settings()),
            "collections": {name: _answers(opened.collection(name)) for name in opened.list()},
        }


def _answers(c):
    return {
        "upper": plain(c.upper),
        "writers": plain(c.writers()),
        "as of": {str(t): c.snapshot(t).read_all().to_pydict() for t in range(c.upper.elements[0])},
    }


def write(folder):
    """Write everything."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "records").mkdir(parents=True)
    for name, data in records().items():
        (folder / "records" / name).write_bytes(data)
    lake(folder / "lake")
    values = {f"state-{name}": plain(state) for name, state in NEWEST_STATES.items()}
    values |= {f"delta-{name}": plain(delta(edits)) for name, edits in NEWEST_DELTAS.items()}
    values |= {name: plain(value) for name, (_, value) in NEWEST_RECORDS.items()}
    for name, found in {"records": values, "lake": contents(folder / "lake")}.items():
        (folder / f"{name}.json").write_text(make_v1.text(found), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else V3)
