"""Asks all peers for the same, in turn, and compares their answers with the truth.

Each peer is a process in an environment of its own (`bench.peers.worker`). In every round each peer has its
turn before the next round begins, so what else the machine does meets all of them. Flushes are counted in a
run of their own under `strace`, where it is there.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.peers.worker import SMALL_ROWS
from bench.peers.workload import SCHEMA, Truth, rows_of

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "build" / "peers"
PEERS = ("tidelake", "deltalake", "pyiceberg", "lance", "pypaimon", "duckdb", "ducklake", "sqlite", "slatedb")
OF_PYTHON = ("tidelake", "sqlite")  # these need no environment of their own
FLUSHED = 10
TOGETHER = 8  # processes that append to one table
LOGGED = 4_000  # characters of what a process wrote as errors, if it ends


@dataclass(frozen=True)
class Sizes:
    """How much is asked for.

    Attributes:
        rows: rows of the large table.
        upserts: upserts of a hundredth of them.
        appends: appends of ten rows to the small table.
        rounds: how often each read is asked.
        looked_up: how many keys the look-ups are of.
        together: how many processes append to one table.
    """

    rows: int = 1_000_000
    upserts: int = 20
    appends: int = 200
    rounds: int = 5
    looked_up: tuple[int, ...] = (1, 100, 10_000)
    together: int = TOGETHER


@dataclass
class Found:
    """What one peer has shown: seconds by the clock and of the processor for each kind of work."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    cpu_seconds: dict[str, list[float]] = field(default_factory=dict)
    cannot: dict[str, str] = field(default_factory=dict)
    peak_mib: float = 0.0
    bytes: int = 0
    flushes: float | None = None
    together: dict[int, float] = field(default_factory=dict)

    def record(self, what: str, answer: dict[str, Any]) -> None:
        """Note how long it took."""
        self.seconds.setdefault(what, []).append(answer["s"])
        self.cpu_seconds.setdefault(what, []).append(answer["cpu_s"])

    def shown(self) -> dict[str, Any]:
        """As JSON: of each kind of work minimum and median by the clock, and the median of the processor."""
        work = {
            what: {
                "min_ms": 1000 * min(values),
                "median_ms": 1000 * statistics.median(values),
                "cpu_ms": 1000 * statistics.median(self.cpu_seconds[what]),
            }
            for what, values in self.seconds.items()
        }
        return {
            "work": work,
            "cannot": self.cannot,
            "peak_mib": self.peak_mib,
            "bytes": self.bytes,
            "flushes_per_append": self.flushes,
            "appends_per_s": self.together,
        }


def python_of(peer: str) -> str | None:
    """The Python of a peer's environment; None if it could not be installed."""
    if peer in OF_PYTHON:
        return sys.executable
    python = PLACE / peer / "bin" / "python"
    return str(python) if python.exists() else None


class Worker:
    """The process of one peer, which a command starts; its errors are in a file beside its folder."""

    def __init__(self, peer: str, folder: str, command: Sequence[str]) -> None:
        self.peer = peer
        self._log = Path(f"{folder}.log")
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])},
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def ready(self) -> dict[str, Any]:
        """Wait until it can be asked, or has done what was begun. Errors as for `ask`."""
        return self._answer()

    def ask(self, do: str, table: str = "", rows: Path | None = None, **more: Any) -> dict[str, Any]:
        """Have one thing done; see `bench.peers.worker`.

        Raises:
            RuntimeError: the process has ended.
        """
        self.begin(do, table, rows, **more)
        return self._answer()

    def begin(self, do: str, table: str = "", rows: Path | None = None, **more: Any) -> None:
        """Ask for one thing, whose end `ready` waits for. Errors as for `ask`."""
        asked = {"do": do, "table": table, "more": more, **({} if rows is None else {"rows": str(rows)})}
        if do == "lookup":
            asked["as"] = "ids"
        if self._process.stdin is None:
            raise RuntimeError(f"{self.peer} has no input")
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()

    def _answer(self) -> dict[str, Any]:
        line = "" if self._process.stdout is None else self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            raise RuntimeError(f"{self.peer} has ended with {code}: {self._log.read_text()[-LOGGED:]}")
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        """End the process."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()


def run(sizes: Sizes, peers: Sequence[str] = PEERS) -> dict[str, Any]:
    """Measure all peers that are installed.

    Raises:
        ValueError: an answer is wrong; says whose, and what was asked.
    """
    found = {peer: Found() for peer in peers if python_of(peer) is not None}
    with (
        tempfile.TemporaryDirectory(dir=os.environ.get("TIDELAKE_BENCH_PLACE")) as name,
        ExitStack() as stack,
    ):
        place = Path(name)
        for peer, one in found.items():
            (place / peer).mkdir()
            (place / f"{peer}-traced").mkdir()
            one.flushes = _flushes(peer, place)
            for count in dict.fromkeys((1, sizes.together)):
                _append_together(peer, place, count, sizes.appends, one)
        workers = [stack.enter_context(_worker(peer, str(place / peer))) for peer in found]
        for worker in workers:
            worker.ready()
        _Comparison(sizes, place, workers, found).measure()
    return {peer: one.shown() for peer, one in found.items()}


@contextmanager
def closing(worker: Worker) -> Iterator[Worker]:
    """End the process at the end of the block."""
    try:
        yield worker
    finally:
        worker.close()


def _worker(peer: str, folder: str, traced: Path | None = None) -> AbstractContextManager[Worker]:
    strace = ["strace", "-f", "-qq", "-ttt", "-e", "trace=fsync,fdatasync,sync_file_range,msync"]
    before = [] if traced is None else [*strace, "-o", str(traced)]
    command = [*before, str(python_of(peer)), "-m", "bench.peers.worker", peer, folder]
    return closing(Worker(peer, folder, command))


class Turns:
    """The processes of all peers, which do the same one after the other; the answers are compared.

    Attributes:
        versions: what each peer calls the versions of a table; the first one is before any.
    """

    def __init__(self, workers: Sequence[Worker], found: Mapping[str, Found]) -> None:
        self.workers, self.found = workers, found
        self.versions: defaultdict[str, list[dict[str, Any]]] = defaultdict(lambda: [{}])

    def note_version(self, table: str) -> None:
        """Ask for the newest version."""
        named = {worker.peer: worker.ask("version", table).get("value") for worker in self.workers}
        self.versions[table].append(named)

    def take(
        self,
        do: str,
        table: str,
        what: str | None = None,
        *,
        path: Path | None = None,
        expected: list[int] | None = None,
        versions: Mapping[str, int] | None = None,
        **more: Any,
    ) -> None:
        """One round: every peer in turn. Tells the seconds of each on the standard error stream.

        Raises:
            ValueError: an answer is wrong.
        """
        told = []
        for worker in self.workers:
            one = self.found[worker.peer]
            if what in one.cannot:
                continue
            named = {name: self.versions[table][at].get(worker.peer) for name, at in (versions or {}).items()}
            answer = worker.ask(do, table, path, **named, **more)
            if "cannot" in answer and what is not None:
                one.cannot[what] = answer["cannot"]
            elif expected is not None and answer["found"] != expected:
                raise ValueError(f"{worker.peer}, {what}: {answer['found']} instead of {expected}")
            elif what is not None:
                one.record(what, answer)
                told.append(f"{worker.peer} {one.seconds[what][-1]:.3f}")
        if told:
            print(f"{what}, s: {', '.join(told)}", file=sys.stderr, flush=True)


class _Comparison:
    def __init__(self, sizes: Sizes, place: Path, workers: list[Worker], found: dict[str, Found]) -> None:
        self.sizes, self.place, self.workers, self.found = sizes, place, workers, found
        self.turns = Turns(workers, found)
        self.truth = Truth(sizes.rows)
        self.random = np.random.default_rng(22)

    def measure(self) -> None:
        sizes = self.sizes
        for table in ("large", "small"):
            self._all("create", table, rows=pa.table([[]] * len(SCHEMA), schema=SCHEMA))
        begun = self.random.permutation(sizes.rows)
        self._wrote("bulk append", "append", begun, 0)
        self._read("bulk read", "read", self.truth.contents())
        for n in range(sizes.appends):
            ids = np.arange(SMALL_ROWS) + n * SMALL_ROWS
            self._all("append", "small", "append of 10 rows", rows=rows_of(ids, 0))
        for version in range(1, sizes.upserts + 1):
            ids = self.random.choice(sizes.rows, max(1, sizes.rows // 100), replace=False)
            self._wrote("upsert of 1 %", "upsert", ids, version)
        self._reads("")
        self._all("rest", "large", "maintenance")
        self._reads(" at rest")
        self._read("newest snapshot by a new handle", "read_anew", self.truth.contents())
        for worker in self.workers:
            measured, one = worker.ask("measure"), self.found[worker.peer]
            one.bytes, one.peak_mib = measured["bytes"], measured["peak_mib"]
        self._first_use()

    def _first_use(self) -> None:
        """The time from the start of a process to the rows of the newest snapshot, by the clock."""
        for worker in self.workers:
            # A table of one file is of one process at a time.
            worker.close()
        for _ in range(self.sizes.rounds):
            for peer, one in self.found.items():
                began_s = time.perf_counter()
                with _worker(peer, str(self.place / peer)) as fresh:
                    fresh.ready()
                    answer = fresh.ask("read_anew", "large")
                    one.record(
                        "newest snapshot by a new process", {**answer, "s": time.perf_counter() - began_s}
                    )

    def _reads(self, when: str) -> None:
        sizes, truth, middle = self.sizes, self.truth, self.sizes.upserts // 2
        first, last = middle // 2 + 1, middle + 1
        self._read(f"newest snapshot{when}", "read", truth.contents())
        old = {"version": middle + 1}
        self._read(f"old snapshot{when}", "read_at", truth.contents(middle + 1), versions=old)
        netted = {"after": first, "through": last}
        self._read(f"changes{when}", "changes", truth.changes(first, last), versions=netted)
        for count in sizes.looked_up:
            ids = self.random.choice(sizes.rows, min(count, sizes.rows), replace=False)
            expected, keys = truth.contents(ids=ids), pa.table({"id": pa.array(ids)})
            self._read(f"look-up of {count} keys{when}", "lookup", expected, rows=keys)

    def _wrote(self, what: str, do: str, ids: np.ndarray, version: int) -> None:
        self._all(do, "large", what, rows=rows_of(ids, version))
        self.truth.wrote(ids, version)
        self.turns.note_version("large")

    def _read(
        self,
        what: str,
        do: str,
        expected: list[int],
        *,
        versions: dict[str, int] | None = None,
        rows: pa.Table | None = None,
    ) -> None:
        for _ in range(self.sizes.rounds):
            self._all(do, "large", what, expected=expected, versions=versions, rows=rows)

    def _all(
        self,
        do: str,
        table: str,
        what: str | None = None,
        *,
        expected: list[int] | None = None,
        versions: dict[str, int] | None = None,
        rows: pa.Table | None = None,
    ) -> None:
        """One round, with these rows."""
        path = None if rows is None else _written(rows, self.place / "rows.arrow")
        self.turns.take(do, table, what, path=path, expected=expected, versions=versions)


def _written(rows: pa.Table, path: Path) -> Path:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
        writer.write_table(rows)
    return path


def _append_together(peer: str, place: Path, count: int, appends: int, one: Found) -> None:
    """Note how many appends of ten rows a second some processes do to one table, or why they cannot."""
    folder, what = place / f"{peer}-{count}", f"appends by {count} processes"
    folder.mkdir()
    with ExitStack() as stack:
        try:
            first = stack.enter_context(_worker(peer, str(folder)))
            first.ready()
            first.ask(
                "create", "small", _written(pa.table([[]] * len(SCHEMA), schema=SCHEMA), place / "rows.arrow")
            )
            workers = [first]
            for _ in range(count - 1):
                workers.append(stack.enter_context(_worker(peer, str(folder))))
                workers[-1].ready()
            each = max(1, appends // count)
            paths = []
            for at in range(count):
                ids = np.arange(each * SMALL_ROWS) + at * each * SMALL_ROWS
                paths.append(_written(rows_of(ids, 0), folder / f"{at}.arrow"))
            began_s = time.perf_counter()
            for worker, path in zip(workers, paths, strict=True):
                worker.begin("append_each", "small", path)
            for worker in workers:
                worker.ready()
            one.together[count] = count * each / (time.perf_counter() - began_s)
        except RuntimeError as error:
            one.cannot[what] = str(error).strip().splitlines()[-1][:200]


def _flushes(peer: str, place: Path) -> float | None:
    """Calls that flush, for an append of ten rows; None if they cannot be counted here."""
    if shutil.which("strace") is None:
        return None
    traced, path = place / f"{peer}.calls", place / "rows.arrow"
    try:
        with _worker(peer, str(place / f"{peer}-traced"), traced) as worker:
            worker.ready()
            worker.ask("create", "small", _written(pa.table([[]] * len(SCHEMA), schema=SCHEMA), path))
            began_s = 0.0
            for n in range(2 * FLUSHED):
                if n == FLUSHED:
                    began_s = time.time()
                ids = np.arange(SMALL_ROWS) + n * SMALL_ROWS
                worker.ask("append", "small", _written(rows_of(ids, 0), path))
            ended_s = time.time()
    except RuntimeError:
        return None  # strace may not look into processes here
    calls = [line.split()[1] for line in traced.read_text().splitlines() if "resumed" not in line]
    return sum(began_s <= float(called) < ended_s for called in calls) / FLUSHED
