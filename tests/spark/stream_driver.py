"""A driver process for the tests of streams: writes a folder to a collection, tells of each batch.

    stream_driver.py ROOT WAY ENVELOPE COLUMNS [FLAKY]

ROOT has the lake (`lake`, collection `c`), the folder `in`, the checkpoint. WAY is `helper` or `format`.
With FLAKY, so many of all tasks fail, and are tried again; files in ROOT/marks tell of it.
"""

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import flaky
import quick
import stream_source

import tidelake
from tidelake.spark import sink
from tidelake.spark.envelopes.named import named


def main(root: str, way: str, envelope: str, columns: str, rate: str = "0") -> None:
    place = Path(root)
    # Before the session starts: the workers have this environment.
    os.environ |= {"FLAKY_RATE": rate, "FLAKY_MARKS": str(place / "marks")}
    spark = quick.session("2,8")
    print("ready", flush=True)
    collection = tidelake.open(place / "lake").collection("c")
    made: Any = named(envelope, stream_source.OPTIONS[envelope])
    form = "tidelake"
    if float(rate):
        form = stream_source.register_flaky(spark)
        made = flaky.Flaky.of_environment(made)
    to = sink(collection, made) if way == "helper" else None
    frame = stream_source.lines(spark, place / "in", columns).repartition(4)
    options = {"envelope": envelope, **stream_source.FORMAT_OPTIONS[envelope]}
    query = stream_source.start(frame, collection, place / "checkpoint", to, form, **options)
    done = threading.Event()
    watching = threading.Thread(target=tell, args=(place / "checkpoint" / "commits", done))
    watching.start()
    try:
        query.awaitTermination()
    finally:
        done.set()
        watching.join()
    print("done", flush=True)


def tell(commits: Path, done: threading.Event) -> None:
    """Print a line for each micro-batch that Spark's checkpoint says is done."""
    told = set(names(commits))
    while not done.is_set():
        for name in sorted(set(names(commits)) - told):
            told.add(name)
            print("batch", name, flush=True)
        time.sleep(0.01)


def names(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if name.isdigit()] if folder.is_dir() else []


if __name__ == "__main__":
    main(*sys.argv[1:])
