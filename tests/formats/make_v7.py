"""Writes the bytes of format 7 into a folder: `python tests/formats/make_v7.py [FOLDER]`.

Format 7 is format 6 with renamed columns, notes of commits, erasures and times that are days. The folder `v7`
holds records with them. It is treated as `v1` is: see `make_v1`.
"""

import shutil
import sys
from pathlib import Path

import make_v1
from format_parts import plain
from format_values import (
    DATED_RECORDS,
    DATED_STATES,
    ERASED_DELTAS,
    ERASED_STATES,
    RENAMED_DELTAS,
    RENAMED_STATES,
    delta,
)

from tidelake.state import codec

V7 = Path(__file__).parent / "v7"
STATES, DELTAS = RENAMED_STATES | ERASED_STATES | DATED_STATES, RENAMED_DELTAS | ERASED_DELTAS


def records():
    """Bytes of every record, by file name."""
    made = {f"state-{name}": codec.encode_state(state) for name, state in STATES.items()}
    made |= {name: codec.encode_record("uploader", value) for name, value in DATED_RECORDS.items()}
    return made | {f"delta-{name}": codec.encode_delta(delta(edits)) for name, edits in DELTAS.items()}


def write(folder):
    """Write everything."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "records").mkdir(parents=True)
    for name, data in records().items():
        (folder / "records" / name).write_bytes(data)
    values = {f"state-{name}": plain(state) for name, state in STATES.items()}
    values |= {f"delta-{name}": plain(delta(edits)) for name, edits in DELTAS.items()}
    values |= {name: plain(value) for name, value in DATED_RECORDS.items()}
    (folder / "records.json").write_text(make_v1.text(values), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else V7)
