"""How Python workers of Spark end that have no work, and what they do between tasks.

Spark closes the connection of a worker that had none for a minute, or whose session ends. PySpark takes that
for a failed task, and from 4.1 on it prints the traceback of a `BrokenPipeError`, after jobs that went well,
where a connection is a Unix domain socket (as in `local_session`). A worker that has imported
`tidelake.spark` just ends if its connection is closed before any work has come. Work that has come, and what
is said of it, is PySpark's. So no work of Tidelake goes to workers that need not import it: a frame of rows
that the driver has is made by `from_arrow` in `tidelake.spark.versions`.

After each task PySpark looks for garbage in all objects of the process, which are mostly those of imported
modules: 33 ms. So what is there before the second task is left out from then on.
"""

import gc
import socket
import sys
from collections.abc import Callable

Worker = Callable[[socket.socket, bool], int]
_DAEMON = "pyspark.daemon"


def quiet(worker: Worker) -> Worker:
    """PySpark's function of a worker's connection, called only once there is something to read."""
    frozen = False

    def waiting(sock: socket.socket, authenticated: bool) -> int:
        nonlocal frozen
        if not sock.recv(1, socket.MSG_PEEK):
            return 1
        if not frozen:
            # PySpark has just collected, so no garbage is kept.
            gc.freeze()
            frozen = True
        return worker(sock, authenticated)

    return waiting


def end_quietly() -> None:
    """Let this process end without a traceback when it is idle, if it is a worker of Spark's."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name == _DAEMON:
        main.worker = quiet(main.worker)  # type: ignore[attr-defined]  # the daemon's loop looks it up each time
