"""A driver process on a machine of its own: ingests its copy of a history, and tells of each batch.

    apart_driver.py '{"master": "spark://...", "lake": "s3://...", "data": ..., "name": ..., "conf": {...}}'

It may be killed, and started again. The checkpoint is on the disk of its machine.
"""

import json
import sys
from pathlib import Path

import pyarrow as pa
from matrix_driver import session

import tidelake
from tidelake.feeds.reports import WrittenBatch
from tidelake.spark import ingest_change_files


def main(master: str, lake: str, data: str, name: str, conf: dict[str, str], cores: str = "4") -> None:
    spark = session("cluster", master, conf | {"spark.cores.max": cores})
    key, *values = json.loads((Path(data) / "about.json").read_text())["columns"]
    fields = [pa.field(key, pa.string(), nullable=False), *((v, pa.string()) for v in values)]
    opened = tidelake.open(lake, create=False)
    c = opened[name] if name in opened else opened.create(name, pa.schema(fields), key=[key])
    print("ready", flush=True)

    def progress(done: WrittenBatch) -> None:
        print("batch", done.batch, done.already, flush=True)

    checkpoint = Path("checkpoint").absolute()
    ingest_change_files(
        spark, c, Path(data) / "landing", checkpoint, max_files_per_trigger=1, progress=progress
    )
    print("done", flush=True)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
