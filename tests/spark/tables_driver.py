"""A driver process for the kill tests: ingests a feed of several tables, and may die on request.

    tables_driver.py LAKE DIRECTORY CHECKPOINT [CALL]

With `CALL` it kills its process group right before its write number CALL to a log.
"""

import os
import signal
import sys

import quick

import tidelake
from tidelake.spark import ingest_tables
from tidelake.store.framed.log import FramedVersionLog


def main(lake: str, directory: str, checkpoint: str, call: str = "0") -> None:
    left = int(call)
    original = FramedVersionLog.compare_and_set

    def compare_and_set(self, *args, **kwargs):
        nonlocal left
        left -= 1
        if not left:
            os.killpg(os.getpgid(0), signal.SIGKILL)
        return original(self, *args, **kwargs)

    FramedVersionLog.compare_and_set = compare_and_set
    spark = quick.session()
    spark.conf.set("spark.tidelake.driverBytesMax", "0" if left % 2 else "16m")
    ingest_tables(
        spark,
        tidelake.open(lake),
        directory,
        checkpoint,
        into="shop",
        keys=["id"],
        max_files_per_trigger=1,
    )
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
