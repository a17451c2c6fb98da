"""Records are decoded by any thread, also those that are the first to do so."""

import subprocess
import sys
from pathlib import Path

import pytest

STORED = Path(__file__).parent.parent / "formats" / "v1" / "records"
# Nothing is imported that it does not need: the more there is, the seldomer garbage is looked for.
DELTAS = """
from tidelake.state.core.codec import decode_delta
ways = {"delta": lambda data: decode_delta(data, "delta")}
"""
SENT = """
from tidelake.shard.runs.plan import Task
from tidelake.shard.engine.spec import decoded
from tidelake.shard.writing.builder import Uploader
ways = {
    "uploader": lambda data: decoded("uploader", data, Uploader, "uploader"),
    "task": lambda data: decoded("task", data, Task, "task"),
}
"""
# Which thread runs changes as often as it can.
THREADS = """
import gc, sys, threading
from pathlib import Path

read, begin = [], threading.Barrier(16)
records = [(way, (Path(sys.argv[1]) / name).read_bytes()) for name, way in ways.items()]

def work(way, data):
    begin.wait()
    read.append(way(data))

sys.setswitchinterval(1e-6)
gc.set_threshold(1, 1, 1)
threads = [threading.Thread(target=work, args=records[i % len(records)]) for i in range(16)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(read))
"""


# Each time in a process that has decoded nothing.
@pytest.mark.full
@pytest.mark.parametrize("_time", range(4))
@pytest.mark.parametrize("ways", [DELTAS, SENT], ids=["deltas", "sent"])
def test_threads_that_are_the_first_to_decode_get_what_is_there(ways, _time):
    command = [sys.executable, "-c", ways + THREADS, str(STORED)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "16\n"), done.stderr
