"""A driver process that keeps the views of a lake up to their inputs, until it is killed.

refresh_driver.py LAKE [executors]
"""

import sys

import quick

import tidelake
from tidelake.spark import refresh_stream
from tidelake.spark.views import engine


def main(place: str, by: str = "driver") -> None:
    if by == "executors":
        engine.DRIVER_ROWS_MAX = 0
    # Four attempts at a task.
    spark = quick.session("2,4")
    query = refresh_stream(spark, tidelake.open(place), interval_s=0.05)
    print("ready", flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
