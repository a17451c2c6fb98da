"""Processes that end with the test run that started them, also if it is killed.

As a script: tied_process.py PARENT COMMAND...: becomes COMMAND, and is killed when PARENT is gone.
"""

import os
import sys

_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2); it outlives an exec


def tied(*command):
    """A command for `subprocess.Popen`, called from the main thread: the tie is to the thread that starts it.

    Only Linux can do it; elsewhere the command is what it was.
    """
    if sys.platform != "linux":
        return [*map(str, command)]
    # Without site-packages: it is there for a few milliseconds only.
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *map(str, command)]


if __name__ == "__main__":
    import ctypes
    import signal

    if ctypes.CDLL(None, use_errno=True).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0):
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    # It may have gone before the tie was made.
    if os.getppid() == int(sys.argv[1]):
        os.execvp(sys.argv[2], sys.argv[2:])
