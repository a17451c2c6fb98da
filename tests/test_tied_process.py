"""Children of a test run that is killed do not stay behind."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tied_process import tied

PARENT = """
import subprocess, sys
from tied_process import tied
child = subprocess.Popen(tied(sys.executable, "-c", "import time; time.sleep(600)"))
print(child.pid, flush=True)
child.wait()
"""


def test_a_command_is_carried_out_as_it_is():
    command = tied(sys.executable, "-c", "import sys; print(sys.argv[1:]); sys.exit(3)", "a b", "")
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "['a b', '']\n")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties processes together")
def test_a_child_ends_with_a_parent_that_is_killed():
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, env=environment
    ) as parent:
        child = int(parent.stdout.readline())
        parent.kill()
    deadline_s = time.monotonic() + 60
    try:
        while _is_alive(child):
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def _is_alive(pid):
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    # Of a process that was not waited for, only a name is left.
    return status.rpartition(")")[2].split()[0] != "Z"
