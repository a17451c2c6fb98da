"""A process in the environment of one peer: does what it is told, line by line, and times it.

    python -m bench.peers.worker <peer> <folder>

Each line is JSON: `do`, the name of a method of `Peer` (or `read_anew`, `append_each`), its `table`, `rows`
(a file of Arrow rows) and the other arguments. Each answer is a line of JSON: seconds by the clock and of the
processor, a summary of the rows that came back, and at the end memory and bytes on disk. Rows are read before
the clock runs.
"""

import importlib
import json
import os
import resource
import sys
import time
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bench.peers.contract import Cannot

SMALL_ROWS = 10


def summary(rows: pa.Table) -> list[int]:
    """Counts and sums by which two answers are compared; of changes with the sign of each row."""
    sign = rows["diff"] if "diff" in rows.column_names else pa.scalar(1, pa.int64())
    sums = [pc.sum(pc.multiply(rows[name].cast(pa.int64()), sign)).as_py() or 0 for name in ("id", "n")]
    letters = pc.sum(pc.multiply(pc.utf8_length(rows["s"].cast(pa.string())).cast(pa.int64()), sign)).as_py()
    return [rows.num_rows, *sums, letters or 0]


def bytes_of(folder: str) -> int:
    """The bytes of all files below a folder."""
    return sum(os.lstat(os.path.join(at, name)).st_size for at, _, names in os.walk(folder) for name in names)


def answered(peer: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """What one line asks for, done."""
    if asked["do"] == "measure":
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return {"bytes": bytes_of(peer.folder), "peak_mib": usage.ru_maxrss / 1024}
    given = dict(asked.get("more", {}))
    if "rows" in asked:
        with pa.OSFile(asked["rows"]) as file:
            rows = pa.ipc.open_file(file).read_all()
        given["schema" if asked["do"] == "create" else asked.get("as", "rows")] = (
            rows.schema if asked["do"] == "create" else rows
        )
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    try:
        if asked["do"] == "read_anew":
            found = peer.again().read(asked["table"])
        elif asked["do"] == "append_each":
            found = None
            for start in range(0, rows.num_rows, SMALL_ROWS):
                peer.append(asked["table"], rows.slice(start, SMALL_ROWS))
        else:
            found = getattr(peer, asked["do"])(asked["table"], **given)
    except Cannot as error:
        return {"cannot": str(error)}
    done: dict[str, Any] = {"s": time.perf_counter() - began_s, "cpu_s": time.process_time() - began_cpu_s}
    if isinstance(found, pa.Table):
        done["found"] = summary(found)
    elif found is not None:
        done["value"] = found
    return done


def main() -> None:
    name, folder = sys.argv[1:]
    # What a peer prints must not be taken for an answer.
    answers, sys.stdout = sys.stdout, sys.stderr
    peer = importlib.import_module(f"bench.peers.{name}_").Peer(folder)
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(answered(peer, json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
