"""The parent of Spark's Python workers, as PySpark has it, but for how idle workers end.

When a session ends, Spark closes the connections of workers that wait for work. PySpark takes that for a
failed task: from 4.1 on, where a connection is a Unix domain socket, it prints the traceback of a
`BrokenPipeError` after a job that went well. Here a worker whose connection is closed before any work has
come just ends. What happens to work that has come, and what is said of it, is PySpark's business.

Spark starts this module by its name, which is the setting `spark.python.daemon.module`.
"""

import socket

from pyspark import daemon

_worker = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Do what comes next on a connection; anything but 0: the worker ends."""
    if not sock.recv(1, socket.MSG_PEEK):
        return 1
    return _worker(sock, authenticated)


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
