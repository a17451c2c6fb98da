"""A process with a Spark session for one peer: does what it is told, line by line, and times it.

    python -m bench.peers.spark.worker <peer> <folder> <settings of the session, as JSON>

As `bench.peers.worker`, but rows are Parquet files that Spark reads, and an answer is a DataFrame. Spark sums
up all of its columns, and these sums are compared: a Delta table with deletion vectors cannot be written to
Spark's noop sink. Processor time is that of Python, the JVM and the workers.
"""

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.peers.spark.contract import SCHEMA, Peer
from bench.peers.spark.processes import Peaks, cpu_s
from bench.peers.worker import bytes_of
from tidelake.spark import local_session

PEERS = {
    "tidelake": ("tidelake_", "Functions"),
    "tidelake SQL": ("tidelake_", "Format"),
    "delta": ("delta_", "Delta"),
    "delta DV": ("delta_", "DeltaVectors"),
    "iceberg": ("iceberg_", "Iceberg"),
}


def peer_class(peer: str) -> type[Peer]:
    """The class of a peer."""
    module, name = PEERS[peer]
    found: type[Peer] = getattr(importlib.import_module(f"bench.peers.spark.{module}"), name)
    return found


class Session:
    """One peer in its session, and what it is asked."""

    def __init__(self, peer: str, folder: Path, conf: dict[str, str]) -> None:
        kind, self.tables, self.peaks = peer_class(peer), folder / "tables", Peaks()
        self.checkpoints = folder / "checkpoints"
        self.spark = local_session(
            "peers", conf["spark.sql.shuffle.partitions"], **conf, **kind.conf(str(self.tables))
        )
        self.peer = kind(self.spark, str(self.tables))

    def answered(self, asked: dict[str, Any]) -> dict[str, Any]:
        """What one line asks for, done."""
        given, do, table = dict(asked["more"]), asked["do"], asked["table"]
        if do == "measure":
            return {"bytes": bytes_of(str(self.tables)), "peaks_mib": self.peaks.mib}
        if do == "stream":
            return self.streamed(table, **given)
        if "rows" in asked:
            given["rows"] = self.spark.read.schema(SCHEMA).parquet(asked["rows"])
        method: Callable[..., Any] = getattr(self.peer, do)
        began_s, began_cpu_s = time.perf_counter(), cpu_s()
        found = method(table, **given)
        told = {"found": summary(found)} if hasattr(found, "selectExpr") else {"value": found}
        return {"s": time.perf_counter() - began_s, "cpu_s": cpu_s() - began_cpu_s, **told}

    def streamed(self, table: str, kind: str, source: str) -> dict[str, Any]:
        """A query takes the new files of a folder, one in a micro-batch, and ends.

        Spark says how long each micro-batch took. The first one is left out, as the query begins with it.
        """
        rows = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(source)
        begun_cpu_s = cpu_s()
        writers = {"append": self.peer.append_stream, "upsert": self.peer.upsert_stream}
        writer = writers[kind](table, rows) if kind in writers else rows.writeStream.format("noop")
        place = str(self.checkpoints / f"{table}-{kind}")
        query = writer.option("checkpointLocation", place).trigger(availableNow=True).start()
        query.awaitTermination()
        done = [p["durationMs"] for p in query.recentProgress if "addBatch" in p["durationMs"]]
        taken_s = [ms["triggerExecution"] / 1000 for ms in done]
        return {"s": taken_s[1:] or taken_s, "cpu_s": (cpu_s() - begun_cpu_s) / len(taken_s)}


def summary(rows: Any) -> list[int]:
    """Counts and sums of all columns, as `bench.peers.worker.summary` has them."""
    sign = "diff" if "diff" in rows.columns else "1L"
    sums = (f"coalesce(sum({value} * {sign}), 0)" for value in ("id", "n", "length(s)"))
    return [*rows.selectExpr("count(*)", *sums).first()]


def main() -> None:
    name, folder, conf = sys.argv[1:]
    # What a peer or its JVM prints must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    session = Session(name, Path(folder), json.loads(conf))
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        answer = session.answered(json.loads(line))
        session.peaks.look()
        print(json.dumps(answer), file=answers, flush=True)
    session.spark.stop()


if __name__ == "__main__":
    main()
