"""One merge in a process of its own, and how much its resident memory grew: `python -m bench.peak FOLDER`."""

import json
import sys
from pathlib import Path

from tidelake.shard.runs.plan import run_merge_task
from tidelake.store.files import SystemFiles, no_flush
from tidelake.store.local import LocalBlobStore


def peak_mib() -> float:
    """The most memory that was ever resident. Unlike `ru_maxrss`, it does not begin with the parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def main() -> None:
    folder = Path(sys.argv[1])
    blobs = LocalBlobStore(str(folder / "blobs"), SystemFiles(no_flush))
    before = peak_mib()
    run_merge_task((folder / "task").read_bytes(), blobs)
    print(json.dumps({"growth_mib": peak_mib() - before}))


if __name__ == "__main__":
    main()
