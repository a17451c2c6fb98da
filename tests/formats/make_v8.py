"""Writes the bytes of format 8 into a folder: `python tests/formats/make_v8.py [FOLDER]`.

Format 8 is format 7 with forks and origins that know each other and share nothing, checkpoints of
arrangements that know of an erasure, and when the last times were closed. The folder `v8` holds records with
them. It is treated as `v1` is: see `make_v1`.
"""

import shutil
import sys
from pathlib import Path

import make_v1
from format_parts import plain
from format_values import ERASED_CHECKPOINT, FREED_DELTAS, FREED_STATES, delta

from tidelake.state import codec

V8 = Path(__file__).parent / "v8"


def records():
    """Bytes of every record, by file name."""
    made = {f"state-{name}": codec.encode_state(state) for name, state in FREED_STATES.items()}
    made["arrangement-erased"] = codec.encode_record("arrangement", ERASED_CHECKPOINT)
    return made | {f"delta-{name}": codec.encode_delta(delta(edits)) for name, edits in FREED_DELTAS.items()}


def write(folder):
    """Write everything."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "records").mkdir(parents=True)
    for name, data in records().items():
        (folder / "records" / name).write_bytes(data)
    values = {f"state-{name}": plain(state) for name, state in FREED_STATES.items()}
    values["arrangement-erased"] = plain(ERASED_CHECKPOINT)
    values |= {f"delta-{name}": plain(delta(edits)) for name, edits in FREED_DELTAS.items()}
    (folder / "records.json").write_text(make_v1.text(values), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else V8)
