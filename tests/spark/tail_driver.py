"""A driver process for the kill tests: streams a collection into files, and tells of each batch.

    tail_driver.py LAKE ROOT [once]

Without `once` it goes on until it is killed. The sink is ROOT/out, the checkpoint ROOT/checkpoint.
"""

import sys
from pathlib import Path

import quick
import tail_source


def main(lake: str, root: str, trigger: str = "") -> None:
    spark = quick.session()
    frame = tail_source.stream(spark, lake, maxRowsPerTrigger=25, maxTimesPerTrigger=3)
    print("ready", flush=True)
    query = tail_source.to_parquet(
        frame, Path(root), {"availableNow": True} if trigger else {"processingTime": "0 seconds"}
    )
    seen = -1
    while query.isActive and not trigger:
        last = query.lastProgress
        if last is not None and last.batchId != seen:
            seen = last.batchId
            print("batch", seen, flush=True)
        query.awaitTermination(0.02)
    query.awaitTermination()
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
