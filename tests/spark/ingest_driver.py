"""A driver process for the kill tests: ingests a folder, tells of each batch, and may die on request.

    ingest_driver.py LAKE DIRECTORY CHECKPOINT [before|after] [BATCH]

`before 3` kills the whole process group right before batch 3 is appended, `after 3` right after it,
which is before Spark's checkpoint says so.
"""

import os
import signal
import sys

import quick

import tidelake
from tidelake.feeds.reports import WrittenBatch
from tidelake.lake.api.writer import Writer
from tidelake.spark import ingest_change_files


def main(lake: str, directory: str, checkpoint: str, moment: str = "", batch: str = "-1") -> None:
    def die() -> None:
        os.killpg(os.getpgid(0), signal.SIGKILL)

    if moment == "before":
        original = Writer.append_uploaded

        def append_uploaded(self, *args, **kwargs):
            if kwargs["sequence"] == int(batch):
                die()
            return original(self, *args, **kwargs)

        Writer.append_uploaded = append_uploaded

    def progress(done: WrittenBatch) -> None:
        if moment == "after" and done.batch == int(batch):
            die()
        print("batch", done.batch, done.already, flush=True)

    spark = quick.session()
    print("ready", flush=True)
    collection = tidelake.open(lake).collection("c")
    ingest_change_files(spark, collection, directory, checkpoint, max_files_per_trigger=1, progress=progress)
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
