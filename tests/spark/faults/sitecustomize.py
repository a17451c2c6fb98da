"""In a worker's Python: some tasks fail at their end, and some are slow, at their first attempt.

At the end everything is done, an upload for instance, and Spark does not know it. Which tasks it hits
follows from their place alone, so that a run can be repeated. `TIDELAKE_TEST_FAULTS` in a hundred tasks
fail, `TIDELAKE_TEST_SLOW` in a hundred others sleep.
"""

import os
import time
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

FAULTS = int(os.environ.get("TIDELAKE_TEST_FAULTS", "0"))
SLOW = int(os.environ.get("TIDELAKE_TEST_SLOW", "0"))
SLOW_S = 5.0


class InjectedFault(Exception):
    """Not a fault of the task."""


def _unlucky(batches: Iterable[Any]) -> Iterator[Any]:
    yield from batches
    from pyspark import TaskContext

    task = TaskContext.get()
    if task is None or task.attemptNumber():
        return
    lot = zlib.crc32(f"{task.stageId()}/{task.partitionId()}".encode()) % 100
    if lot < FAULTS:
        raise InjectedFault(f"stage {task.stageId()}, partition {task.partitionId()}")
    if lot < FAULTS + SLOW:
        time.sleep(SLOW_S)


def _install() -> None:
    from pyspark.sql.pandas.serializers import ArrowStreamSerializer

    dump = ArrowStreamSerializer.dump_stream
    ArrowStreamSerializer.dump_stream = lambda self, batches, stream: dump(self, _unlucky(batches), stream)


if FAULTS or SLOW:
    _install()
