"""A driver process: follows the topic of a connector into the collections of a group, until it is killed.

cdc_driver.py BROKER TOPIC LAKE CHECKPOINT
"""

import sys
from pathlib import Path
from typing import Any

import quick

import tidelake
from tests.cdc import bank_views
from tests.spark import kafka_broker
from tidelake.spark import tables_sink


def main(broker: str, topic: str, lake: str, checkpoint: str) -> None:
    spark = quick.session(**kafka_broker.class_path())
    print("ready", flush=True)

    lake_ = tidelake.open(Path(lake))

    def told(done: Any) -> None:
        bank_views.refresh(lake_)
        upper = done.upper.elements[0]
        print("batch", done.batch, done.events, done.held, done.repeated, upper, flush=True)

    to = tables_sink(lake_, "bank", progress=told)
    options = {"kafka.bootstrap.servers": broker, "subscribe": topic, "startingOffsets": "earliest"}
    # A broker that is killed may be away for longer than a client waits by default.
    options["kafka.default.api.timeout.ms"] = "600000"
    # The first micro-batches catch up in several steps.
    frame = spark.readStream.format("kafka").options(**options, maxOffsetsPerTrigger="5000").load()
    query = frame.writeStream.foreachBatch(to).option("checkpointLocation", checkpoint).start()
    try:
        query.awaitTermination()
    except Exception:
        if to.error is not None:
            raise to.error from None
        raise


if __name__ == "__main__":
    main(*sys.argv[1:])
