"""Python workers of Spark that are idle end without a traceback, and work that came is PySpark's."""

import gc
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

pytest.importorskip("pyspark")

from pyspark import daemon

from tidelake.spark.idle import quiet


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    here, there = socket.socketpair()
    with here, there:
        yield here, there


def test_a_closed_connection_ends_the_worker_and_prints_nothing() -> None:
    # PySpark's function changes how its process takes signals: it gets a process of its own.
    code = (
        "import socket, sys; from pyspark import daemon; from tidelake.spark.idle import quiet\n"
        "here, there = socket.socketpair(); there.close()\n"
        "worker = quiet(daemon.worker) if sys.argv[1] == 'quiet' else daemon.worker\n"
        "print(worker(here, True))\n"
    )
    said = {}
    for how in ("quiet", "as it is"):
        command = [sys.executable, "-c", code, how]
        said[how] = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (said["quiet"].stdout, said["quiet"].stderr) == ("1\n", "")
    assert "BrokenPipeError" in said["as it is"].stderr  # or PySpark does it by itself: then drop ours


def test_what_comes_is_left_to_pyspark(ends: tuple[socket.socket, socket.socket]) -> None:
    here, there = ends
    there.sendall(b"work")
    seen: list[tuple[bytes, bool]] = []

    def worker(sock: socket.socket, authenticated: bool) -> int:
        seen.append((sock.recv(10), authenticated))
        return 7

    assert quiet(worker)(here, True) == 7
    assert seen == [(b"work", True)]
    gc.unfreeze()


def test_what_is_there_before_the_second_task_is_left_out_of_later_collections(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    here, there = ends
    there.sendall(b"work")
    seen: list[int] = []
    worker = quiet(lambda _sock, _authenticated: seen.append(gc.get_freeze_count()) or 0)
    try:
        worker(here, True)
        kept = [object() for _ in range(10)]
        worker(here, True)
    finally:
        gc.unfreeze()
    assert seen[0] > 10_000 and seen[1] <= seen[0], kept


def test_the_daemon_calls_its_worker_by_its_global_name() -> None:
    """What `end_quietly` relies on."""
    assert "worker" in daemon.manager.__code__.co_names
