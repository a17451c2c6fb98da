"""Asks all peers on Spark for the same, in turn, and compares their answers with the truth.

As `bench.peers.run`. All peers have the same PySpark, each a process with a session of its own
(`bench.peers.spark.worker`). Sessions are started anew now and then, as the first write in one takes longer.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.peers.run import Found, Turns, Worker, closing
from bench.peers.spark.contract import JARS
from bench.peers.spark.worker import PEERS, peer_class
from bench.peers.workload import Truth, rows_of

SPARK = "4.1"
FILES = 4  # of the rows to begin with
SMALL_ROWS = 10
# A micro-batch of upserts has a thousandth of the rows of its table, and that has a tenth of the large one's.
STREAMED_SHARE, BATCH_SHARE = 10, 1000


@dataclass(frozen=True)
class Sizes:
    """How much is asked for.

    Attributes:
        rows: rows of the large table.
        sessions: how many sessions upsert, one after the other.
        upserts: upserts in each of them, of a hundredth of the rows with keys anywhere.
        together: upserts of a hundredth of the rows whose keys lie together, in the last session.
        rounds: how often each read is asked, and into how many parts the micro-batches are divided.
        appends: micro-batches of ten rows.
        batches: micro-batches of upserts.
        memory: of each JVM.
        java: further options of each JVM.
        cores: tasks at once.
    """

    rows: int = 1_000_000
    sessions: int = 3
    upserts: int = 4
    together: int = 4
    rounds: int = 5
    appends: int = 40
    batches: int = 200
    memory: str = "2g"
    java: str = ""
    cores: int = 2

    def conf(self) -> dict[str, str]:
        """Settings of all sessions."""
        return {
            "spark.driver.memory": self.memory,
            "spark.driver.extraJavaOptions": self.java,
            "spark.sql.shuffle.partitions": str(self.cores),
            "spark.sql.streaming.numRecentProgressUpdates": str(2 * max(self.appends, self.batches)),
        }


@dataclass
class FoundOnSpark(Found):
    """What one peer has shown; a stream tells the seconds of each micro-batch."""

    peaks_mib: dict[str, float] = field(default_factory=dict)

    def record(self, what: str, answer: dict[str, Any]) -> None:
        """Note how long it took."""
        taken_s = answer["s"] if isinstance(answer["s"], list) else [answer["s"]]
        self.seconds.setdefault(what, []).extend(taken_s)
        self.cpu_seconds.setdefault(what, []).append(answer["cpu_s"])

    def shown(self) -> dict[str, Any]:
        """As JSON."""
        return {**super().shown(), "peaks_mib": self.peaks_mib}


def python() -> str | None:
    """The Python with the PySpark of the comparison, which `setup/sparks.sh` makes; None if there is none."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    home = Path(os.environ.get("TIDELAKE_SPARKS") or f"{cache}/tidelake/sparks")
    found = sorted(one for one in home.glob(f"{SPARK}-*/bin/python") if one.parts[-3][-1].isdigit())
    return str(found[-1]) if found else None


def is_installed(peer: str) -> bool:
    """Whether the jars of a peer are there, which `setup/peers.sh` fetches."""
    jars = peer_class(peer).jars
    return not jars or (JARS / jars).is_dir()


def run(sizes: Sizes, peers: Sequence[str] = (*PEERS,)) -> dict[str, Any]:
    """Measure all peers that are installed.

    Raises:
        ValueError: an answer is wrong; says whose, and what was asked.
        RuntimeError: there is no PySpark for it, or a process has ended.
    """
    program = python()
    if program is None:
        raise RuntimeError(f"no environment with PySpark {SPARK}: run setup/sparks.sh {SPARK}")
    found = {peer: FoundOnSpark() for peer in peers if is_installed(peer)}
    with tempfile.TemporaryDirectory(dir=os.environ.get("TIDELAKE_BENCH_PLACE")) as name:
        for number in range(len(found)):
            (Path(name) / str(number)).mkdir()
        _Comparison(sizes, Path(name), program, found).measure()
    return {peer: one.shown() for peer, one in found.items()}


class _Comparison:
    def __init__(self, sizes: Sizes, place: Path, program: str, found: dict[str, FoundOnSpark]) -> None:
        self.sizes, self.place, self.program, self.found = sizes, place, program, found
        self.random = np.random.default_rng(22)
        self.large, self.streamed = Truth(sizes.rows), Truth(max(1, sizes.rows // STREAMED_SHARE))
        self.few = max(1, sizes.rows // 100)
        self.turns = Turns((), found)
        self.files = 0

    def measure(self) -> None:
        turns = self.turns
        with ExitStack() as stack:
            self._sessions(stack)
            for table in ("large", "log", "streamed"):
                turns.take("create", table)
            self._wrote("bulk append", "append", np.arange(self.sizes.rows), FILES)
        for session in range(self.sizes.sessions):
            with ExitStack() as stack:
                self._sessions(stack)
                self._upserts()
                if session == self.sizes.sessions - 1:
                    self._together()
                    self._reads("large", self.large, "")
                    turns.take("rest", "large", "maintenance")
                    self._reads("large", self.large, " at rest")
                    self._stream_appends()
                    self._stream_upserts()
                    self._reads("streamed", self.streamed, " after micro-batches")
                self._measured()

    def _sessions(self, stack: ExitStack) -> None:
        """A new session for each peer."""
        conf = json.dumps(self.sizes.conf())
        command = [self.program, "-m", "bench.peers.spark.worker"]
        folders = {peer: str(self.place / str(number)) for number, peer in enumerate(self.found)}
        self.turns.workers = [
            stack.enter_context(closing(Worker(peer, folder, [*command, peer, folder, conf])))
            for peer, folder in folders.items()
        ]
        for worker in self.turns.workers:
            worker.ready()

    def _upserts(self) -> None:
        for number in range(self.sizes.upserts):
            ids = self.random.choice(self.sizes.rows, self.few, replace=False)
            self._wrote(
                f"upsert of 1 %, {'keys anywhere' if number else 'first of a session'}", "upsert", ids
            )

    def _together(self) -> None:
        for _ in range(self.sizes.together):
            begin = int(self.random.integers(0, self.sizes.rows - self.few + 1))
            self._wrote("upsert of 1 %, keys together", "upsert", np.arange(self.few) + begin)

    def _wrote(self, what: str, do: str, ids: np.ndarray, files: int = 1) -> None:
        version = len(self.large.at) - 1
        self.files += 1
        folder = self.place / f"rows-{self.files}"
        for piece in np.array_split(ids, files):
            _write(folder, rows_of(piece, version))
        self.turns.take(do, "large", what, path=folder)
        shutil.rmtree(folder)
        self.large.wrote(ids, version)
        self.turns.note_version("large")

    def _reads(self, table: str, truth: Truth, when: str) -> None:
        """The newest rows, those of a version in the middle, and the changes of a quarter before it."""
        last = len(truth.at) - 1
        middle = 1 + last // 2
        after = middle - max(1, last // 4)
        newest, old, netted = truth.contents(), truth.contents(middle), truth.changes(after, middle)
        for _ in range(self.sizes.rounds):
            self.turns.take("read", table, f"newest snapshot{when}", expected=newest)
            self.turns.take(
                "read_at", table, f"old snapshot{when}", expected=old, versions={"version": middle}
            )
            between = {"after": after, "through": middle}
            self.turns.take("changes", table, f"changes{when}", expected=netted, versions=between)

    def _stream_appends(self) -> None:
        """Rounds of micro-batches of ten rows, into the table and into nothing."""
        source, written = self.place / "log", Truth(SMALL_ROWS * (self.sizes.appends + self.sizes.rounds))
        # The first one of a query is not counted.
        numbers = np.arange(self.sizes.appends + self.sizes.rounds)
        for part in np.array_split(numbers, self.sizes.rounds):
            for number in part:
                _write(source, rows_of(np.arange(SMALL_ROWS) + number * SMALL_ROWS, 0))
            self._stream("log", "noop", source, f"micro-batch of {SMALL_ROWS} rows into Spark's noop")
            self._stream("log", "append", source, f"micro-batch of {SMALL_ROWS} rows")
        written.wrote(np.arange(len(written.at[0])), 0)
        self.turns.take("read", "log", "read of the log", expected=written.contents())

    def _stream_upserts(self) -> None:
        """Rounds of micro-batches of upserts; the contents after each round are a version."""
        truth, source = self.streamed, self.place / "streamed"
        rows = len(truth.at[0])
        few = max(1, rows // BATCH_SHARE)
        _write(source, rows_of(np.arange(rows), 0))
        truth.wrote(np.arange(rows), 0)
        self._stream("streamed", "upsert", source)
        self.turns.note_version("streamed")
        # The first one of a query is not counted.
        numbers = 1 + np.arange(self.sizes.batches + self.sizes.rounds)
        for part in np.array_split(numbers, self.sizes.rounds):
            batches = {int(n): self.random.choice(rows, few, replace=False) for n in part}
            for number, ids in batches.items():
                _write(source, rows_of(ids, number))
            self._stream("streamed", "upsert", source, "micro-batch of upserts")
            truth.wrote(np.concatenate([*batches.values()]), np.repeat([*batches], few))
            self.turns.note_version("streamed")

    def _stream(self, table: str, kind: str, source: Path, what: str | None = None) -> None:
        self.turns.take("stream", table, what, kind=kind, source=str(source))

    def _measured(self) -> None:
        for worker in self.turns.workers:
            measured, one = worker.ask("measure"), self.found[worker.peer]
            one.bytes = measured["bytes"]
            for name, mib in measured["peaks_mib"].items():
                one.peaks_mib[name] = max(mib, one.peaks_mib.get(name, 0.0))


def _write(folder: Path, rows: pa.Table) -> None:
    """One more file of a folder; a stream takes files in the order of their times."""
    folder.mkdir(exist_ok=True)
    number = len(list(folder.iterdir()))
    pq.write_table(rows, folder / f"{number}.parquet")
    os.utime(folder / f"{number}.parquet", (number + 1, number + 1))
