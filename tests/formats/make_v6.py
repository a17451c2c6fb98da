"""Writes the bytes of format 6 into a folder: `python tests/formats/make_v6.py [FOLDER]`.

Format 6 is format 5 with hashes of rows in the descriptions of parts. The folder `v6` holds records with
them, and the hashes of rows of every type, which tell the hash function. It is treated as `v1` is: see
`make_v1`.
"""

import shutil
import sys
from pathlib import Path

import make_v1
from format_parts import CASES, plain, rows_of
from format_values import HASHED_DELTAS, HASHED_RECORDS, HASHED_STATES, delta

from tidelake.data.rowhash import row_hash
from tidelake.state import codec

V6 = Path(__file__).parent / "v6"


def records():
    """Bytes of every record, by file name."""
    made = {f"state-{name}": codec.encode_state(state) for name, state in HASHED_STATES.items()}
    made |= {f"delta-{name}": codec.encode_delta(delta(edits)) for name, edits in HASHED_DELTAS.items()}
    return made | {name: codec.encode_record(kind, value) for name, (kind, value) in HASHED_RECORDS.items()}


def hashes():
    """Of each case the hash of all rows, and that of each row with its diff."""
    found = {}
    for case in CASES:
        batch, schema, _ = rows_of(case)
        pieces = [batch, *(batch.slice(n, 1) for n in range(batch.num_rows))]
        found[case] = [f"{row_hash(piece, schema):016x}" for piece in pieces]
    return found


def write(folder):
    """Write everything."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "records").mkdir(parents=True)
    for name, data in records().items():
        (folder / "records" / name).write_bytes(data)
    values = {f"state-{name}": plain(state) for name, state in HASHED_STATES.items()}
    values |= {f"delta-{name}": plain(delta(edits)) for name, edits in HASHED_DELTAS.items()}
    values |= {name: plain(value) for name, (_, value) in HASHED_RECORDS.items()}
    for name, found in {"records": values, "hashes": hashes()}.items():
        (folder / f"{name}.json").write_text(make_v1.text(found), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else V6)
