"""Memory and processor time of a Spark driver: its Python, its JVM and the Python workers, on Linux."""

import os
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
# Of the fields behind the name of a process, in /proc/<pid>/stat: parent; and ticks, also of ended children.
_PARENT, _TICKS = 1, slice(11, 15)


def stats() -> Iterator[tuple[int, str, list[str]]]:
    """Each process of this machine: its number, its name, and the fields behind the name."""
    for place in PROC.glob("[0-9]*"):
        try:
            before, _, after = (place / "stat").read_text().rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        yield int(place.name), before.partition("(")[2], after.split()


def tree() -> dict[int, tuple[str, list[str]]]:
    """This process and all below it."""
    known = {pid: (name, fields) for pid, name, fields in stats()}
    children: dict[int, list[int]] = {}
    for pid, (_, fields) in known.items():
        children.setdefault(int(fields[_PARENT]), []).append(pid)
    found, todo = {}, [os.getpid()]
    while todo:
        pid = todo.pop()
        found[pid] = known[pid]
        todo += children.get(pid, [])
    return found


def cpu_s() -> float:
    """Seconds of the processor that this process and all below it have taken."""
    return sum(sum(map(int, fields[_TICKS])) for _, fields in tree().values()) * _TICK_S


class Peaks:
    """The most memory that the driver's Python, its JVM, and all Python workers together have had, in MiB.

    Workers come and go, so they are looked at now and then; what forked ones share counts for each.
    """

    def __init__(self) -> None:
        self.mib = {"python": 0.0, "jvm": 0.0, "workers": 0.0}

    def look(self) -> None:
        """Take in what the processes have had so far."""
        now = dict.fromkeys(self.mib, 0.0)
        for pid, (name, _) in tree().items():
            kind = "python" if pid == os.getpid() else "jvm" if name == "java" else "workers"
            now[kind] += _peak_mib(pid)
        self.mib = {kind: max(mib, now[kind]) for kind, mib in self.mib.items()}


def _peak_mib(pid: int) -> float:
    try:
        lines = (PROC / str(pid) / "status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0  # it has just ended
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024
