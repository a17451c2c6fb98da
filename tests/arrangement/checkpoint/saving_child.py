"""A process that appends and saves, again and again, until it is killed: `saving_child.py PATH DIRECTORY`.

It goes on from the checkpoint that is there. Content number n has the keys 0 to n - 1, each with the value n
of the time when it was touched last. A line says what was saved.
"""

import sys

import pyarrow as pa

from tidelake.arrangement.arrangement import Arrangement
from tidelake.arrangement.checkpoint.checkpoint import CheckpointDirectory
from tidelake.arrangement.merge.settings import ArrangementConfig

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("n", pa.int64())])
TOUCHED = 3
# So that a save has files of its own to write, files to share, and some that merges have made.
CONFIG = ArrangementConfig(level_rows=8)


def rows_of(number):
    """The rows of content `number`: for each key the number of the last step that touched it."""
    last = {}
    for step in range(1, number + 1):
        for key in touched(step):
            last[key] = step
    return last


def touched(step):
    return sorted({step - 1, *(hash((step, i)) % step for i in range(TOUCHED))})


def updates(step, before):
    keys = touched(step)
    gone = [key for key in keys if key in before]
    return pa.table(
        {
            "k": pa.array([*gone, *keys], pa.int64()),
            "n": pa.array([*(before[key] for key in gone), *(step for _ in keys)], pa.int64()),
            "_time": pa.array([step] * (len(gone) + len(keys)), pa.int64()),
            "_diff": pa.array([-1] * len(gone) + [1] * len(keys), pa.int64()),
        }
    )


def contents(arrangement):
    table = arrangement.range()
    assert set(table.column("_diff").to_pylist()) <= {1}
    return dict(zip(table.column("k").to_pylist(), table.column("n").to_pylist(), strict=True))


def main(path, directory):
    if CheckpointDirectory(path).checkpoints():
        arrangement = Arrangement.restore(path, directory=directory, config=CONFIG)
    else:
        arrangement = Arrangement.create(SCHEMA, key=["k"], directory=directory, config=CONFIG)
    held = contents(arrangement)
    number = max(held.values(), default=0)
    while True:
        number += 1
        arrangement.append(updates(number, held))
        held |= dict.fromkeys(touched(number), number)
        arrangement.save(path)
        print(number, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
